// SPDX-License-Identifier: Apache-2.0
// Where the time of a rank's step goes (docs/time.md). Plain values in seconds of the rank's own
// monotonic clock. Clocks of two ranks are never compared. NaN means "unknown".
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace presum {

// What a rank does in a step. All phases but kReduction are own time: they exclude waiting for
// other ranks.
enum class Phase : std::uint8_t {
  // From the end of the previous step to the first forward pass, if no evaluation is between them.
  kData = 0,
  kForward = 1,    // from a training forward pass, including the loss, to its backward pass
  kBackward = 2,   // until the rank's last own gradient
  kOptimizer = 3,  // the optimizer's step
  kRest = 4,       // everything between these: clipping, logging, evaluation, checkpoints
  kReduction = 5,  // waiting in reductions and other collectives
};
inline constexpr std::size_t kPhaseCount = 6;
const char* to_string(Phase phase);  // "data", "forward", ...

inline constexpr std::size_t kMicroTimesMax = 64;

// Times of one micro-batch in seconds, without waiting for other ranks.
struct MicroBatchTimes {
  float data = std::numeric_limits<float>::quiet_NaN();
  float forward = std::numeric_limits<float>::quiet_NaN();
  float backward = std::numeric_limits<float>::quiet_NaN();
  bool operator==(const MicroBatchTimes&) const = default;
};

// Times of one rank's step. Either all phases are known or none is.
struct StepTimes {
  std::array<double, kPhaseCount> seconds = unknown();  // indexed by Phase
  // The training thread's time on a processor during the step, and its time runnable without one
  // (Linux only). Neither covers time on a device.
  double processor = std::numeric_limits<double>::quiet_NaN();
  double queued = std::numeric_limits<double>::quiet_NaN();
  bool on_device = false;  // measured with the device's clock
  // Filled if there is more than one; at most the first kMicroTimesMax.
  std::vector<MicroBatchTimes> micro;

  double of(Phase phase) const { return seconds[static_cast<std::size_t>(phase)]; }
  double& of(Phase phase) { return seconds[static_cast<std::size_t>(phase)]; }
  bool known() const { return std::isfinite(total()); }
  // The duration of the step, and the rank's own part of it; NaN if unknown.
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
