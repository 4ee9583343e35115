// SPDX-License-Identifier: Apache-2.0
// What could not be compared, and what was assumed, in sentences.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compare/pair.h"
#include "compare/timeline.h"

namespace presum::compare {

// How often each stage could not be compared.
struct Rest {
  static constexpr std::size_t kStates = 6;
  std::array<std::array<std::uint64_t, kStates>, kStages> states{};
  std::uint64_t lacking = 0;    // steps at which one run lacks a worker
  std::uint64_t positions = 0;  // steps of whose samples the positions alone were compared
  std::uint64_t skipping = 0;   // steps at which a worker left gradients out
  bool same_salt = true;

  void count(Stage stage, Looked::State state) {
    ++states[static_cast<std::size_t>(stage)][static_cast<std::size_t>(state)];
  }
};

void say_not_compared(const Rest& rest, ModelComparison& model);
// Workers that made an optimiser step less than those of the other run. `name` is A or B.
void say_fewer_updates(const char* name, std::uint64_t step,
                       const std::vector<std::uint32_t>& ranks, ModelComparison& model);
void say_unclosed(const char* name, std::span<const SegmentInfo> segments, ModelComparison& model);
void say_restarts(const char* name, const std::vector<Piece>& pieces, ModelComparison& model);

}  // namespace presum::compare
