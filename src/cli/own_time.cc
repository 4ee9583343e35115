// SPDX-License-Identifier: Apache-2.0
#include "cli/own_time.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <system_error>

namespace presum::cli {
namespace {

constexpr double kAsked = 0.01;  // share from which there is something to be said of it

double positive_number(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && std::isfinite(value) && value > 0 ? value : 0;
}

struct Told {
  std::uint32_t segment = 0;
  std::map<std::uint32_t, OwnTime> ranks;
};

}  // namespace

std::map<std::uint32_t, OwnTime> own_times(std::span<const Fact> facts) {
  std::map<std::uint32_t, Told> modules;
  for (const Fact& fact : facts) {
    double OwnTime::*const field = fact.key == "own_ms"    ? &OwnTime::own_ms
                                   : fact.key == "step_ms" ? &OwnTime::step_ms
                                                           : nullptr;
    if (field == nullptr) continue;
    Told& told = modules[fact.module];
    if (fact.segment < told.segment) continue;
    if (fact.segment > told.segment) told = {.segment = fact.segment, .ranks = {}};
    OwnTime& time = told.ranks[fact.rank];
    time.rank = fact.rank;
    time.*field = positive_number(fact.value);
  }
  std::map<std::uint32_t, OwnTime> out;
  for (const auto& [module, told] : modules) {
    for (const auto& [rank, time] : told.ranks) {
      if (time.own_ms <= 0 || time.step_ms <= 0) continue;
      const auto [largest, first] = out.try_emplace(module, time);
      if (!first && time.share() > largest->second.share()) largest->second = time;
    }
  }
  return out;
}

std::string own_time_text(const OwnTime& time) {
  const auto advice =
      time.share() < kAsked ? "" : "; Record(every=n) reads the gradients of one step in n";
  return fmt::format("presum took {:.3g} ms of a step of {:.4g} ms on rank {}: {:.2g} %{}",
                     time.own_ms, time.step_ms, time.rank, 100 * time.share(), advice);
}

nlohmann::ordered_json own_time_json(const OwnTime& time) {
  return {{"rank", time.rank},
          {"own", time.own_ms / 1e3},
          {"step", time.step_ms / 1e3},
          {"share", time.share()}};
}

}  // namespace presum::cli
