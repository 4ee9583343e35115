// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "checks/engine/rules.h"
#include "checks/time/phase_means.h"
#include "detect/e_values.h"

namespace presum::checks {
namespace {

constexpr const char* kUntimed = "The times of a step were not known on all ranks so far.";
constexpr std::size_t kUsual = 64;      // steps that define the usual time
constexpr std::size_t kLeastUsual = 8;  // with fewer, nothing is reported
constexpr double kTimesUsual = 2;
constexpr double kLeastLonger = 0.1;  // seconds
constexpr std::size_t kStallsKept = 8;
constexpr std::size_t kStalls = 6;         // at equal distances
constexpr std::uint64_t kLeastPeriod = 5;  // recorded steps
constexpr std::uint64_t kInARow = 4;       // steps; then this is the new normal
constexpr double kTolerance = 0.1;         // of the period
constexpr double kMostOfIt = 0.5;          // a larger share names the cause
constexpr const char* kProcessor = "processor";

constexpr std::size_t kBlock = 50;  // steps
constexpr std::size_t kBlocks = 8;
constexpr std::size_t kRises = 6;  // of the seven between blocks
constexpr double kSlower = 1.3;
constexpr double kLeastSlower = 1e-3;  // seconds

double own_of(const WorkerRecord& w) { return w.times.own(); }
double queued_of(const WorkerRecord& w) { return std::isnan(w.times.queued) ? 0 : w.times.queued; }

// Computing time: data loading and everything in between may well grow.
double unqueued(const WorkerRecord& w) {
  const double computes =
      w.times.of(Phase::kForward) + w.times.of(Phase::kBackward) + w.times.of(Phase::kOptimizer);
  return computes - std::min(computes, queued_of(w));
}

struct StallsAgain {
  std::uint64_t period_steps = 0;
  double longer_s = 0;
  std::string phase;  // the phase with the largest share, or "processor": the rank waits for one
  double phase_share = 0;  // of the extra time
  double job_share = 0;

  static constexpr std::tuple kFields{
      field("period_steps", &StallsAgain::period_steps), field("longer_s", &StallsAgain::longer_s),
      field("phase", &StallsAgain::phase), field("phase_share", &StallsAgain::phase_share),
      field("job_share", &StallsAgain::job_share)};
};

struct SlowsDown {
  double times_as_long = 1;
  double own_ms = 0;  // of the fastest rank: its passes and its optimizer step
  double own_then_ms = 0;
  std::uint64_t then_step = 0;

  static constexpr std::tuple kFields{
      field("times_as_long", &SlowsDown::times_as_long), field("own_ms", &SlowsDown::own_ms),
      field("own_then_ms", &SlowsDown::own_then_ms), field("then_step", &SlowsDown::then_step)};
};

std::string sentence(const StallsAgain& seen, const Who& who) {
  const std::string where =
      seen.phase == kProcessor
          ? "waiting for a processor"
          : fmt::format("{} in the phase \"{}\"",
                        seen.phase_share >= kMostOfIt ? "mostly" : "the most of it", seen.phase);
  return fmt::format("{} took {:.3g} s longer every {} steps or so, {}: {:.0f}% of the job",
                     who.words(), seen.longer_s, seen.period_steps, where, 100 * seen.job_share);
}

std::string sentence(const SlowsDown& seen, const Who& who) {
  return fmt::format(
      "{} became slower and slower: the fastest took {:.3g} ms a step for its passes and its "
      "optimizer's step, {:.3g} ms at step {}",
      who.words(), seen.own_ms, seen.own_then_ms, seen.then_step);
}

// Steps that take far longer than usual, at equal distances.
class PeriodicStalls {
 public:
  // REQUIRES: all_timed(record).
  void update(const StepRecord& record, SignalLog& log) {
    const auto longest =
        std::ranges::max_element(record.workers, {}, [](const auto& w) { return own_of(w); });
    const double seconds = own_of(*longest);
    total_.add(longest->times.total());
    std::vector<double> last(longest_.begin(), longest_.end());
    const double usual = last.size() < kLeastUsual ? kNaN : detect::median(last);
    ++records_;
    const bool stalls = seconds > kTimesUsual * usual && seconds > usual + kLeastLonger;
    if (longer_.see(stalls, record.step) >= kInARow) {  // this is how long steps take now
      longest_.clear();
      stalls_.clear();
      longer_.end();
      return;
    }
    if (stalls) {
      note(record, *longest, usual);
      if (const auto found = period()) report(record, *found, log);
      return;  // it does not change the usual time
    }
    longest_.push_back(seconds);
    if (longest_.size() > kUsual) longest_.pop_front();
    for (std::size_t p = 0; p < kPhaseCount; ++p) phases_[p].add(longest->times.seconds[p]);
    queued_.add(queued_of(*longest));
  }

 private:
  struct Stall {
    std::uint64_t step = 0;
    std::uint64_t record = 0;                  // its place among the records seen
    double longer = 0;                         // seconds
    Ranks ranks;                               // ranks with a long own time
    std::array<double, kPhaseCount> phases{};  // extra time of each
    double queued = 0;                         // extra time
  };

  void note(const StepRecord& record, const WorkerRecord& longest, double usual) {
    Stall stall{.step = record.step, .record = records_};
    for (const WorkerRecord& w : record.workers) {
      if (own_of(w) > kTimesUsual * usual) insert(stall.ranks, w.rank);
    }
    stall.longer = own_of(longest) - usual;
    stall.queued = queued_of(longest) - queued_.value();
    for (std::size_t p = 0; p < kPhaseCount; ++p) {
      if (static_cast<Phase>(p) == Phase::kReduction) continue;
      stall.phases[p] = longest.times.seconds[p] - phases_[p].value();
    }
    stalls_.push_back(std::move(stall));
    if (stalls_.size() > kStallsKept) stalls_.pop_front();
  }

  // The period of the last stalls, if they are equally far apart.
  std::optional<std::uint64_t> period() const {
    if (stalls_.size() < kStalls) return std::nullopt;
    std::vector<double> gaps;
    for (std::size_t i = stalls_.size() - kStalls + 1; i < stalls_.size(); ++i) {
      gaps.push_back(static_cast<double>(stalls_[i].record - stalls_[i - 1].record));
    }
    const double middle = detect::median(gaps);
    const double slack = std::max(1.0, kTolerance * middle);
    const bool equal =
        std::ranges::all_of(gaps, [&](double gap) { return std::abs(gap - middle) <= slack; });
    if (!equal || middle < static_cast<double>(kLeastPeriod)) return std::nullopt;
    const Stall& last = stalls_.back();
    return (last.step - stalls_[stalls_.size() - kStalls].step) / (kStalls - 1);
  }

  void report(const StepRecord& record, std::uint64_t period, SignalLog& log) const {
    Ranks ranks = stalls_.back().ranks;
    const double weight = 1 / static_cast<double>(stalls_.size());
    double longer = 0;
    double queued = 0;
    std::array<double, kPhaseCount> phases{};
    for (const Stall& stall : stalls_) {
      longer += weight * stall.longer;
      queued += weight * stall.queued;
      for (std::size_t p = 0; p < kPhaseCount; ++p) phases[p] += weight * stall.phases[p];
      ranks = unite(ranks, stall.ranks);
    }
    const double waits = queued / longer;
    const auto most = std::ranges::max_element(phases);
    const bool queues = waits >= kMostOfIt;
    const StallsAgain seen{
        .period_steps = period,
        .longer_s = longer,
        .phase = queues ? kProcessor : to_string(static_cast<Phase>(most - phases.begin())),
        .phase_share = queues ? waits : *most / longer,
        .job_share =
            longer / (longer + static_cast<double>(period) * std::max(1e-9, total_.value()))};
    const bool everyone = ranks.size() == record.workers.size();
    Signal signal = sighting(&kPeriodicStall, record.step, {ranks, everyone}, 0.8, seen);
    signal.first_step = stalls_.front().step;
    if (queues) {
      signal.remedy =
          "Check what else runs on these processors at such times, or which quota throttles the "
          "ranks.";
    }
    log.add(std::move(signal), period * kStallsKept);
  }

  std::deque<double> longest_;  // own times of the last steps
  std::array<RunningMean, kPhaseCount> phases_;
  RunningMean queued_;
  RunningMean total_;
  std::uint64_t records_ = 0;
  Streak longer_;  // steps that are longer than usual
  std::deque<Stall> stalls_;
};

// The whole job slows down continuously.
class GradualSlowing {
 public:
  // REQUIRES: all_timed(record).
  void update(const StepRecord& record, SignalLog& log) {
    double fastest = unqueued(record.workers.front());
    double tokens = 0;
    bool counted = true;
    for (const WorkerRecord& w : record.workers) {
      fastest = std::min(fastest, unqueued(w));
      counted = counted && w.tokens > 0;
      tokens += static_cast<double>(w.tokens);
    }
    if (seconds_.empty()) first_step_ = record.step;
    seconds_.push_back(fastest);
    tokens_.push_back(counted ? tokens : 0);
    if (seconds_.size() < kBlock) return;
    end_block();
    if (!slows()) return;
    const Block& first = blocks_.front();
    const Block& last = blocks_.back();
    Signal signal = sighting(&kGradualSlowing, record.step, of_all(record), 0.7,
                             SlowsDown{.times_as_long = last.seconds / first.seconds,
                                       .own_ms = 1e3 * last.seconds,
                                       .own_then_ms = 1e3 * first.seconds,
                                       .then_step = first.first_step});
    signal.first_step = first.first_step;
    log.add(std::move(signal), kBlock * kBlocks);
  }

 private:
  struct Block {
    std::uint64_t first_step = 0;
    double seconds = 0;  // the median over steps of the fastest rank's passes and update
    double tokens = 0;   // the median over steps of all ranks' tokens; 0 if unknown
  };

  void end_block() {
    blocks_.push_back({first_step_, detect::median(seconds_), detect::median(tokens_)});
    if (blocks_.size() > kBlocks) blocks_.pop_front();
    seconds_.clear();
    tokens_.clear();
  }

  // Longer batches do not count.
  bool slows() const {
    if (blocks_.size() < kBlocks) return false;
    std::size_t rises = 0;
    for (std::size_t i = 1; i < blocks_.size(); ++i) {
      rises += blocks_[i].seconds > blocks_[i - 1].seconds;
    }
    const Block& first = blocks_.front();
    const Block& last = blocks_.back();
    const double growth = last.seconds / first.seconds;
    const bool longer = first.tokens > 0 && last.tokens > 0 &&
                        2 * std::log(last.tokens / first.tokens) > std::log(growth);
    return rises >= kRises && growth >= kSlower && last.seconds - first.seconds >= kLeastSlower &&
           !longer;
  }

  std::vector<double> seconds_;  // of the current block
  std::vector<double> tokens_;
  std::uint64_t first_step_ = 0;
  std::deque<Block> blocks_;
};

class Pace final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    if (!all_timed(context.record)) {
      log.cannot(&kPeriodicStall, kUntimed);
      return log.cannot(&kGradualSlowing, kUntimed);
    }
    ++timed_;
    log.waits(&kGradualSlowing, "Fewer than 400 steps with known times so far.");
    log.checked(&kPeriodicStall);
    if (timed_ >= kBlock * kBlocks) log.checked(&kGradualSlowing);
    stalls_.update(context.record, log);
    slowing_.update(context.record, log);
  }

 private:
  PeriodicStalls stalls_;
  GradualSlowing slowing_;
  std::uint64_t timed_ = 0;
};

}  // namespace

constinit const CheckInfo kPeriodicStall{
    .id = "periodic-stall",
    .severity = Severity::kInfo,
    .compares = "steps that take far longer than usual, at equal distances",
    .fires = "at the sixth stall",
    .consequence =
        "Work that is done now and then costs as much as if every step were a little slower.",
    .cannot_see = "Stalls below twice the usual time of a step, and stalls at irregular distances.",
    .mistake = "if step % 50 == 0:\n    torch.save(model.state_dict(), path)",
    .fix =
        "Nothing, if this is a checkpoint or an evaluation that is worth the time. If not, save "
        "asynchronously, evaluate less often, or call the garbage collector at fixed steps on all "
        "ranks together.",
    .precedence = 410,
    .rests_on = CheckInfo::RestsOn::kTimes,
    .compares_ranks = true,
    .of_time = true,
    .make = make<Pace>,
};

constinit const CheckInfo kGradualSlowing{
    .id = "gradual-slowing",
    .severity = Severity::kInfo,
    .compares = "the computing time of the fastest rank over hundreds of steps",
    .fires = "after 400 steps with known times",
    .consequence = "The rest of the run takes longer than planned.",
    .cannot_see = "Growth by less than 1.3 times, or over fewer than 400 recorded steps.",
    .mistake = "losses.append(loss)  # keeps every graph",
    .fix =
        "Look for what grows: a list of losses with their graphs, a cache, a log that is "
        "rewritten, memory that is swapped, a device that overheats.",
    .precedence = 420,
    .rests_on = CheckInfo::RestsOn::kTimes,
    .compares_ranks = true,
    .of_time = true,
    .make = make<Pace>,
};

}  // namespace presum::checks
