// SPDX-License-Identifier: Apache-2.0
#include "detect/simulate.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <numbers>
#include <optional>
#include <thread>

#include "base/hash.h"
#include "detect/e_values.h"

namespace presum::detect {
namespace {

// A healthy run, about as measured on a small transformer.
constexpr double kLossLevel = 2;
constexpr double kLossSpread = 0.5;
constexpr double kNormSpread = 0.33;  // of the log: a factor 2 is 2.1 standard deviations
constexpr double kNormOnLoss = 0.3;   // correlation
constexpr double kPeakSpread = 0.2;
constexpr double kTokenSpread = 0.1;
constexpr double kGroupSpread = 0.1;
constexpr double kCosineLevel = 0.04;
constexpr double kLeanSpread = 0.01;
constexpr double kPairSpread = 0.02;
constexpr std::size_t kGroups = 4;
constexpr double kPersistence = 0.5;

constexpr std::uint64_t kStretch = 250'000;
constexpr std::uint64_t kHealthy = 200;
constexpr std::uint64_t kPatience = 2000;

double autoregressive(double memory, double rho, double innovation) {
  return rho * memory + std::sqrt(1 - rho * rho) * innovation;
}

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

// Runs work(0) .. work(count - 1) on all processors.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work,
                 const Progress& progress) {
  std::atomic<std::size_t> next = 0;
  std::size_t done = 0;
  std::mutex mutex;
  const auto loop = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      work(i);
      const std::lock_guard lock(mutex);
      progress(double(++done) / double(count));
    }
  };
  std::vector<std::thread> threads;
  const auto processors = std::max(1U, std::thread::hardware_concurrency());
  for (unsigned i = 1; i < processors; ++i) threads.emplace_back(loop);
  loop();
  for (std::thread& thread : threads) thread.join();
}

struct Counts {
  std::uint64_t alarms = 0;
  std::uint64_t events = 0;
};

Counts count_alarms(const Steps& next, double level, std::uint64_t steps) {
  Detector detector{Options{.level = level}};
  Counts counts;
  for (std::uint64_t s = 0; s < steps; ++s) {
    for (const Alarm& alarm : detector.update(next())) {
      ++(alarm.kind == Alarm::Kind::kEvent ? counts.events : counts.alarms);
    }
  }
  return counts;
}

bool is_right(const Alarm& alarm, const Fault& fault, std::uint32_t workers) {
  using Kind = Fault::Kind;
  if (fault.kind == Kind::kRepeatedByAll || fault.kind == Kind::kSameSet) {
    return alarm.replicas.empty();
  }
  const bool both = fault.kind == Kind::kSharedData || workers == 2;
  return alarm.replicas == (both ? std::vector<std::uint32_t>{0, 1} : std::vector{0U}) ||
         (fault.kind == Kind::kRepeated && alarm.replicas == std::vector{0U});
}

// The first alarm after the fault began, if it came in time.
std::optional<Alarm> first_alarm(const SimulatedRun& run, const Fault& fault, std::uint64_t seed) {
  Generator generator(run, seed);
  Detector detector{Options{}};
  for (std::uint64_t s = 0; s < kHealthy; ++s) detector.update(generator.next({}));
  for (std::uint64_t s = 0; s < kPatience; ++s) {
    for (const Alarm& alarm : detector.update(generator.next(fault))) {
      if (alarm.kind != Alarm::Kind::kEvent) return alarm;
    }
  }
  return std::nullopt;
}

Delays summarise(const std::vector<std::optional<Alarm>>& alarms, const Fault& fault,
                 std::uint32_t workers) {
  Delays out;
  out.trials = static_cast<std::uint32_t>(alarms.size());
  std::vector<double> steps;
  std::vector<double> off;
  double right = 0;
  for (const auto& alarm : alarms) {
    steps.push_back(alarm ? double(alarm->step - kHealthy + 1) : double(kPatience + 1));
    if (!alarm) continue;
    ++out.found;
    off.push_back(double(alarm->first_step) - double(kHealthy));
    right += is_right(*alarm, fault, workers) ? 1 : 0;
  }
  out.median = median(steps);
  if (out.median > double(kPatience)) out.median = kNaN;
  out.right = out.found > 0 ? right / double(out.found) : kNaN;
  out.first_step_off = median(off);
  return out;
}

}  // namespace

const char* to_string(Null null) {
  switch (null) {
    case Null::kNormal:
      return "normal";
    case Null::kHeavy:
      return "heavy";
    case Null::kCommon:
      return "common";
    case Null::kPersistent:
      return "persistent";
  }
  return "";
}

Generator::Generator(const SimulatedRun& run, std::uint64_t seed)
    : run_(run),
      state_(splitmix64(seed)),
      loss_memory_(run.workers),
      norm_memory_(run.workers),
      lean_(run.workers) {
  record_.workers_expected = record_.workers_seen = run.workers;
  record_.model.segment = 1;
  for (std::uint32_t i = 0; i < run.workers; ++i) {
    WorkerRecord& w = record_.workers.emplace_back();
    w.rank = w.replica = i;
    w.micro_batches = run.micro_batches;
    w.micro.resize(run.micro_batches);
  }
  record_.cosines.resize(std::size_t{run.workers} * (run.workers - 1) / 2);
  for (std::size_t g = 0; g < kGroups; ++g) {
    GroupRecord& group = record_.groups.emplace_back();
    group.id = g + 1;
    group.norms.resize(run.workers);
  }
  record_.step = std::uint64_t(0) - 1;
}

double Generator::uniform() {
  state_ += 0x9E3779B97F4A7C15ULL;
  return (double(mix64(state_) >> 11) + 0.5) * 0x1p-53;
}

double Generator::normal() {
  has_spare_ = !has_spare_;
  if (!has_spare_) return spare_;
  const double radius = std::sqrt(-2 * std::log(uniform()));
  const double angle = 2 * std::numbers::pi * uniform();
  spare_ = radius * std::sin(angle);
  return radius * std::cos(angle);
}

double Generator::deviate() {
  if (run_.null != Null::kHeavy) return normal();
  const double z = normal();
  const double a = normal();
  const double b = normal();
  const double c = normal();
  return z / std::sqrt(a * a + b * b + c * c);
}

void Generator::wander() {
  if (run_.null != Null::kCommon) return;
  level_ = autoregressive(level_, 0.999, normal());
  spread_ = std::exp(autoregressive(std::log(spread_), 0.99, 0.5 * normal()));
}

const StepRecord& Generator::next(const Fault& fault) {
  ++record_.step;
  wander();
  fill_losses(fault);
  fill_gradients(fault);
  fill_cosines(fault);
  finish();
  return record_;
}

void Generator::fill_losses(const Fault& fault) {
  using Kind = Fault::Kind;
  const std::size_t m = run_.micro_batches;
  const double unit = kLossSpread * spread_;
  const double level = kLossLevel * std::exp(level_);
  for (std::size_t i = 0; i < run_.workers; ++i) {
    auto& micro = record_.workers[i].micro;
    for (auto& x : micro) x.loss = std::sqrt(double(m)) * deviate();
    if (i == 0) first_ = micro;
    if (fault.kind == Kind::kSameSet) {
      for (std::size_t k = 0; k < m; ++k) micro[k].loss = first_[(k + i) % m].loss;
    }
    const bool repeats =
        fault.kind == Kind::kRepeatedByAll || (fault.kind == Kind::kRepeated && i == 0);
    if (repeats && m > 1) micro[1].loss = micro[0].loss;
    double mean = 0;
    for (const auto& x : micro) mean += x.loss / double(m);
    double shift = fault.kind == Kind::kLoss && i == 0 ? fault.size : 0;
    if (run_.null == Null::kPersistent) {
      loss_memory_[i] = autoregressive(loss_memory_[i], kPersistence, mean);
      shift += loss_memory_[i] - mean;
    }
    for (auto& x : micro) x.loss = level + unit * (x.loss + shift);
    record_.workers[i].loss = level + unit * (mean + shift);
  }
}

void Generator::fill_gradients(const Fault& fault) {
  for (std::size_t i = 0; i < run_.workers; ++i) {
    WorkerRecord& w = record_.workers[i];
    const double loss = (w.loss - kLossLevel * std::exp(level_)) / (kLossSpread * spread_);
    double own = deviate();
    if (run_.null == Null::kPersistent) {
      own = norm_memory_[i] = autoregressive(norm_memory_[i], kPersistence, own);
    }
    const double from_loss = fault.kind == Fault::Kind::kLoss ? 0 : kNormOnLoss * loss;
    double log_norm = from_loss + std::sqrt(1 - kNormOnLoss * kNormOnLoss) * own;
    if (fault.kind == Fault::Kind::kNorm && i == 0) log_norm += fault.size;
    log_norm = level_ + kNormSpread * spread_ * log_norm;
    w.grad_norm = std::exp(log_norm);
    w.grad_max = std::exp(log_norm - 3 + kPeakSpread * deviate());
    w.tokens = static_cast<std::uint64_t>(1000 * std::exp(kTokenSpread * normal()));
    for (GroupRecord& group : record_.groups) {
      group.norms[i] = static_cast<float>(0.5 * std::exp(log_norm + kGroupSpread * deviate()));
    }
  }
}

void Generator::fill_cosines(const Fault& fault) {
  const std::size_t n = run_.workers;
  for (double& lean : lean_) lean = kLeanSpread * spread_ * deviate();
  if (fault.kind == Fault::Kind::kDirection) {
    const double sd = std::hypot(kLeanSpread, kPairSpread / std::sqrt(double(n - 1)));
    lean_[0] += fault.size * sd;
  }
  const bool shared = fault.kind == Fault::Kind::kSharedData && n > 1;
  std::size_t at = 0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = i + 1; j < n; ++j, ++at) {
      double c = kCosineLevel + lean_[i] + lean_[j] + kPairSpread * spread_ * deviate();
      if (shared && i == 0 && j == 1) c = 1;
      if (shared && i == 1) c = double{record_.cosines[j - 1]};
      record_.cosines[at] = static_cast<float>(std::clamp(c, -1.0, 1.0));
    }
  }
  if (!shared) return;
  const std::uint32_t own = record_.workers[1].replica;
  record_.workers[1] = record_.workers[0];
  record_.workers[1].rank = record_.workers[1].replica = own;
}

// What follows from the workers' values.
void Generator::finish() {
  const std::size_t n = run_.workers;
  for (WorkerRecord& w : record_.workers) w.cosine_to_others = n > 1 ? 0 : kNaN;
  std::size_t at = 0;
  record_.cosine_mean = n > 1 ? 0 : kNaN;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = i + 1; j < n; ++j, ++at) {
      const auto share = double{record_.cosines[at]} / double(n - 1);
      record_.workers[i].cosine_to_others += share;
      record_.workers[j].cosine_to_others += share;
      record_.cosine_mean += 2 * share / double(n);
    }
  }
}

Rate rate_of(std::uint64_t count, std::uint64_t steps) {
  const double millions = double(steps) / 1e6;
  Rate rate{count, double(count) / millions, 0, poisson_mean(count, 0.025) / millions};
  if (count > 0) rate.low = poisson_mean(count - 1, 0.975) / millions;
  return rate;
}

FalseAlarms false_alarms(const SimulatedRun& run, std::uint64_t steps, std::uint64_t seed,
                         const Progress& progress) {
  return false_alarms(
      [&](std::uint64_t stretch) -> Steps {
        auto generator = std::make_shared<Generator>(run, splitmix64(seed) + stretch);
        return [generator]() -> const StepRecord& { return generator->next({}); };
      },
      Options{}.level, steps, progress);
}

FalseAlarms false_alarms(const std::function<Steps(std::uint64_t)>& source, double level,
                         std::uint64_t steps, const Progress& progress) {
  const std::size_t stretches = static_cast<std::size_t>((steps + kStretch - 1) / kStretch);
  std::vector<Counts> counts(stretches);
  in_parallel(
      stretches,
      [&](std::size_t i) {
        const std::uint64_t length = std::min(kStretch, steps - kStretch * i);
        counts[i] = count_alarms(source(i), level, length);
      },
      progress);
  Counts total;
  for (const Counts& c : counts) {
    total.alarms += c.alarms;
    total.events += c.events;
  }
  return {steps, rate_of(total.alarms, steps), rate_of(total.events, steps)};
}

Delays delays(const SimulatedRun& run, const Fault& fault, std::uint32_t trials, std::uint64_t seed,
              const Progress& progress) {
  std::vector<std::optional<Alarm>> alarms(trials);
  in_parallel(
      trials, [&](std::size_t i) { alarms[i] = first_alarm(run, fault, splitmix64(seed) + i); },
      progress);
  return summarise(alarms, fault, run.workers);
}

}  // namespace presum::detect
