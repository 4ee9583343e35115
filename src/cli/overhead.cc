// SPDX-License-Identifier: Apache-2.0
#include "cli/overhead.h"

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
  std::map<std::uint32_t, Overhead> ranks;
};

}  // namespace

std::map<std::uint32_t, Overhead> overheads(std::span<const Fact> facts) {
  std::map<std::uint32_t, Told> modules;
  for (const Fact& fact : facts) {
    double Overhead::*const field = fact.key == "overhead_ms" ? &Overhead::overhead_ms
                                    : fact.key == "step_ms"   ? &Overhead::step_ms
                                                              : nullptr;
    if (field == nullptr) continue;
    Told& told = modules[fact.module];
    if (fact.segment < told.segment) continue;
    if (fact.segment > told.segment) told = {.segment = fact.segment, .ranks = {}};
    Overhead& time = told.ranks[fact.rank];
    time.rank = fact.rank;
    time.*field = positive_number(fact.value);
  }
  std::map<std::uint32_t, Overhead> out;
  for (const auto& [module, told] : modules) {
    for (const auto& [rank, time] : told.ranks) {
      if (time.overhead_ms <= 0 || time.step_ms <= 0) continue;
      const auto [largest, first] = out.try_emplace(module, time);
      if (!first && time.share() > largest->second.share()) largest->second = time;
    }
  }
  return out;
}

std::string overhead_text(const Overhead& time) {
  const auto advice =
      time.share() < kAsked ? "" : "; Record(every=n) reads the gradients of one step in n";
  return fmt::format("presum took {:.2f} ms of a step of {:.1f} ms on rank {}: {:.2f} %{}",
                     time.overhead_ms, time.step_ms, time.rank, 100 * time.share(), advice);
}

nlohmann::ordered_json overhead_json(const Overhead& time) {
  return {{"rank", time.rank},
          {"seconds", time.overhead_ms / 1e3},
          {"step", time.step_ms / 1e3},
          {"share", time.share()}};
}

}  // namespace presum::cli
