// SPDX-License-Identifier: Apache-2.0
// missing-worker.
#pragma once

#include <cstdint>

#include "diagnose/step_context.h"

namespace presum::diagnose {

// A worker that comes back and says that it dropped its packets was not missing: presum was too
// slow, which is information.
class Presence {
 public:
  void update(const StepContext& context, SignalLog& log);

 private:
  struct Worker {
    bool seen = false;
    std::uint64_t missing = 0;    // steps
    std::uint64_t explained = 0;  // of them, by packets that it dropped
    std::uint64_t dropped = 0;    // as it last said
  };
  void count_missing(const StepContext& context, SignalLog& log);
  void welcome(const WorkerRecord& worker, SignalLog& log);
  void forgive(Signal& signal);

  PerWorker<Worker> workers_;  // by rank
};

}  // namespace presum::diagnose
