// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "checks/engine/per_worker.h"
#include "presum/step_record.h"

namespace presum::checks {

// Passes that add to a gradient after its reduction and before the optimizer uses it. Not
// synchronized.
class LatePasses {
 public:
  // REQUIRES: ascending steps.
  void see(const StepRecord& record) {
    for (const WorkerRecord& w : record.workers) {
      State& state = states_[w.replica];
      const bool late = state.kept && !w.number.is_reduced() && w.use == StepUse::kUsed;
      state = {w.number.is_reduced() && w.use == StepUse::kKept, w.micro_batches,
               late ? state.micro_batches : 0};
    }
  }
  // The micro-batches of the reduced gradient that this record's passes have added to; 0 if they
  // have added to none.
  std::uint64_t reduced_before(const WorkerRecord& worker) const {
    const State* state = states_.find(worker.replica);
    return state == nullptr ? 0 : state->added_to;
  }
  // The same, and neither a sample nor a target of these passes was seen: as of a penalty on the
  // weights.
  bool adds_no_data(const WorkerRecord& worker) const {
    const bool data = worker.samples.rows > 0 || worker.tokens > 0 ||
                      std::ranges::any_of(worker.micro, [](const MicroBatch& m) {
                        return m.tokens > 0 || m.targets > 0;
                      });
    return reduced_before(worker) > 0 && !data;
  }

 private:
  struct State {
    bool kept = false;  // it is reduced, and later passes may add to it
    std::uint64_t micro_batches = 0;
    std::uint64_t added_to = 0;
  };
  PerWorker<State> states_;
};

}  // namespace presum::checks
