// SPDX-License-Identifier: Apache-2.0
// **stall, slow-node, uneven-batches, data-starved, slow-rank, periodic-stall, gradual-slowing.**
// See [time.md](time.md) for what they look at, from where on a difference counts, and what they
// cannot see.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
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

struct Slower {
  // As far as its thread's clocks and its tokens tell.
  enum class By : std::uint8_t {
    kTokens,
    kQueue,  // alone
    kUnknown,
    kComputing,
    kComputingAndQueue,
    kSleep,
  };

  By by = By::kUnknown;
  double log10_evidence = 0;
  Phase slowest = Phase::kRest;
  std::string phase;       // it, or "processor": what is waited for
  double phase_share = 0;  // of what is longer
  double longer_ms = 0;
  double others_own_ms = 0;
  double times_the_others = 1;
  double others_wait_ms = 0;
  double step_ms = 0;
  double job_share = 0;
  // Of its thread.
  double on_processor_share = kNaN;
  double processor_times_the_others = kNaN;
  double queued_longer_ms = kNaN;
  // Where it is by tokens.
  double longer_by_tokens_ms = kNaN;
  double correlation = kNaN;

  std::string because() const {
    constexpr std::array kNames = {"longer batches",      "queue",        "", "computing",
                                   "computing and queue", "sleep or wait"};
    return kNames[static_cast<std::size_t>(by)];
  }
  static constexpr std::tuple kFields{
      field("time_log10_evidence", &Slower::log10_evidence),
      field("because", &Slower::because),
      field("phase", &Slower::phase),
      field("phase_share", &Slower::phase_share),
      field("longer_ms", &Slower::longer_ms),
      field("others_own_ms", &Slower::others_own_ms),
      field("times_the_others", &Slower::times_the_others),
      field("others_wait_ms", &Slower::others_wait_ms),
      field("step_ms", &Slower::step_ms),
      field("job_share", &Slower::job_share),
      field("on_processor_share", &Slower::on_processor_share),
      field("processor_times_the_others", &Slower::processor_times_the_others),
      field("queued_longer_ms", &Slower::queued_longer_ms),
      field("longer_by_tokens_ms", &Slower::longer_by_tokens_ms),
      field("correlation", &Slower::correlation)};
};

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

std::string in_phases(const Slower& seen) {
  const char* much = seen.phase_share >= kNearlyAll  ? ""
                     : seen.phase_share >= kMostOfIt ? "mostly "
                                                     : "in several phases, the most ";
  return much + in_phase(seen.slowest);
}

std::string where(const Slower& seen) {
  using By = Slower::By;
  switch (seen.by) {
    case By::kTokens:
      return "for longer batches: its time follows its tokens";
    case By::kQueue:
      return "waiting for a processor";
    case By::kUnknown:
      break;
    case By::kComputing:
      return fmt::format("{}: it computed {:.3g} times as long", in_phases(seen),
                         seen.processor_times_the_others);
    case By::kComputingAndQueue:
      return fmt::format(
          "{}: it computed {:.3g} times as long and waited {:.3g} ms longer for a processor",
          in_phases(seen), seen.processor_times_the_others, seen.queued_longer_ms);
    case By::kSleep:
      return in_phases(seen) + ": its thread slept, or waited for something";
  }
  return in_phases(seen);
}

std::string sentence(const Slower& seen, const Who& who) {
  return fmt::format(
      "{} took {:.3g} ms longer than the others in each step, {}; the others wait {:.3g} ms of "
      "{:.3g} ms a step: {:.0f}% of the job",
      who.words(), seen.longer_ms, where(seen), seen.others_wait_ms, seen.step_ms,
      100 * seen.job_share);
}

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
      "{} waited {:.3g} ms of {:.3g} ms a step for whoever had the longest batch: {:.0f}% of the "
      "job; long batches, not a slow machine",
      who.words(), seen.waiting_ms, seen.step_ms, 100 * seen.job_share);
}

Slower::By reason(const Causes& causes, double queued_seconds) {
  using By = Slower::By;
  if (causes.only_queued()) return By::kQueue;
  if (causes.blocked) return By::kSleep;
  if (!causes.computes) return By::kUnknown;
  return causes.queued && queued_seconds >= kLeastQueued ? By::kComputingAndQueue : By::kComputing;
}

Slower slower(const BesideOthers& times, const Causes& causes, double log10_evidence) {
  const Phase phase = slowest_phase(times);
  const double share = times.phases[static_cast<std::size_t>(phase)] / times.own;
  Slower out{.by = reason(causes, queued_longer(times)),
             .log10_evidence = log10_evidence,
             .slowest = phase,
             .phase = causes.only_queued() ? "processor" : to_string(phase),
             .phase_share = causes.only_queued() ? kNaN : share,
             .longer_ms = 1e3 * times.own,
             .others_own_ms = 1e3 * times.others_own,
             .times_the_others = (times.others_own + times.own) / times.others_own,
             .others_wait_ms = -1e3 * times.waits,
             .step_ms = 1e3 * times.step,
             .job_share = -times.waits / times.step};
  if (times.on_processor > 0) out.on_processor_share = times.on_processor;
  if (times.others_thread.processor > 0) {
    out.processor_times_the_others = times.thread.processor / times.others_thread.processor;
  }
  if (queued_longer(times) > 0) out.queued_longer_ms = 1e3 * queued_longer(times);
  return out;
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
Signal of_everyone(Check check, const StepRecord& record, std::uint64_t steps, Evidence seen) {
  Signal signal = sighting(check, record.step, of_all(record), kConfidence, std::move(seen));
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
    // A queue is not the program's.
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
    if (one) return;  // the others wait for it, not for data
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
