// SPDX-License-Identifier: Apache-2.0
#include "compare/facts.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string_view>

namespace presum::compare {
namespace {

using Weight = FactDifference::Weight;
using ByRank = std::map<std::uint32_t, std::string>;

constexpr std::array<std::string_view, 7> kDefining = {
    "world_size", "model", "parameters", "elements", "dtypes", "optimizer", "grad_scaler"};
constexpr std::array<std::string_view, 5> kRecording = {"sketch", "every", "reduced_every", "mode",
                                                        "fingerprints"};
// Differ from run to run, or describe what samples and samplers are compared by.
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

// The values of all workers, each once.
std::set<std::string> values_of(const ByRank& by_rank) {
  std::set<std::string> out;
  for (const auto& [rank, value] : by_rank) out.insert(value);
  return out;
}

// An absent variable is unset, an absent scaler is none; another absent fact is unknown.
bool absence_counts(std::string_view key) {
  return key.starts_with("env.") || key == "grad_scaler";
}

// As text, hyper-parameters as numbers too: 0 is 0.0.
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

// Of one worker; what is empty is as good as absent.
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

// Of values that neither run's workers share those that define the training alone: what else
// workers say may be their own.
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

}  // namespace

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

}  // namespace presum::compare
