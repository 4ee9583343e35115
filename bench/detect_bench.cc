// SPDX-License-Identifier: Apache-2.0
//
// How often detectors raise false alarms, and how fast they find a fault: made-up steps, or
// recorded ones with their workers in other orders (docs/detectors.md, "Measured").
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/pairs.h"
#include "base/try.h"
#include "detect/testing.h"
#include "presum/run_log.h"

namespace presum::detect {
namespace {

constexpr std::uint64_t kStretch = 250'000;  // steps that one detector sees

struct Arguments {
  double steps = 1e6;
  std::uint32_t trials = 200;
  std::vector<std::uint32_t> workers = {8};
  std::string noise = "all";
  std::vector<std::string> recorded;
  double level = 1e6;
  std::uint64_t seed = 1;
};

// ---- counts

// P(X <= count) of a Poisson variable.
double poisson_cdf(std::uint64_t count, double mean) {
  double total = 0;
  for (std::uint64_t k = 0; k <= count; ++k) {
    total += std::exp(double(k) * std::log(mean) - mean - std::lgamma(double(k) + 1));
  }
  return total;
}

// The mean at which P(X <= count) is `p`.
double poisson_mean(std::uint64_t count, double p) {
  double low = 0;
  double high = 10 + 3 * double(count);
  for (int i = 0; i < 100; ++i) {
    const double mid = (low + high) / 2;
    (poisson_cdf(count, mid) > p ? low : high) = mid;
  }
  return low;
}

struct Rate {
  std::uint64_t count = 0;
  double per_million = 0;
  double low = 0;  // exact 95% interval of a Poisson count
  double high = 0;
};

Rate rate_of(std::uint64_t count, std::uint64_t steps) {
  const double millions = double(steps) / 1e6;
  Rate rate{count, double(count) / millions, 0, poisson_mean(count, 0.025) / millions};
  if (count > 0) rate.low = poisson_mean(count - 1, 0.975) / millions;
  return rate;
}

// Runs work(0) .. work(count - 1) on all processors.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next = 0;
  const auto loop = [&] {
    for (std::size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> threads;
  const auto processors = std::max(1U, std::thread::hardware_concurrency());
  for (unsigned i = 1; i < processors; ++i) threads.emplace_back(loop);
  loop();
  for (std::thread& thread : threads) thread.join();
}

struct Counts {
  std::uint64_t alarms = 0;
  std::uint64_t events = 0;  // Alarm::Kind::kEvent: not error-controlled
};

// Gives one step after the other, each valid until the next call.
using Source = std::function<const StepRecord&()>;

Counts count_alarms(const Source& next, double level, std::uint64_t steps) {
  Detector detector{Options{.level = level}};
  Counts counts;
  for (std::uint64_t s = 0; s < steps; ++s) {
    for (const Alarm& alarm : detector.update(next())) {
      ++(alarm.kind == Alarm::Kind::kEvent ? counts.events : counts.alarms);
    }
  }
  return counts;
}

std::string interval(const Rate& rate) {
  return fmt::format("{:.2f} [{:.2f}, {:.2f}]", rate.per_million, rate.low, rate.high);
}

// A row of the table of false alarms. `source` is asked for each stretch, by several threads.
void print_false_alarms(const std::string& what, std::size_t workers, const Arguments& arguments,
                        const std::function<Source(std::uint64_t)>& source) {
  const auto steps = static_cast<std::uint64_t>(arguments.steps);
  std::vector<Counts> counts(static_cast<std::size_t>((steps + kStretch - 1) / kStretch));
  in_parallel(counts.size(), [&](std::size_t i) {
    counts[i] = count_alarms(source(i), arguments.level, std::min(kStretch, steps - kStretch * i));
  });
  Counts total;
  for (const Counts& c : counts) {
    total.alarms += c.alarms;
    total.events += c.events;
  }
  fmt::print("{:32} {:7} {:9} {:6}  {:24} {}\n", what, workers, steps, total.alarms,
             interval(rate_of(total.alarms, steps)), interval(rate_of(total.events, steps)));
  std::fflush(stdout);
}

void print_heading() {
  fmt::print("False alarms, healthy workers\n{:32} {:>7} {:>9} {:>6}  {:24} {}\n", "steps",
             "workers", "count", "alarms", "per 1e6 [95%]", "events per 1e6 [95%]");
}

// ---- made-up steps

struct Noise {
  Null null;
  const char* name;
};
constexpr Noise kNoises[] = {{Null::kNormal, "normal"},
                             {Null::kHeavy, "heavy"},
                             {Null::kCommon, "common"},
                             {Null::kPersistent, "persistent"}};

void print_noises(const Arguments& arguments) {
  print_heading();
  for (const auto& [null, name] : kNoises) {
    if (arguments.noise != "all" && arguments.noise != name) continue;
    for (const std::uint32_t workers : arguments.workers) {
      const SimulatedRun run{workers, null};
      print_false_alarms(name, workers, arguments, [&](std::uint64_t stretch) -> Source {
        auto generator = std::make_shared<Generator>(run, splitmix64(arguments.seed) + stretch);
        return [generator]() -> const StepRecord& { return generator->next({}); };
      });
    }
  }
}

struct NamedFault {
  std::string name;
  Fault fault;
};

std::vector<NamedFault> faults() {
  std::vector<NamedFault> out;
  for (const double size : {0.5, 1.0, 2.0, 3.0, 6.0}) {
    out.push_back({fmt::format("loss +{} sd", size), {Fault::Kind::kLoss, size}});
  }
  for (const double size : {2.1, -0.77, -4.4}) {
    out.push_back({fmt::format("log norm {:+} sd", size), {Fault::Kind::kNorm, size}});
  }
  out.push_back({"direction -1.65 sd", {Fault::Kind::kDirection, -1.65}});
  out.push_back({"two share data", {Fault::Kind::kSharedData}});
  out.push_back({"repeated micro-batch", {Fault::Kind::kRepeated}});
  out.push_back({"the same on all workers", {Fault::Kind::kRepeatedByAll}});
  out.push_back({"all read one set", {Fault::Kind::kSameSet}});
  return out;
}

// Two workers have one cosine.
bool needs_three(const Fault& fault) {
  return fault.kind == Fault::Kind::kSharedData || fault.kind == Fault::Kind::kDirection;
}

void print_delays(const Arguments& arguments) {
  fmt::print("\nDelay in steps\n{:28} {:>7} {:>9} {:>7} {:>6} {}\n", "fault", "workers", "found",
             "median", "right", "first step off by");
  for (const std::uint32_t workers : arguments.workers) {
    for (const NamedFault& of : faults()) {
      if (workers == 2 && needs_three(of.fault)) continue;
      const SimulatedRun run{workers};
      std::vector<std::optional<Alarm>> alarms(arguments.trials);
      in_parallel(alarms.size(), [&](std::size_t i) {
        alarms[i] = first_alarm(run, of.fault, splitmix64(arguments.seed) + i);
      });
      const Delays d = summarize(alarms, of.fault, workers);
      fmt::print("{:28} {:7} {:>9} {:7} {:5.0f}% {}\n", of.name, workers,
                 fmt::format("{}/{}", d.found, d.trials), d.median, 100 * d.right,
                 d.first_step_off);
      std::fflush(stdout);
    }
  }
}

// ---- recorded steps, played again with their workers in another order

std::vector<float> reordered(const std::vector<float>& values,
                             const std::vector<std::size_t>& order) {
  std::vector<float> out;
  if (values.size() != order.size()) return out;
  for (const std::size_t at : order) out.push_back(values[at]);
  return out;
}

// Plays steps over and over. A new order is drawn every `block` steps: with 1 workers are
// exchangeable at every step given the past, with more what lasts in one worker's values lasts for
// so long. Deterministic by seed.
class Replay {
 public:
  // REQUIRES: steps, which outlive this, are some; all hold the same number of workers, at least
  // two. block > 0.
  Replay(std::span<const StepRecord> steps, std::uint64_t block, std::uint64_t seed);
  // Valid until the next call. Steps count from 0; replica and rank of a worker are its place.
  const StepRecord& next();

 private:
  void shuffle();
  void reorder(const StepRecord& from);

  std::span<const StepRecord> steps_;
  std::uint64_t block_;
  std::uint64_t state_;
  std::uint64_t played_ = 0;
  std::vector<std::size_t> order_;
  StepRecord record_;
};

Replay::Replay(std::span<const StepRecord> steps, std::uint64_t block, std::uint64_t seed)
    : steps_(steps), block_(block), state_(splitmix64(seed)), order_(steps.front().workers.size()) {
  std::iota(order_.begin(), order_.end(), std::size_t{0});
}

const StepRecord& Replay::next() {
  if (played_ % block_ == 0) shuffle();
  reorder(steps_[played_ % steps_.size()]);
  record_.step = played_++;
  return record_;
}

// Fisher and Yates. The modulo's bias is below 2^-53.
void Replay::shuffle() {
  for (std::size_t left = order_.size(); left > 1; --left) {
    state_ += 0x9E3779B97F4A7C15ULL;
    std::swap(order_[left - 1], order_[mix64(state_) % left]);
  }
}

void Replay::reorder(const StepRecord& from) {
  const std::size_t count = order_.size();
  record_ = from;
  for (std::size_t i = 0; i < count; ++i) {
    WorkerRecord& worker = record_.workers[i] = from.workers[order_[i]];
    worker.replica = worker.rank = static_cast<std::uint32_t>(i);
  }
  for (GroupRecord& group : record_.groups) {
    group.norms = reordered(group.norms, order_);
    group.maxima = reordered(group.maxima, order_);
    group.fingerprints.clear();
  }
  if (from.cosines.size() != pairs_of(count)) return;
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = i + 1; j < count; ++j) {
      const auto [low, high] = std::minmax(order_[i], order_[j]);
      record_.cosines[pair_position(i, j, count)] = from.cosines[pair_position(low, high, count)];
    }
  }
}

// Adds the steps of the run's first model in which all its workers are, by their number.
using StepsByWorkers = std::map<std::size_t, std::vector<StepRecord>>;
Status add_whole_steps(const std::string& run, StepsByWorkers& to) {
  PRESUM_ASSIGN(const RunLog log, RunLog::open(run));
  PRESUM_ASSIGN(const auto all, log.steps());
  if (all.empty()) return {};
  PRESUM_ASSIGN(StepCursor cursor, log.cursor(all.front().model));
  while (true) {
    PRESUM_ASSIGN(const StepRecord* step, cursor.next());
    if (step == nullptr) return {};
    const std::size_t workers = step->workers.size();
    if (workers < 2 || workers != step->workers_expected) continue;
    StepRecord& kept = to[workers].emplace_back(*step);
    PRESUM_ASSIGN(kept.cosines, log.cosines({step->model, step->step}));
  }
}

Status print_recorded(const Arguments& arguments) {
  StepsByWorkers all;
  for (const std::string& run : arguments.recorded) PRESUM_TRY(add_whole_steps(run, all));
  if (all.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                arguments.recorded.front() + ": no step with all of several workers");
  }
  print_heading();
  for (const auto& [workers, steps] : all) {
    for (const std::uint64_t block : {std::uint64_t{1}, std::uint64_t{20}}) {
      const auto what = fmt::format("{} recorded, orders of {}", steps.size(), block);
      print_false_alarms(what, workers, arguments, [&](std::uint64_t stretch) -> Source {
        auto replay = std::make_shared<Replay>(steps, block, splitmix64(arguments.seed) + stretch);
        return [replay]() -> const StepRecord& { return replay->next(); };
      });
    }
  }
  return {};
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("How often detectors raise false alarms, and how fast they find a fault");
  app.add_option("--steps", arguments.steps, "healthy steps for each kind of noise")
      ->check(CLI::Range(1.0, 1e12));
  app.add_option("--trials", arguments.trials, "runs for each fault; 0: none");
  app.add_option("--workers", arguments.workers, "such as 2,4,8")
      ->delimiter(',')
      ->check(CLI::Range(2, 1024));
  app.add_option("--noise", arguments.noise, "kind of noise")
      ->check(CLI::IsMember({"normal", "heavy", "common", "persistent", "all"}));
  app.add_option("--recorded", arguments.recorded, "instead of made-up steps: healthy RUNs");
  app.add_option("--level", arguments.level, "of the detectors")->check(CLI::Range(2.0, 1e12));
  app.add_option("--seed", arguments.seed, "random seed");
  CLI11_PARSE(app, argc, argv);
  if (!arguments.recorded.empty()) {
    const Status done = print_recorded(arguments);
    if (!done) fmt::print(stderr, "detect_bench: {}\n", done.error().message);
    return done ? 0 : 2;
  }
  print_noises(arguments);
  if (arguments.trials > 0) print_delays(arguments);
  return 0;
}

}  // namespace
}  // namespace presum::detect

int main(int argc, char** argv) { return presum::detect::run(argc, argv); }
