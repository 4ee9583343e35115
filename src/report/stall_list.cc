// SPDX-License-Identifier: Apache-2.0
#include "report/stall_list.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace presum::report {
namespace {

constexpr std::size_t kStallsMax = 20;
constexpr std::size_t kPlacesMax = 16;   // per stall; further ranks are only counted
constexpr std::size_t kStackMax = 4000;  // bytes; a longer stack ends in dots

std::string stack_of(const StalledRank& rank) {
  const std::string& stack = rank.last.stack;
  return stack.size() <= kStackMax ? stack : stack.substr(0, kStackMax) + "\n...";
}

// Ranks that reported the same place are one entry.
Json places_json(const Stall& stall) {
  using Place = std::tuple<bool, std::string, std::string, std::string>;
  std::map<Place, std::vector<std::uint32_t>> ranks_at;
  for (const StalledRank& r : stall.all) {
    const bool named = std::ranges::find(stall.ranks, r.rank) != stall.ranks.end();
    ranks_at[{!named, r.where, r.last.site, stack_of(r)}].push_back(r.rank);
  }
  Json places = Json::array();
  std::size_t left = 0;
  for (const auto& [place, ranks] : ranks_at) {
    const auto& [others, where, site, stack] = place;
    if (places.size() == kPlacesMax) {
      left += ranks.size();
      continue;
    }
    places.push_back({{"ranks", ranks},
                      {"awaited", !others},
                      {"where", where},
                      {"site", site},
                      {"stack", stack}});
  }
  return {{"places", std::move(places)}, {"ranks_left", left}};
}

Json stall_json(const StallRecord& stall) {
  Json out = {{"segment", stall.segment},
              {"step", stall.step},
              {"seconds", number(stall.seconds, kTableDigits)},
              {"end", stall.over ? "went-on" : "open"},
              {"harmless", stall.harmless},
              {"sentence", stall.sentence}};
  out.update(places_json(stall));
  return out;
}

}  // namespace

Json stalls_json(std::span<const StallRecord> stalls) {
  Json list = Json::array();
  for (const bool harmless : {false, true}) {
    for (const StallRecord& stall : stalls) {
      if (stall.harmless != harmless || list.size() == kStallsMax) continue;
      list.push_back(stall_json(stall));
    }
  }
  return {{"list", std::move(list)}, {"count", stalls.size()}};
}

}  // namespace presum::report
