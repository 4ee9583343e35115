// SPDX-License-Identifier: Apache-2.0
#include "compare/hashes.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

namespace presum::compare {
namespace {

// The groups of a step's states.
std::set<std::uint64_t> held_by(const StepRecord& step, StateHash::Of of) {
  std::set<std::uint64_t> out;
  for (const WorkerRecord& w : step.workers) {
    for (const StateHash& s : w.states) {
      if (s.of == of) out.insert(s.group);
    }
  }
  return out;
}

}  // namespace

Hashed hashed_of(const Walk::At& a, std::uint64_t every_a, const Walk::At& b,
                 std::uint64_t every_b) {
  const std::uint64_t x = a.record->step;
  const std::uint64_t y = b.record->step;
  if (x == 0 || y == 0) return {.alike = x == y, .whole = x == y};
  if (every_a == 0 || every_b == 0) return {.alike = x == y && every_a == every_b};
  if (x / every_a % kSlices != y / every_b % kSlices) return {};
  return {.alike = true, .slice = x / every_a % kSlices};
}

void Hashes::number(StepPair& pair) {
  using Of = StateHash::Of;
  const auto same = [&](Of of) { return held_by(pair.a, of) == held_by(pair.b, of); };
  if (pair.hashed.whole) {
    same_parameters_ = same(Of::kParameters);
    same_buffers_ = same(Of::kBuffers);
    return;
  }
  pair.same_parameters = same_parameters_;
  pair.same_buffers = same_buffers_;
  seen_in_part_ = seen_in_part_ || same_parameters_ != same_buffers_;
  if (!same_parameters_ && !same_buffers_) pair.hashed = {};
}

// A slice without parameters has been seen as well.
void Hashes::note(Looked& looked, const StepPair& pair, const Layers& layers) {
  if (looked.difference) {
    looked.difference->last_seen = seen_before(pair.hashed, *looked.difference);
    return;
  }
  if (!pair.complete()) return;
  if (looked.state == Looked::State::kNotInEither) seen_.empty(pair.hashed);
  if (looked.state != Looked::State::kCompared) return;
  std::vector<std::uint64_t> groups;
  for (const auto of : {StateHash::Of::kParameters, StateHash::Of::kBuffers}) {
    std::ranges::copy(held_by(pair.a, of), std::back_inserter(groups));
  }
  seen_.equal(pair.step, pair.hashed, layers.backward(groups));
}

// A difference of all tensors may be one of those that slices left out.
std::optional<std::uint64_t> Hashes::seen_before(const Hashed& hashed,
                                                 const Difference& found) const {
  return seen_.of(hashed.whole && seen_in_part_ ? Hashed{} : hashed, found.layers);
}

}  // namespace presum::compare
