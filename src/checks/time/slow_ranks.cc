// SPDX-License-Identifier: Apache-2.0
// **stall, slow-node, uneven-batches, data-starved, slow-rank, periodic-stall, gradual-slowing.**
// See [time.md](time.md) for what they look at, from where on a difference counts, and what they
// cannot see.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "checks/engine/rules.h"
#include "checks/time/phase_means.h"

namespace presum::checks {
namespace {

using detect::Alarm;

constexpr double kLeastSeconds = 2e-3;     // a step that a worker takes longer
constexpr double kLeastQueued = 2e-2;      // where it is a processor that it waits for
constexpr double kLeastOfScatter = 1;      // of these over steps
constexpr double kLeastWaited = 0.3;       // of these, that the others are seen to wait
constexpr double kMostOfIt = 0.5;          // a share that names the cause
constexpr double kNearlyAll = 0.9;         // a share that names the phase alone
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
    "The times of a step were not known on two ranks so far: the first step's never are, nor "
    "where FSDP trains on a device.";

double milliseconds(double seconds) { return std::round(seconds * 1e5) / 100; }

std::string in_phase(Phase phase) {
  switch (phase) {
    case Phase::kData:
      return "before its first forward pass, for data or what the loop does there";
    case Phase::kForward:
      return "in its forward pass and loss";
    case Phase::kBackward:
      return "in its backward pass";
    case Phase::kOptimizer:
      return "in its optimiser's step";
    case Phase::kRest:
    case Phase::kReduction:
      break;
  }
  return "between passes and the optimiser's step";
}

Phase slowest_phase(const BesideOthers& times) {
  std::size_t most = 0;
  for (std::size_t p = 0; p < kPhaseCount; ++p) {
    const bool own = static_cast<Phase>(p) != Phase::kReduction;
    if (own && times.phases[p] > times.phases[most]) most = p;
  }
  return static_cast<Phase>(most);
}

std::string in_phases(const BesideOthers& times) {
  const Phase phase = slowest_phase(times);
  const double share = times.phases[static_cast<std::size_t>(phase)] / times.own;
  const char* much = share >= kNearlyAll  ? ""
                     : share >= kMostOfIt ? "mostly "
                                          : "in several phases, the most ";
  return much + in_phase(phase);
}

// Which kinds of time make a worker's own time longer than the others', each by half of it or more,
// as its thread's clocks tell. None where they do not.
struct Causes {
  bool computes = false;
  bool queued = false;   // for a processor, beyond what its computing costs at the others' rate
  bool blocked = false;  // neither
  bool only_queued() const { return queued && !computes; }
};

Causes causes_of(const BesideOthers& times) {
  const auto& [processor, queued] = times.thread;
  const auto& [others_processor, others_queued] = times.others_thread;
  const double least = kMostOfIt * times.own;
  const double computes = processor - others_processor;
  if (!(processor > 0 && others_processor > 0)) return {};
  // Who computes longer is queued longer: what it would save by computing as long as the others.
  const double with_its_queue = computes * (1 + queued / processor);
  const double queued_beyond = queued - processor * others_queued / others_processor;
  const double idle = times.others_own + times.own - processor - queued;
  const double idle_longer = times.own - computes - (queued - others_queued);
  return {.computes = with_its_queue >= least,
          .queued = queued_beyond >= least,
          .blocked = std::min(idle, idle_longer) >= least};
}

double queued_longer(const BesideOthers& times) {
  return times.thread.queued - times.others_thread.queued;
}

// What the thread did for longer than the others'.
std::string doing(const BesideOthers& times, const Causes& causes) {
  if (causes.blocked) return ": its thread slept, or waited for something";
  if (!causes.computes) return "";
  std::string out = fmt::format(": it computed {:.3g} times as long",
                                times.thread.processor / times.others_thread.processor);
  if (causes.queued && queued_longer(times) >= kLeastQueued) {
    out += fmt::format(" and waited {:.3g} ms longer for a processor", queued_longer(times) * 1e3);
  }
  return out;
}

void add_thread_times(Values& evidence, const BesideOthers& times) {
  if (times.on_processor > 0) evidence.emplace_back("share_on_processor", times.on_processor);
  if (times.others_thread.processor > 0) {
    evidence.emplace_back("processor_times_the_others",
                          times.thread.processor / times.others_thread.processor);
  }
  if (queued_longer(times) > 0) {
    evidence.emplace_back("queued_longer_ms", milliseconds(queued_longer(times)));
  }
}

// Of slow-rank; empty: that of the catalogue.
std::string remedy_of(const Causes& causes) {
  if (causes.only_queued()) {
    return "Look at what else runs on this rank's processors, or which quota holds it back: start "
           "fewer threads (`OMP_NUM_THREADS`) and processes, or give each rank processors of its "
           "own.";
  }
  if (causes.blocked) {
    return "Look at what this rank alone waits for in the named phase: a disk, a network, a lock, "
           "another process or thread, a sleep.";
  }
  if (causes.computes) {
    return "Look at what this rank alone computes in the named phase: work behind `if rank == 0`, "
           "logging, another precision or build, a slower processor.";
  }
  return "";
}

// Of how the job as a whole spends its time, seen over that many steps.
Signal of_everyone(Check check, const StepRecord& record, std::uint64_t steps) {
  Signal signal = sighting({check, 1}, record.step, of_all(record), kConfidence);
  signal.first_step -= std::min(signal.first_step, steps);
  signal.severity = Severity::kInfo;
  return signal;
}

constexpr double kForgetting = 0.99;
constexpr double kTimesFollow = 0.7;  // correlation
constexpr std::uint64_t kTokenTimesFrom = 10;

// Without what the thread waited for a processor, which no token asks for.
double computes(const WorkerRecord& w) {
  constexpr double kMostQueued = 0.9;
  const double seconds = w.times.of(Phase::kForward) + w.times.of(Phase::kBackward);
  const double queued = std::isnan(w.times.queued) ? 0 : w.times.queued;
  return seconds - std::min(queued, kMostQueued * seconds);
}

// Whether the time that workers compute for follows the tokens of their batches: a regression of
// the logarithms within each step, over about its last hundred.
class TokenTimes {
 public:
  // REQUIRES: all_timed(record). Steps whose token counts are not all known are left out.
  void see(const StepRecord& record) {
    const auto& workers = record.workers;
    const auto n = static_cast<double>(workers.size());
    double x_mean = 0;
    double y_mean = 0;
    double seconds = 0;
    for (const WorkerRecord& w : workers) {
      if (w.tokens == 0 || !(computes(w) > 0)) return;
      x_mean += std::log(static_cast<double>(w.tokens)) / n;
      y_mean += std::log(computes(w)) / n;
      seconds += computes(w);
    }
    for (double* sum : {&xx_, &xy_, &yy_, &weight_}) *sum *= kForgetting;
    bool differ = false;
    for (const WorkerRecord& w : workers) {
      const double x = std::log(static_cast<double>(w.tokens)) - x_mean;
      const double y = std::log(computes(w)) - y_mean;
      differ = differ || std::abs(x) > 1e-9;
      xx_ += x * x;
      xy_ += x * y;
      yy_ += y * y;
      Share& share = shares_[w.replica];
      share.log_tokens.add(x * n / (n - 1));  // less the mean of the others
      share.computes.add((seconds - computes(w)) / (n - 1));
    }
    weight_ += n;
    steps_ += differ ? 1 : 0;
  }

  // Whether the counts of a step were known.
  bool knows() const { return weight_ > 0; }
  // Steps in which the counts differed.
  std::uint64_t steps() const { return steps_; }

  double correlation() const { return xx_ > 0 && yy_ > 0 ? xy_ / std::sqrt(xx_ * yy_) : 0; }

  // The standard deviation of the logarithm of the counts over workers.
  double spread() const { return weight_ > 0 ? std::sqrt(xx_ / weight_) : 0; }

  // How many seconds a step longer than the others' a worker computes because of its tokens; 0
  // where times do not follow tokens.
  double explained(std::uint32_t replica) const {
    const Share* share = shares_.find(replica);
    if (share == nullptr || steps_ < kTokenTimesFrom || correlation() < kTimesFollow) return 0;
    const double longer = std::exp(xy_ / xx_ * share->log_tokens.value()) - 1;
    return std::max(0.0, longer * share->computes.value());
  }

 private:
  struct Share {
    RunningMean log_tokens;  // less the mean over workers
    RunningMean computes;    // seconds of the others' mean
  };
  double xx_ = 0;
  double xy_ = 0;
  double yy_ = 0;
  double weight_ = 0;  // of the sums, in workers
  std::uint64_t steps_ = 0;
  PerWorker<Share> shares_;
};

// Who makes the others wait, in what, and what it costs: docs/time.md.
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
        log.cannot(&kUnevenBatches, "Token counts are not known.");
      }
    }
    for (const Alarm& alarm : context.times.raised) report(context, alarm, log);
    for (const Alarm& alarm : context.times.lasting) {
      const std::uint32_t rank = context.roster.rank_of(alarm.replicas.front());
      const auto said = said_.find(rank);
      if (said == said_.end()) continue;
      log.prolong(said->second, 0, {rank}, record.step);
      if (said->second != &kUnevenBatches) log.prolong(&kSlowNode, 0, {rank}, record.step);
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
    // On a machine that is busy with other things workers differ for a while, within their noise.
    if (typical < kLeastSeconds || typical < kLeastOfScatter * scatter) return;
    // Where nobody is seen to wait for it, what makes its own time long may be a wait of its own.
    if (longer < kLeastSeconds || waited < kLeastWaited * longer) return;
    const Causes causes = causes_of(times);
    const bool queued = causes.only_queued();
    // A queue that is no more than the machine's noise is said by the alarm that looks at queues.
    if (queued && alarm.statistic == detect::Statistic::kOwnTime) return;
    if (queued && longer < kLeastQueued) return;
    const bool tokens = tokens_.explained(replica) >= kMostOfIt * longer;
    const Phase phase = slowest_phase(times);
    const Check check = tokens                            ? &kUnevenBatches
                        : queued || phase != Phase::kData ? &kSlowRank
                                                          : &kDataStarved;
    const std::uint32_t rank = context.roster.rank_of(replica);
    Signal signal = sighting(check, alarm.step, {{rank}, false}, kConfidence);
    signal.first_step = std::min(alarm.first_step, alarm.step);
    signal.workers = context.record.workers_expected;
    const double step = times.step;
    const double others = times.others_own;
    const std::string where = tokens   ? "for longer batches: its time follows its tokens"
                              : queued ? "waiting for a processor"
                                       : in_phases(times) + doing(times, causes);
    signal.title = fmt::format(
        "{{Ranks}} took {:.3g} ms longer than the others in each step, {}; the others wait "
        "{:.3g} ms of {:.3g} ms a step: {:.0f}% of the job",
        longer * 1e3, where, waited * 1e3, step * 1e3, 100 * waited / step);
    signal.certain_step = alarm.step;
    signal.evidence = {{"time_log10_evidence", alarm.evidence},
                       {"phase", queued ? "processor" : to_string(phase)},
                       {"longer_ms", milliseconds(longer)},
                       {"others_own_ms", milliseconds(others)},
                       {"times_the_others", (others + longer) / others},
                       {"others_wait_ms", milliseconds(waited)},
                       {"step_ms", milliseconds(step)}};
    add_thread_times(signal.evidence, times);
    if (check == &kSlowRank) signal.remedy = remedy_of(causes);
    if (queued) signal.severity = Severity::kInfo;  // that is not the program's
    if (tokens) {
      signal.severity = Severity::kInfo;
      signal.evidence.emplace_back("longer_by_tokens_ms", milliseconds(tokens_.explained(replica)));
      signal.evidence.emplace_back("correlation", tokens_.correlation());
    }
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
    Signal node = sighting(&kSlowNode, slow.last_step, {here, false}, kConfidence);
    node.first_step = slow.first_step;
    double longer = 0;
    for (const WorkerRecord& w : context.record.workers) {
      if (std::ranges::binary_search(here, w.rank) && means_.knows(w.replica)) {
        longer += means_.since(w.replica, slow.first_step).own / static_cast<double>(here.size());
      }
    }
    node.title = fmt::format(
        "All ranks of host {} ({{ranks}}) took about {:.3g} ms longer than the others in each step",
        host.front(), 1e3 * longer);
    node.certain_step = slow.last_step;
    node.evidence = {{"host", host.front()},
                     {"longer_ms", milliseconds(longer)}};
    log.add(std::move(node));
  }

  void watch_data(const StepContext& context, SignalLog& log) const {
    const double data = means_.data();
    const double step = means_.step_seconds();
    if (means_.steps() < kLongEnough || data < kStarvedSeconds || data < kStarvedShare * step)
      return;
    const bool one =
        std::ranges::any_of(said_, [](const auto& s) { return s.second == &kDataStarved; });
    if (one) return;  // the others wait for it, not for data
    Signal signal = of_everyone(&kDataStarved, context.record, kLongEnough);
    signal.title = fmt::format(
        "{{Ranks}} spent {:.3g} ms of {:.3g} ms a step before the first forward pass, for data "
        "or what the loop does there: {:.0f}% of the job",
        data * 1e3, step * 1e3, 100 * data / step);
    signal.evidence = {{"phase", to_string(Phase::kData)},
                       {"data_ms", milliseconds(data)},
                       {"step_ms", milliseconds(step)}};
    log.add(std::move(signal));
  }

  void watch_batches(const StepContext& context, SignalLog& log) const {
    const double waiting = means_.waiting();
    const double step = means_.step_seconds();
    if (tokens_.steps() < kUnevenSteps || tokens_.spread() < kUnevenSpread) return;
    if (tokens_.correlation() < kUnevenCorrelation || waiting < kUnevenShare * step) return;
    Signal signal = of_everyone(&kUnevenBatches, context.record, kUnevenSteps);
    signal.title = fmt::format(
        "{{Ranks}} waited {:.3g} ms of {:.3g} ms a step for whoever had the longest batch: {:.0f}% "
        "of the job; long batches, not a slow machine",
        waiting * 1e3, step * 1e3, 100 * waiting / step);
    signal.evidence = {{"correlation", tokens_.correlation()},
                       {"tokens_spread", tokens_.spread()},
                       {"waiting_ms", milliseconds(waiting)},
                       {"step_ms", milliseconds(step)}};
    log.add(std::move(signal));
  }

  PhaseMeans means_;
  TokenTimes tokens_;
  std::map<std::uint32_t, Check> said_;  // by rank; at most 65,536
};

}  // namespace

constinit const CheckInfo kSlowRank{
    .id = "slow-rank",
    .severity = Severity::kWarning,
    .compares = "each rank's own time against the others'",
    .fires = "with the alarm; that a rank waited for a processor is information",
    .consequence = "All workers are as slow as this one.",
    .cannot_see =
        "A job in which all are equally slow; waits in collectives that no hook shows; FSDP on a "
        "device.",
    .mistake = "if rank == 0:\n    writer.add_histogram(\"grad\", grad, step)  # in every step",
    .fix =
        "Look at what the named phase does on this rank alone: work behind `if rank == 0`, "
        "logging, another device or clock, a processor that is shared.",
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
    .compares = "own time of all ranks of a host against that of other hosts",
    .fires = "with its last rank's alarm",
    .consequence = "All other hosts wait in every step for this one.",
    .cannot_see = "A job on one host, or with one rank to a host: its ranks are slow workers then.",
    .mistake = "nvidia-smi -q -d PERFORMANCE  # clocks that are held down on one host",
    .fix =
        "Look at the host: clocks and power limits of its accelerators, other jobs, its disk and "
        "network. Exchange it if nothing of the program's tells it apart.",
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
    .compares = "time between the end of a step and its first forward pass",
    .fires = "with the alarm; time of all ranks after 20 steps, which is information",
    .consequence = "Accelerators wait for data instead of computing.",
    .cannot_see =
        "What a program does between two steps besides loading looks the same, but for evaluation.",
    .mistake = "DataLoader(data, num_workers=0)  # tokenises in the training process",
    .fix =
        "Load ahead (`num_workers`, `prefetch_factor`, `pin_memory`), move work out of the loader, "
        "and see what the named rank reads from another disk than the others.",
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
    .fires = "after 30 steps; a worker's with its alarm",
    .consequence = "In every step all workers wait for whoever has the longest batch.",
    .cannot_see = "Work that does not follow target tokens; token counts that are not known.",
    .mistake =
        "loader = DataLoader(data, batch_size=8, shuffle=True)  # of 20 to 2,000 tokens each",
    .fix =
        "Deal batches by their tokens rather than by their number of samples: sort by length into "
        "global batches, or pack.",
    .precedence = 380,
    .explains = kUnevenBatchesExplains,
    .rests_on = CheckInfo::RestsOn::kTimes,
    .compares_ranks = true,
    .of_time = true,
    .make = make<SlowRanks>,
};

}  // namespace presum::checks
