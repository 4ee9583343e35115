// SPDX-License-Identifier: Apache-2.0
// Where the time of a worker's step goes: docs/time.md. Plain values in seconds of the worker's own
// clock, which is monotonic; clocks of two workers are never compared. NaN means "not known".
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace presum {

// What a worker does in a step. All but kReduction is its own time: that is, without what it waits
// for other workers.
enum class Phase : std::uint8_t {
  kData = 0,       // from the end of the step before to the first forward pass, if nobody evaluated
  kForward = 1,    // from a training forward pass to its backward pass, with the loss
  kBackward = 2,   // until this worker's last own gradient
  kOptimizer = 3,  // the optimizer's step
  kRest = 4,       // whatever lies between these: clipping, logging, evaluation, checkpoints
  kReduction = 5,  // waiting in reductions and other collectives
};
inline constexpr std::size_t kPhaseCount = 6;
const char* to_string(Phase phase);  // "data", "forward", ...

inline constexpr std::size_t kMicroTimesMax = 64;

// Of one micro-batch, in seconds, each without what it waited for others.
struct MicroBatchTimes {
  float data = std::numeric_limits<float>::quiet_NaN();
  float forward = std::numeric_limits<float>::quiet_NaN();
  float backward = std::numeric_limits<float>::quiet_NaN();
  bool operator==(const MicroBatchTimes&) const = default;
};

// Of one step of one worker. Either all phases are known or none is.
struct StepTimes {
  std::array<double, kPhaseCount> seconds = unknown();  // by Phase
  // Of the thread that trains, over the step: on a processor; and ready to run, with none free
  // (Linux alone tells). Of a device's times neither says anything.
  double processor = std::numeric_limits<double>::quiet_NaN();
  double queued = std::numeric_limits<double>::quiet_NaN();
  bool on_device = false;              // by the device's clock
  std::vector<MicroBatchTimes> micro;  // where there are several, the first kMicroTimesMax

  double of(Phase phase) const { return seconds[static_cast<std::size_t>(phase)]; }
  double& of(Phase phase) { return seconds[static_cast<std::size_t>(phase)]; }
  bool known() const { return std::isfinite(total()); }
  // The whole step, and what of it is the worker's own; NaN where not known.
  double total() const {
    double sum = 0;
    for (const double s : seconds) sum += s;
    return sum;
  }
  double own() const { return total() - of(Phase::kReduction); }

 private:
  static constexpr std::array<double, kPhaseCount> unknown() {
    std::array<double, kPhaseCount> out{};
    out.fill(std::numeric_limits<double>::quiet_NaN());
    return out;
  }
};

}  // namespace presum
