// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checks/engine/rules.h"
#include "presum/stall.h"

namespace presum::checks {
namespace {

constexpr std::size_t kStacks = 4;
constexpr std::size_t kFrames = 30;  // innermost frames of each stack

struct StoodStill {
  using ByRank = std::vector<std::pair<std::string, std::string>>;  // "rank 3" and a text

  std::uint32_t number = 0;  // counts the job's stalls
  double seconds = 0;
  std::uint64_t step = 0;
  bool went_on = false;
  std::string where;   // a sentence on the position of the ranks
  ByRank stacks;       // of the ranks that keep the others waiting; of all if these are unknown
  ByRank collectives;  // the last collectives of the same ranks

  std::uint64_t key() const { return number; }
  static constexpr std::tuple kFields{
      field("seconds", &StoodStill::seconds), field("step", &StoodStill::step),
      field("went_on", &StoodStill::went_on), field("where", &StoodStill::where),
      field("stacks", &StoodStill::stacks),   field("collectives", &StoodStill::collectives)};
};

std::string sentence(const StoodStill& seen, const Who& /*who*/) {
  return fmt::format("The job stalled for {:.0f} s at step {}{}: {}", seen.seconds, seen.step,
                     seen.went_on ? ", then continued" : "", seen.where);
}

std::string on_one_line(std::string_view stack) {
  std::string out;
  std::size_t frames = 1;
  for (const char c : stack) {
    if (c != '\n') {
      out += c;
    } else if (++frames > kFrames) {
      return out + " < ...";
    } else {
      out += " < ";
    }
  }
  return out;
}

StoodStill seen_of(const Stall& stall) {
  return {.number = stall.number,
          .seconds = stall.seconds,
          .step = stall.step,
          .went_on = stall.over,
          .where = stall.sentence};
}

void add_stacks(StoodStill& seen, const Stall& stall) {
  for (const StalledRank& r : stall.all) {
    const bool named = std::ranges::find(stall.ranks, r.rank) != stall.ranks.end();
    if ((!stall.ranks.empty() && !named) || r.last.stack.empty()) continue;
    if (seen.stacks.size() == kStacks) return;
    const std::string rank = fmt::format("rank {}", r.rank);
    seen.stacks.emplace_back(rank, on_one_line(r.last.stack));
    if (!r.last.recorder.empty()) seen.collectives.emplace_back(rank, r.last.recorder);
  }
}

class Stalls final : public Rule {
 public:
  void update(const StepContext& /*context*/, SignalLog& log) override {
    if (beats_) return log.checked(&kStall);
    log.cannot(&kStall, "No rank reported its position; C++ programs do not report it.");
  }

  void beats() override { beats_ = true; }

 private:
  bool beats_ = false;
};

}  // namespace

void report_stall(const Stall& stall, SignalLog& log) {
  if (stall.harmless) return;
  Ranks ranks = stall.ranks;
  const bool everyone = ranks.empty();
  if (everyone) {
    for (const StalledRank& r : stall.all) insert(ranks, r.rank);
  }
  if (ranks.empty()) return;
  StoodStill seen = seen_of(stall);
  if (stall.over) {
    Signal* begun = log.find(&kStall, ranks.front());
    const StoodStill* before = begun == nullptr ? nullptr : begun->evidence.as<StoodStill>();
    if (before == nullptr || before->number != stall.number) return;
    seen.stacks = before->stacks;
    seen.collectives = before->collectives;
    begun->severity = Severity::kWarning;
    begun->evidence = std::move(seen);
    return;
  }
  add_stacks(seen, stall);
  Signal signal = sighting(&kStall, stall.step, {ranks, everyone}, 0.9, std::move(seen));
  if (stall.busy) signal.severity = Severity::kWarning;
  log.add(std::move(signal));
}

constexpr Check kStallExplains[] = {&kMissingRank};
constinit const CheckInfo kStall{
    .id = "stall",
    .severity = Severity::kCritical,
    .compares = "whether every rank makes progress, by the signs of life that each sends",
    .fires = "after `stall_seconds`; a warning once the job continues",
    .consequence = "The job is stalled, and holds every rank until someone ends it.",
    .cannot_see =
        "Processes that send no signs of life: C++ programs, and ranks that have not attached yet.",
    .mistake =
        "if rank == 0:\n    dist.broadcast(stats, src=0)  # a collective that only one rank calls",
    .fix =
        "Look at the lines in the evidence. Ranks at different points of the program took "
        "different branches: a condition on the rank, a different number of batches, an exception "
        "that one of them swallowed.",
    .precedence = 360,
    .explains = kStallExplains,
    .of_time = true,
    .dates_itself = true,
    .make = make<Stalls>,
};

}  // namespace presum::checks
