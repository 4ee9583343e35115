// SPDX-License-Identifier: Apache-2.0
#include "compare/parameter_hashes.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

namespace presum::compare {
namespace {

// The groups of a step's states; frozen parameters count as buffers.
std::set<std::uint64_t> held_by(const StepRecord& step, StateHash::Kind kind) {
  const auto is_of = [&](const StateHash& s) {
    const bool frozen = s.kind == StateHash::Kind::kFrozen;
    return s.kind == kind || (frozen && kind == StateHash::Kind::kBuffers);
  };
  std::set<std::uint64_t> out;
  for (const WorkerRecord& w : step.workers) {
    for (const StateHash& s : w.states) {
      if (is_of(s)) out.insert(s.group);
    }
  }
  return out;
}

}  // namespace

void LastEqualHashes::equal(std::uint64_t step, const HashCoverage& coverage,
                            const std::vector<std::string>& layers) {
  if (coverage.whole) whole_ = step;
  if (!coverage.slice) return;
  Slice& slice = slices_[*coverage.slice];
  slice.step = step;
  slice.layers.insert(layers.begin(), layers.end());
}

std::optional<std::uint64_t> LastEqualHashes::of(const HashCoverage& coverage,
                                                 const std::vector<std::string>& layers) const {
  if (coverage.slice) return std::max(whole_, slices_[*coverage.slice].step);
  return coverage.whole ? of_groups_in(layers) : whole_;
}

bool LastEqualHashes::all_after_start() const {
  return whole_ > 0 ||
         std::ranges::all_of(slices_, [](const Slice& s) { return s.step > 0 || s.empty; });
}

// The slice that was compared least recently decides; a slice that was never compared may contain
// any layer.
std::optional<std::uint64_t> LastEqualHashes::of_groups_in(
    const std::vector<std::string>& layers) const {
  std::optional<std::optional<std::uint64_t>> out;
  for (const Slice& slice : slices_) {
    const bool holds = std::ranges::any_of(
        layers, [&](const std::string& layer) { return slice.layers.contains(layer); });
    if ((slice.step || slice.empty) && !holds) continue;
    const auto seen = std::max(whole_, slice.step);
    out = out ? std::min(*out, seen) : seen;
  }
  return out.value_or(whole_);
}

HashCoverage hash_coverage(const TimelineReader::Step& a, std::uint64_t every_a,
                           const TimelineReader::Step& b, std::uint64_t every_b) {
  const std::uint64_t x = a.record->step;
  const std::uint64_t y = b.record->step;
  if (x == 0 || y == 0) return {.same_tensors = x == y, .whole = x == y};
  if (every_a == 0 || every_b == 0) return {.same_tensors = x == y && every_a == every_b};
  if (x / every_a % kSlices != y / every_b % kSlices) return {};
  return {.same_tensors = true, .slice = x / every_a % kSlices};
}

void ParameterHashes::match_tensors(StepPair& pair) {
  using Kind = StateHash::Kind;
  const auto same = [&](Kind kind) { return held_by(pair.a, kind) == held_by(pair.b, kind); };
  if (pair.coverage.whole) {
    same_parameters_ = same(Kind::kParameters);
    same_buffers_ = same(Kind::kBuffers);
    return;
  }
  pair.same_parameters = same_parameters_;
  pair.same_buffers = same_buffers_;
  compared_in_part_ = compared_in_part_ || same_parameters_ != same_buffers_;
  if (!same_parameters_ && !same_buffers_) pair.coverage = {};
}

// A slice without parameters counts as compared.
void ParameterHashes::record(StageResult& result, const StepPair& pair) {
  if (result.difference) {
    result.difference->last_seen = last_equal(pair.coverage, *result.difference);
    return;
  }
  if (!pair.complete()) return;
  if (result.state == StageResult::State::kNotInEither) last_equal_.empty(pair.coverage);
  if (result.state != StageResult::State::kCompared) return;
  std::vector<std::uint64_t> hashed;
  for (const auto kind : {StateHash::Kind::kParameters, StateHash::Kind::kBuffers}) {
    std::ranges::copy(held_by(pair.a, kind), std::back_inserter(hashed));
  }
  last_equal_.equal(pair.step, pair.coverage, pair.groups.names_backward(hashed));
}

// A difference of all tensors may be in a tensor that slices left out.
std::optional<std::uint64_t> ParameterHashes::last_equal(const HashCoverage& coverage,
                                                         const Difference& found) const {
  return last_equal_.of(coverage.whole && compared_in_part_ ? HashCoverage{} : coverage,
                        found.layers);
}

}  // namespace presum::compare
