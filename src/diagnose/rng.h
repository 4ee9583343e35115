// SPDX-License-Identifier: Apache-2.0
// shared-rng.
#pragma once

#include <array>
#include <cstdint>

#include "diagnose/step_context.h"

namespace presum::diagnose {

// Equal seeds on all ranks are the normal case. They matter where a generator is in use: it moves
// from step to step, or dropout is active.
class Rng {
 public:
  void update(const StepContext& context, SignalLog& log);

 private:
  struct Worker {
    std::array<std::uint64_t, 4> state{};
    std::array<std::uint32_t, 4> moves{};  // records in a row in which it moved
  };
  void follow(const WorkerRecord& worker);
  Split in_use(const StepContext& context, std::size_t generator) const;

  PerWorker<Worker> workers_;
};

}  // namespace presum::diagnose
