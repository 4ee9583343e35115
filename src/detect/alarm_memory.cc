// SPDX-License-Identifier: Apache-2.0
#include "detect/alarm_memory.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace presum::detect {
namespace {

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
constexpr double kClearEffect = 2;  // standard deviations; larger effects need no shorter window
// Limit on one step, so that a single step does not make an alarm last.
constexpr double kLargest = 4;

}  // namespace

AlarmMemory::AlarmMemory(std::size_t workers)
    : blamed_until_(workers, 0), raised_at_(workers * 2, kNever) {}

void AlarmMemory::blame(std::size_t worker, std::uint64_t step) {
  blamed_until_[worker] = step + kBlameSteps;
}

void AlarmMemory::raised(std::uint32_t worker, Side side, std::uint64_t step, double effect) {
  raised_at_[std::size_t{worker} * 2 + static_cast<std::size_t>(side)] = step;
  const double shown = std::clamp(std::abs(effect), kLeastEffect, kClearEffect);
  std::erase_if(raised_, [&](const Raised& r) { return r.worker == worker && r.side == side; });
  raised_.push_back({worker, side, shown, shown});
}

bool AlarmMemory::cooling(std::size_t worker, Side side, std::uint64_t step,
                          std::uint64_t cooldown) const {
  const std::uint64_t at = raised_at_[worker * 2 + static_cast<std::size_t>(side)];
  return at != kNever && step - at <= cooldown;
}

// With this rate, the running mean falls below half of the effect by chance only if it is 2.5 of
// its standard deviations off.
void AlarmMemory::follow(std::span<const std::optional<Reading>> readings) {
  for (Raised& r : raised_) {
    const auto& shown = readings[r.worker];
    if (!shown) continue;
    const double effect = r.side == Side::kHigh ? shown->effect : -shown->effect;
    const double rate = 0.08 * r.effect * r.effect;
    r.mean += rate * (std::clamp(effect, -kLargest, kLargest) - r.mean);
  }
  std::erase_if(raised_, [](const Raised& r) { return r.mean < r.effect / 2; });
}

std::vector<std::pair<std::uint32_t, Side>> AlarmMemory::lasting() const {
  std::vector<std::pair<std::uint32_t, Side>> out;
  for (const Raised& r : raised_) out.emplace_back(r.worker, r.side);
  return out;
}

void AlarmMemory::restart() {
  std::ranges::fill(blamed_until_, 0);
  std::ranges::fill(raised_at_, kNever);
  raised_.clear();
}

}  // namespace presum::detect
