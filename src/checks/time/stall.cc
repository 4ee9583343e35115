// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "checks/engine/rules.h"
#include "presum/stall.h"

namespace presum::checks {
namespace {

constexpr std::size_t kStacks = 4;
constexpr std::size_t kFrames = 30;  // of each, the innermost

std::string title_of(const Stall& stall) {
  const char* end = stall.over ? ", and went on" : "";
  return fmt::format("The job stood still for {:.0f} s at step {}{}: {}", stall.seconds, stall.step,
                     end, stall.sentence);
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

// Of those that keep the others waiting; of all where they are not known.
Values evidence_of(const Stall& stall) {
  Values out{{"seconds", stall.seconds}};
  std::size_t told = 0;
  for (const StalledRank& r : stall.all) {
    const bool named = std::ranges::find(stall.ranks, r.rank) != stall.ranks.end();
    if ((!stall.ranks.empty() && !named) || r.last.stack.empty() || told++ >= kStacks) continue;
    out.emplace_back(fmt::format("rank_{}_stack", r.rank), on_one_line(r.last.stack));
    if (!r.last.recorder.empty()) {
      out.emplace_back(fmt::format("rank_{}_collectives", r.rank), r.last.recorder);
    }
  }
  return out;
}

class Stalls final : public Rule {
 public:
  void update(const StepContext& /*context*/, SignalLog& log) override {
    if (beats_) return log.checked(&kStall);
    log.cannot(&kStall, "No rank told where it stands: programs in C++ do not.");
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
  if (stall.over) {
    Signal* begun = log.find(&kStall, ranks.front());
    if (begun == nullptr || begun->key != stall.number) return;
    begun->severity = Severity::kWarning;
    begun->title = title_of(stall);
    begun->evidence.front().second = stall.seconds;
    return;
  }
  Signal signal = sighting({&kStall, stall.number}, stall.step, {ranks, everyone}, 0.9);
  if (stall.busy) signal.severity = Severity::kWarning;
  signal.title = title_of(stall);
  signal.evidence = evidence_of(stall);
  log.add(std::move(signal));
}

constexpr Check kStallExplains[] = {&kMissingRank};
constinit const CheckInfo kStall{
    .id = "stall",
    .severity = Severity::kCritical,
    .compares = "whether every rank goes on, by what each says of itself now and then",
    .fires = "after `stall_seconds`; a warning once it went on",
    .consequence = "The job stands still, and pays for every worker, until somebody ends it.",
    .cannot_see =
        "Where nothing sends signs of life: programs in C++, and ranks that have not attached yet.",
    .mistake =
        "if rank == 0:\n    dist.broadcast(stats, src=0)  # a collective that only one rank calls",
    .fix =
        "Look at the lines that the evidence names. Ranks at different points of the program have "
        "taken different branches: a condition on the rank, another number of batches, an "
        "exception that one of them swallowed.",
    .precedence = 360,
    .explains = kStallExplains,
    .of_time = true,
    .dates_itself = true,
    .make = make<Stalls>,
};

}  // namespace presum::checks
