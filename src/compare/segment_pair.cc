// SPDX-License-Identifier: Apache-2.0
#include "compare/segment_pair.h"

#include <algorithm>

#include "compare/facts.h"

namespace presum::compare {
namespace {

// Whether the step itself says what the optimiser's hyper-parameters are.
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
    // It is of the step at which the segment began, and a schedule may change it.
    const bool passed = f.key.starts_with("optimizer.") && a.span->begin != b.span->begin;
    if (passed && tells_settings(*a.record) && tells_settings(*b.record)) continue;
    if (passed) f.weight = FactDifference::Weight::kEnvironment;
    f.module = key_.first;
    const bool world = f.key == "world_size" && !same_world;
    add_fact(std::move(f), a.step, world);
  }
}

// `world`: it says what the numbers of workers say already.
void SegmentPair::add_fact(FactDifference fact, std::uint64_t step, bool world) {
  const bool defining = fact.weight == FactDifference::Weight::kDefining && !world;
  if (defining) defining_since_ = std::min(defining_since_.value_or(step), step);
  fact.since = step;
  const auto known = std::ranges::find_if(facts_, [&](const FactDifference& f) {
    return f.key == fact.key && f.a == fact.a && f.b == fact.b;
  });
  if (known == facts_.end()) {
    facts_.push_back(std::move(fact));
  } else if (defining && known->weight != FactDifference::Weight::kDefining) {
    *known = std::move(fact);
  }
}

void SegmentPair::add_defining_facts(Difference& first) const {
  auto& settings = std::get<OtherSettings>(first.what);
  for (const FactDifference& f : facts_) {
    if (f.weight != FactDifference::Weight::kDefining || f.since > first.step) continue;
    settings.facts.push_back(f.key);
    first.evidence.push_back({f.ranks, FactValues{f.key, f.a, f.b}});
  }
  first.evidence.resize(std::min(first.evidence.size(), kEvidenceMax));
}

}  // namespace presum::compare
