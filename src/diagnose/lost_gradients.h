// SPDX-License-Identifier: Apache-2.0
// lost-gradients.
#pragma once

#include <array>
#include <cstdint>

#include "diagnose/step_context.h"

namespace presum::diagnose {

// Micro-batches whose loss was computed and whose gradient no optimiser step gets, or gets again.
class LostGradients {
 public:
  void update(const StepContext& context, SignalLog& log);

 private:
  // Some way to lose them, as it was seen so far.
  struct Habit {
    std::uint64_t first_step = 0;
    std::uint64_t looks = 0;  // since then
    std::uint64_t seen = 0;
  };
  Signal signal_of(std::size_t way, const StepContext& context, Blame who) const;
  bool is_habit(std::size_t way, const StepContext& context, const Ranks& who);
  void lost(const StepContext& context, SignalLog& log);
  void changed(const StepContext& context, SignalLog& log);
  void left_over(const StepContext& context, SignalLog& log);

  std::array<Habit, 4> habits_{};
};

}  // namespace presum::diagnose
