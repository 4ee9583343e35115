// SPDX-License-Identifier: Apache-2.0
// What presum itself took of a rank's time, as its facts `own_ms` and `step_ms` tell.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "presum/run_log.h"

namespace presum::cli {

// Of the rank where it is the largest share.
struct OwnTime {
  std::uint32_t rank = 0;
  double own_ms = 0;   // on the training's threads, a step
  double step_ms = 0;  // all of that step
  double share() const { return own_ms / step_ms; }
};

// By module, of its last segment. Facts that are no such numbers are left out.
std::map<std::uint32_t, OwnTime> own_times(std::span<const Fact> facts);

// "presum took 2.4 ms of a step of 111 ms on rank 0: 2.2 %, ...".
std::string own_time_text(const OwnTime& time);
nlohmann::ordered_json own_time_json(const OwnTime& time);

}  // namespace presum::cli
