// SPDX-License-Identifier: Apache-2.0
// What presum itself took of a rank's time, as its facts `overhead_ms` and `step_ms` tell.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "presum/run_log.h"

namespace presum::cli {

// Of the rank where it is the largest share.
struct Overhead {
  std::uint32_t rank = 0;
  double overhead_ms = 0;  // on the training's threads, a step
  double step_ms = 0;      // all of that step
  double share() const { return overhead_ms / step_ms; }
};

// By module, of its last segment that was long enough to tell. Facts that are no such numbers are
// left out.
std::map<std::uint32_t, Overhead> overheads(std::span<const Fact> facts);

// "presum took 2.4 ms of a step of 111 ms on rank 0: 2.2 %, ...".
std::string overhead_text(const Overhead& time);
nlohmann::ordered_json overhead_json(const Overhead& time);

}  // namespace presum::cli
