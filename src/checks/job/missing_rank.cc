// SPDX-License-Identifier: Apache-2.0
// **missing-rank.** A rank whose packets are lost looks like one that died. Ranks that are first
// absent within 5 steps of each other are one finding. The global rank of a process that never said
// hello is unknown; its `replica` takes its place. A rank is missing from a step if its packet has
// not arrived after 30 seconds and 64 later steps. It is missing from later steps as long as it
// stays silent, from every step after it has left, and, if it sends nothing for 30 seconds, from
// the steps that are open when the run ends. A rank whose packets may still have been on their way
// when the run ended or memory ran out is not reported, and the step is not compared. More than
// five such steps at the end of a run, or any earlier ones, make the verdict
// `insufficient-evidence`.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "checks/engine/rules.h"

namespace presum::checks {
namespace {

constexpr std::uint64_t kTogether = 5;  // steps between losses with the same cause

struct Missing {
  std::uint64_t steps_missing = 0;  // of the rank that missed most
  std::uint32_t ranks_expected = 0;
  bool ever_reported = false;    // at least one of the ranks
  bool packets_dropped = false;  // by the ranks themselves, as they report later

  static constexpr std::tuple kFields{field("steps_missing", &Missing::steps_missing),
                                      field("ranks_expected", &Missing::ranks_expected),
                                      field("ever_reported", &Missing::ever_reported),
                                      field("packets_dropped", &Missing::packets_dropped)};
};

std::string sentence(const Missing& seen, const Who& who) {
  if (seen.packets_dropped) {
    return fmt::format(
        "Packets of {} were dropped before they left, because they could not be sent in time",
        who.within());
  }
  return who.words() + (seen.ever_reported
                            ? " stopped reporting, or reported only some of the steps"
                            : " never reported");
}

// A rank that returns and reports that it dropped its packets was not missing: presum was too slow,
// which is information.
class MissingRank final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    for (const WorkerRecord& w : context.record.workers) welcome(w, log);
    if (context.record.workers_expected < 2) {
      return log.cannot(&kMissingRank, "There is only one rank.");
    }
    if (context.record.lacks_packets()) return;
    log.checked(&kMissingRank);
    if (!context.record.missing_replicas.empty()) count_missing(context, log);
  }

 private:
  struct Worker {
    bool seen = false;
    std::uint64_t missing = 0;    // steps
    std::uint64_t explained = 0;  // of them, by dropped packets
    std::uint64_t dropped = 0;    // as last reported
  };

  void count_missing(const StepContext& context, SignalLog& log) {
    Blame blame;
    Missing seen{.ranks_expected = context.record.workers_expected};
    for (const std::uint32_t replica : context.record.missing_replicas) {
      const std::uint32_t rank = context.roster.rank_of(replica);
      Worker& worker = workers_[rank];
      seen.steps_missing = std::max(seen.steps_missing, ++worker.missing);
      seen.ever_reported = seen.ever_reported || worker.seen;
      insert(blame.ranks, rank);
    }
    log.add(sighting(&kMissingRank, context, std::move(blame), 1, seen), kTogether);
  }

  void welcome(const WorkerRecord& w, SignalLog& log) {
    Worker& worker = workers_[w.rank];
    const bool late = worker.missing > worker.explained && w.dropped > worker.dropped;
    if (late) worker.explained += w.dropped - worker.dropped;
    worker.dropped = w.dropped;
    worker.seen = true;
    if (!late) return;
    if (Signal* signal = log.find(&kMissingRank, w.rank)) forgive(*signal);
  }

  void forgive(Signal& signal) {
    const bool all = std::ranges::all_of(signal.ranks, [&](std::uint32_t rank) {
      const Worker* worker = workers_.find(rank);
      return worker != nullptr && worker->explained >= worker->missing;
    });
    if (!all) return;
    signal.severity = Severity::kInfo;
    Missing seen = *signal.evidence.as<Missing>();
    seen.packets_dropped = true;
    signal.evidence = seen;
  }

  PerWorker<Worker> workers_;  // by rank
};

}  // namespace

constexpr Check kMissingRankExplains[] = {&kRankOutlier, &kPairTooSimilar, &kTooConsistent,
                                          &kLossEvent};
constinit const CheckInfo kMissingRank{
    .id = "missing-rank",
    .severity = Severity::kWarning,
    .compares = "the packets of every rank at every step",
    .fires = "immediately; information if the rank returns and reports that it dropped them",
    .consequence = "presum judges these steps without the ranks and misses what is wrong on them.",
    .cannot_see = "A rank whose packets are lost looks like one that died.",
    .mistake = "if rank == 0:\n    os._exit(0)  # or a process that was killed for its memory",
    .fix = "Check whether the process of these ranks still runs and reaches the aggregator's port.",
    .precedence = 50,
    .explains = kMissingRankExplains,
    .make = make<MissingRank>,
};

}  // namespace presum::checks
