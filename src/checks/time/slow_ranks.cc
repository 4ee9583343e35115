// SPDX-License-Identifier: Apache-2.0
// **stall, slow-node, uneven-batches, data-starved, slow-rank, periodic-stall, gradual-slowing.**
// [time.md](time.md) describes what they look at, from which difference on they report, and what
// they cannot see.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "checks/engine/rules.h"
#include "checks/time/phase_means.h"
#include "checks/time/slower.h"
#include "checks/time/token_times.h"

namespace presum::checks {
namespace {

using detect::Alarm;

constexpr double kLeastSeconds = 2e-3;     // extra time of a rank per step
constexpr double kLeastOfScatter = 1;      // times the scatter over steps
constexpr double kLeastWaited = 0.3;       // share of the extra time that the others visibly wait
constexpr std::uint64_t kLongEnough = 20;  // steps
constexpr double kStarvedShare = 0.3;
constexpr double kStarvedSeconds = 2e-2;
constexpr double kUnevenShare = 0.05;
constexpr double kUnevenCorrelation = 0.7;
constexpr double kUnevenSpread = 0.03;
constexpr std::uint64_t kUnevenSteps = 30;
constexpr std::size_t kRanksMax = 65'536;
constexpr double kConfidence = 0.8;

constexpr std::array kChecksHere = {&kSlowRank, &kSlowNode, &kDataStarved, &kUnevenBatches};
constexpr const char* kNotTimed =
    "Step times were not known on two ranks so far. They are never known for the first step, nor "
    "where FSDP trains on a device.";

struct SlowHost {
  std::string host;
  double longer_ms = 0;

  static constexpr std::tuple kFields{field("host", &SlowHost::host),
                                      field("longer_ms", &SlowHost::longer_ms)};
};

struct AllStarved {
  double data_ms = 0;
  double step_ms = 0;
  double job_share = 0;

  std::string phase() const { return to_string(Phase::kData); }
  static constexpr std::tuple kFields{
      field("phase", &AllStarved::phase), field("data_ms", &AllStarved::data_ms),
      field("step_ms", &AllStarved::step_ms), field("job_share", &AllStarved::job_share)};
};

struct LongestBatch {
  double correlation = 0;    // of times with tokens
  double tokens_spread = 0;  // standard deviation of the logarithm
  double waiting_ms = 0;
  double step_ms = 0;
  double job_share = 0;

  static constexpr std::tuple kFields{field("correlation", &LongestBatch::correlation),
                                      field("tokens_spread", &LongestBatch::tokens_spread),
                                      field("waiting_ms", &LongestBatch::waiting_ms),
                                      field("step_ms", &LongestBatch::step_ms),
                                      field("job_share", &LongestBatch::job_share)};
};

std::string sentence(const SlowHost& seen, const Who& who) {
  return fmt::format(
      "All ranks of host {} ({}) took about {:.3g} ms longer than the others in each step",
      seen.host, who.within(), seen.longer_ms);
}

std::string sentence(const AllStarved& seen, const Who& who) {
  return fmt::format(
      "{} spent {:.3g} ms of {:.3g} ms a step before the first forward pass, for data or what the "
      "loop does there: {:.0f}% of the job",
      who.words(), seen.data_ms, seen.step_ms, 100 * seen.job_share);
}

std::string sentence(const LongestBatch& seen, const Who& who) {
  return fmt::format(
      "{} waited {:.3g} ms of {:.3g} ms a step for the rank with the longest batch: {:.0f}% of the "
      "job; long batches, not a slow machine",
      who.words(), seen.waiting_ms, seen.step_ms, 100 * seen.job_share);
}

// A finding about how the job as a whole spent its time over that many steps.
Signal of_everyone(Check check, const StepRecord& record, std::uint64_t steps, Evidence seen) {
  Signal signal = sighting(check, record.step, of_all(record), kConfidence, std::move(seen));
  signal.first_step -= std::min(signal.first_step, steps);
  signal.severity = Severity::kInfo;
  return signal;
}

// Which rank makes the others wait, in which phase, and what it costs: docs/time.md.
class SlowRanks final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    const StepRecord& record = context.record;
    const bool timed = all_timed(record);
    if (!timed && context.times.watched == 0) {
      for (const Check check : kChecksHere) log.cannot(check, kNotTimed);
      return;
    }
    if (timed) {
      means_.see(record);
      tokens_.see(record);
      for (const Check check : {&kSlowRank, &kSlowNode, &kDataStarved}) {
        log.checked(check);
      }
      if (tokens_.knows()) {
        log.checked(&kUnevenBatches);
      } else {
        log.cannot(&kUnevenBatches, "Token counts are unknown.");
      }
    }
    for (const Alarm& alarm : context.times.raised) report(context, alarm, log);
    for (const Alarm& alarm : context.times.lasting) {
      const std::uint32_t rank = context.roster.rank_of(alarm.replicas.front());
      const auto said = said_.find(rank);
      if (said == said_.end()) continue;
      log.prolong(said->second, key_of(Slower{}), {rank}, record.step);
      if (said->second == &kUnevenBatches) continue;
      log.prolong(&kSlowNode, key_of(SlowHost{}), {rank}, record.step);
    }
    if (!timed) return;
    watch_data(context, log);
    watch_batches(context, log);
  }

 private:
  void report(const StepContext& context, const Alarm& alarm, SignalLog& log) {
    const std::uint32_t replica = alarm.replicas.front();
    if (!means_.knows(replica) || said_.size() >= kRanksMax) return;
    const BesideOthers times = means_.since(replica, alarm.first_step);
    const double longer = times.own;
    const double waited = -times.waits;
    const auto [typical, scatter] = means_.typical(replica, alarm.first_step);
    // On a machine that is busy with other work, ranks differ for a while, within their noise.
    if (typical < kLeastSeconds || typical < kLeastOfScatter * scatter) return;
    // If no rank visibly waits for it, its long own time may itself be a wait.
    if (longer < kLeastSeconds || waited < kLeastWaited * longer) return;
    const Causes causes = causes_of(times);
    const bool queued = causes.only_queued();
    // A queue that is only the machine's noise is left to the alarm that watches queues.
    if (queued && alarm.statistic == detect::Statistic::kOwnTime) return;
    if (queued && longer < kLeastQueued) return;
    const bool tokens = tokens_.explained(replica) >= kMostOfIt * longer;
    const Check check = tokens                                           ? &kUnevenBatches
                        : queued || slowest_phase(times) != Phase::kData ? &kSlowRank
                                                                         : &kDataStarved;
    const std::uint32_t rank = context.roster.rank_of(replica);
    Slower seen = slower(times, causes, alarm.evidence);
    if (tokens) {
      seen.by = Slower::By::kTokens;
      seen.longer_by_tokens_ms = 1e3 * tokens_.explained(replica);
      seen.correlation = tokens_.correlation();
    }
    Signal signal = sighting(check, alarm.step, {{rank}, false}, kConfidence, std::move(seen));
    signal.first_step = std::min(alarm.first_step, alarm.step);
    signal.workers = context.record.workers_expected;
    signal.certain_step = alarm.step;
    if (check == &kSlowRank) signal.remedy = remedy_of(causes);
    // The program does not cause a queue.
    if (queued || tokens) signal.severity = Severity::kInfo;
    said_[rank] = check;
    log.add(signal);
    if (!tokens) report_node(context, signal, log);
  }

  // All ranks of a host are slow, and it is not the only host.
  void report_node(const StepContext& context, const Signal& slow, SignalLog& log) {
    const auto host = context.roster.hosts(slow.ranks);
    const Ranks all = all_ranks(context.record);
    if (host.size() != 1 || context.roster.hosts(all).size() < 2) return;
    Ranks here;
    for (const std::uint32_t rank : all) {
      if (context.roster.hosts({rank}) == host) here.push_back(rank);
    }
    const bool all_slow = std::ranges::all_of(here, [&](std::uint32_t rank) {
      const auto said = said_.find(rank);
      return said != said_.end() && said->second != &kUnevenBatches;
    });
    if (!all_slow || here.size() < 2) return;
    double longer = 0;
    for (const WorkerRecord& w : context.record.workers) {
      if (std::ranges::binary_search(here, w.rank) && means_.knows(w.replica)) {
        longer += means_.since(w.replica, slow.first_step).own / static_cast<double>(here.size());
      }
    }
    Signal node = sighting(&kSlowNode, slow.last_step, {here, false}, kConfidence,
                           SlowHost{host.front(), 1e3 * longer});
    node.first_step = slow.first_step;
    node.certain_step = slow.last_step;
    log.add(std::move(node));
  }

  void watch_data(const StepContext& context, SignalLog& log) const {
    const double data = means_.data();
    const double step = means_.step_seconds();
    if (means_.steps() < kLongEnough || data < kStarvedSeconds || data < kStarvedShare * step)
      return;
    const bool one =
        std::ranges::any_of(said_, [](const auto& s) { return s.second == &kDataStarved; });
    if (one) return;  // the others wait for that rank, not for data
    log.add(of_everyone(
        &kDataStarved, context.record, kLongEnough,
        AllStarved{.data_ms = 1e3 * data, .step_ms = 1e3 * step, .job_share = data / step}));
  }

  void watch_batches(const StepContext& context, SignalLog& log) const {
    const double waiting = means_.waiting();
    const double step = means_.step_seconds();
    if (tokens_.steps() < kUnevenSteps || tokens_.spread() < kUnevenSpread) return;
    if (tokens_.correlation() < kUnevenCorrelation || waiting < kUnevenShare * step) return;
    log.add(of_everyone(&kUnevenBatches, context.record, kUnevenSteps,
                        LongestBatch{.correlation = tokens_.correlation(),
                                     .tokens_spread = tokens_.spread(),
                                     .waiting_ms = 1e3 * waiting,
                                     .step_ms = 1e3 * step,
                                     .job_share = waiting / step}));
  }

  PhaseMeans means_;
  TokenTimes tokens_;
  std::map<std::uint32_t, Check> said_;  // by rank; at most 65,536
};

}  // namespace

constinit const CheckInfo kSlowRank{
    .id = "slow-rank",
    .severity = Severity::kWarning,
    .compares = "each rank's own time, against the others'",
    .fires = "with the alarm; waiting for a processor is information",
    .consequence = "All ranks are as slow as this one.",
    .cannot_see =
        "A job in which all ranks are equally slow; waits in collectives that no hook shows; FSDP "
        "on a device.",
    .mistake = "if rank == 0:\n    writer.add_histogram(\"grad\", grad, step)  # in every step",
    .fix =
        "Check what the named phase does on this rank alone: work behind `if rank == 0`, logging, "
        "another device or clock, a shared processor.",
    .precedence = 400,
    .rests_on = CheckInfo::RestsOn::kTimes,
    .compares_ranks = true,
    .of_time = true,
    .make = make<SlowRanks>,
};

constexpr Check kSlowNodeExplains[] = {&kSlowRank, &kDataStarved};
constinit const CheckInfo kSlowNode{
    .id = "slow-node",
    .severity = Severity::kWarning,
    .compares = "the own time of all ranks of a host, against that of other hosts",
    .fires = "with the alarm of the last of its ranks",
    .consequence = "All other hosts wait for this one in every step.",
    .cannot_see =
        "A job on one host, or with one rank per host: these ranks are reported as slow ranks.",
    .mistake = "nvidia-smi -q -d PERFORMANCE  # clocks are throttled on one host",
    .fix =
        "Check the host: clocks and power limits of its accelerators, other jobs, its disk and "
        "network. Replace it if nothing in the program explains the difference.",
    .precedence = 370,
    .explains = kSlowNodeExplains,
    .rests_on = CheckInfo::RestsOn::kTimes,
    .compares_ranks = true,
    .of_time = true,
    .make = make<SlowRanks>,
};

constinit const CheckInfo kDataStarved{
    .id = "data-starved",
    .severity = Severity::kWarning,
    .compares = "the time between the end of a step and its first forward pass",
    .fires = "with the alarm; if all ranks are affected, after 20 steps as information",
    .consequence = "Accelerators wait for data instead of computing.",
    .cannot_see =
        "Other work that a program does between two steps, except evaluation: it looks the same as "
        "loading.",
    .mistake = "DataLoader(data, num_workers=0)  # tokenizes in the training process",
    .fix =
        "Load ahead (`num_workers`, `prefetch_factor`, `pin_memory`), move work out of the loader, "
        "and check whether the named rank reads from a different disk than the others.",
    .precedence = 390,
    .rests_on = CheckInfo::RestsOn::kTimes,
    .compares_ranks = true,
    .of_time = true,
    .make = make<SlowRanks>,
};

constexpr Check kUnevenBatchesExplains[] = {&kSlowRank};
constinit const CheckInfo kUnevenBatches{
    .id = "uneven-batches",
    .severity = Severity::kInfo,
    .compares = "whether own times follow the token counts of batches",
    .fires = "after 30 steps; for a single rank, with its alarm",
    .consequence = "In every step, all ranks wait for the one with the longest batch.",
    .cannot_see = "Work that does not follow target tokens; unknown token counts.",
    .mistake =
        "loader = DataLoader(data, batch_size=8, shuffle=True)  # samples of 20 to 2,000 tokens",
    .fix =
        "Form batches by their tokens rather than by their number of samples: sort by length into "
        "global batches, or pack.",
    .precedence = 380,
    .explains = kUnevenBatchesExplains,
    .rests_on = CheckInfo::RestsOn::kTimes,
    .compares_ranks = true,
    .of_time = true,
    .make = make<SlowRanks>,
};

}  // namespace presum::checks
