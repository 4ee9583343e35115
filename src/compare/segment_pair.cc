// SPDX-License-Identifier: Apache-2.0
#include "compare/segment_pair.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>

namespace presum::compare {
namespace {

using Weight = FactDifference::Weight;
using ByRank = std::map<std::uint32_t, std::string>;

constexpr std::array<std::string_view, 7> kDefining = {
    "world_size", "model", "parameters", "elements", "dtypes", "optimizer", "grad_scaler"};
constexpr std::array<std::string_view, 5> kRecording = {"sketch", "every", "reduced_every", "mode",
                                                        "fingerprints"};
// Facts that differ in every run, or that describe samplers and data, whose samples are compared
// directly.
constexpr std::array<std::string_view, 6> kExpected = {"pid",  "process_start", "sampler",
                                                       "data", "overhead_ms",   "step_ms"};

template <std::size_t N>
bool among(std::string_view key, const std::array<std::string_view, N>& keys) {
  return std::ranges::find(keys, key) != keys.end();
}

bool is_expected(std::string_view key) {
  return among(key, kExpected) || key.ends_with("PORT") || key.ends_with("ADDR");
}

Weight weight_of(std::string_view key) {
  if (among(key, kDefining) || key.starts_with("optimizer.")) return Weight::kDefining;
  return among(key, kRecording) ? Weight::kRecording : Weight::kEnvironment;
}

std::map<std::string, ByRank> by_key(std::span<const Fact> facts) {
  std::map<std::string, ByRank> out;
  for (const Fact& f : facts) {
    if (!is_expected(f.key)) out[f.key][f.rank] = f.value;
  }
  return out;
}

// Whether environment variables were recorded.
bool knows_environment(const std::map<std::string, ByRank>& facts) {
  return facts.contains("threads");
}

// The distinct values of all ranks.
std::set<std::string> values_of(const ByRank& by_rank) {
  std::set<std::string> out;
  for (const auto& [rank, value] : by_rank) out.insert(value);
  return out;
}

// An absent variable is unset and an absent scaler is none; any other absent fact is unknown.
bool absence_counts(std::string_view key) {
  return key.starts_with("env.") || key == "grad_scaler";
}

// Compares texts; compares hyperparameters as numbers too, so that 0 equals 0.0.
bool same_value(const std::string& key, const std::string& a, const std::string& b) {
  if (a == b) return true;
  if (!key.starts_with("optimizer.")) return false;
  double of_a = 0;
  double of_b = 0;
  const auto whole = [](const std::string& text, double& value) {
    const auto* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, value);
    return read.ec == std::errc() && read.ptr == end;
  };
  return whole(a, of_a) && whole(b, of_b) && of_a == of_b;
}

// The value of one rank; an empty value counts as absent.
std::vector<std::string> value_of(const ByRank& by_rank, ByRank::const_iterator worker) {
  if (worker == by_rank.end() || worker->second.empty()) return {};
  return {worker->second};
}

std::optional<FactDifference> by_rank(const std::string& key, const ByRank& a, const ByRank& b) {
  FactDifference out{.key = key, .weight = weight_of(key)};
  std::set<std::uint32_t> ranks;
  for (const auto* side : {&a, &b}) {
    for (const auto& [rank, value] : *side) ranks.insert(rank);
  }
  for (const std::uint32_t rank : ranks) {
    const auto in_a = a.find(rank);
    const auto in_b = b.find(rank);
    const bool both = in_a != a.end() && in_b != b.end();
    if (both ? same_value(key, in_a->second, in_b->second) : !absence_counts(key)) continue;
    out.ranks.push_back(rank);
    if (out.ranks.size() > 1) continue;
    out.a = value_of(a, in_a);
    out.b = value_of(b, in_b);
  }
  if (out.ranks.empty()) return std::nullopt;
  out.all_ranks = out.ranks.size() == ranks.size();
  return out;
}

// If the ranks of neither run share one value, only facts that define the training are compared:
// other values may differ by rank.
std::optional<FactDifference> by_shared(const std::string& key, const ByRank& a, const ByRank& b) {
  const auto of_a = values_of(a);
  const auto of_b = values_of(b);
  const Weight weight = weight_of(key);
  const bool absent = of_a.empty() || of_b.empty();
  const bool shared = of_a.size() == 1 || of_b.size() == 1;
  if (absent ? !absence_counts(key) : !shared && weight != Weight::kDefining) return std::nullopt;
  const bool same = of_a == of_b || (of_a.size() == 1 && of_b.size() == 1 &&
                                     same_value(key, *of_a.begin(), *of_b.begin()));
  if (same) return std::nullopt;
  return FactDifference{.key = key,
                        .a = {of_a.begin(), of_a.end()},
                        .b = {of_b.begin(), of_b.end()},
                        .weight = weight};
}

// The facts of one model that differ between two segments. With equal world sizes, compares rank by
// rank; with different ones, compares the sets of values, except where neither run's ranks share
// one value. A fact that only one run has counts as a difference only if it is an environment
// variable or the loss scaler. Sorted by weight, then key.
std::vector<FactDifference> differing_facts(std::span<const Fact> a, std::span<const Fact> b,
                                            bool same_world) {
  const auto of_a = by_key(a);
  const auto of_b = by_key(b);
  std::set<std::string> keys;
  for (const auto* side : {&of_a, &of_b}) {
    for (const auto& [key, values] : *side) keys.insert(key);
  }
  std::vector<FactDifference> out;
  if (of_a.empty() || of_b.empty()) return out;
  if (!knows_environment(of_a) || !knows_environment(of_b)) {
    std::erase_if(keys, [](const std::string& key) { return key.starts_with("env."); });
  }
  const ByRank none;
  for (const std::string& key : keys) {
    const auto& x = of_a.contains(key) ? of_a.at(key) : none;
    const auto& y = of_b.contains(key) ? of_b.at(key) : none;
    auto found = same_world ? by_rank(key, x, y) : by_shared(key, x, y);
    if (found) out.push_back(std::move(*found));
  }
  std::ranges::stable_sort(out, {}, &FactDifference::weight);
  return out;
}

// Whether the step itself records the optimizer's hyperparameters.
bool tells_settings(const StepRecord& step) {
  return std::ranges::any_of(step.workers, [](const WorkerRecord& w) {
    return w.fingerprint_of(FingerprintKind::kOptimizerSettings) != nullptr;
  });
}

}  // namespace

void SegmentPair::enter(const TimelineReader::Step& a, const TimelineReader::Step& b) {
  const std::pair numbers(a.span->segment, b.span->segment);
  if (numbers != numbers_) {
    numbers_ = numbers;
    every_a_ = a_.every(numbers.first, key_.first);
    every_b_ = b_.every(numbers.second, key_.first);
    const auto salt = a_.salt(numbers.first);
    same_salt_ = !salt.empty() && salt == b_.salt(numbers.second);
    compare_facts(a, b);
  }
  defining_steps_ += defining_since_.has_value();
}

void SegmentPair::compare_facts(const TimelineReader::Step& a, const TimelineReader::Step& b) {
  const bool same_world = a.record->workers_expected == b.record->workers_expected;
  for (FactDifference& f : differing_facts(a_.facts_of(numbers_->first, key_.first),
                                           b_.facts_of(numbers_->second, key_.first), same_world)) {
    // The fact dates from the beginning of the segment, and a schedule may have changed the value.
    const bool passed = f.key.starts_with("optimizer.") && a.span->begin != b.span->begin;
    if (passed && tells_settings(*a.record) && tells_settings(*b.record)) continue;
    if (passed) f.weight = Weight::kEnvironment;
    f.model_index = key_.first;
    const bool world = f.key == "world_size" && !same_world;
    add_fact(std::move(f), a.step, world);
  }
}

// `world`: the fact only repeats that the world sizes differ.
void SegmentPair::add_fact(FactDifference fact, std::uint64_t step, bool world) {
  const bool defining = fact.weight == Weight::kDefining && !world;
  if (defining) defining_since_ = std::min(defining_since_.value_or(step), step);
  fact.since = step;
  const auto known = std::ranges::find_if(facts_, [&](const FactDifference& f) {
    return f.key == fact.key && f.a == fact.a && f.b == fact.b;
  });
  if (known == facts_.end()) {
    facts_.push_back(std::move(fact));
  } else if (defining && known->weight != Weight::kDefining) {
    *known = std::move(fact);
  }
}

void SegmentPair::add_defining_facts(Difference& first) const {
  auto& settings = std::get<OtherSettings>(first.what);
  for (const FactDifference& f : facts_) {
    if (f.weight != Weight::kDefining || f.since > first.step) continue;
    settings.facts.push_back(f.key);
    first.evidence.push_back({f.ranks, FactValues{f.key, f.a, f.b}});
  }
  first.evidence.resize(std::min(first.evidence.size(), kEvidenceMax));
}

}  // namespace presum::compare
