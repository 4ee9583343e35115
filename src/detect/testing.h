// SPDX-License-Identifier: Apache-2.0
// Synthetic steps of data-parallel training, healthy or with one fault, and the time a detector
// takes to find the fault: for tests and for bench/detect_bench.cc.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <optional>
#include <vector>

#include "base/hash.h"
#include "detect/detector.h"
#include "detect/e_values.h"
#include "presum/step_record.h"

namespace presum::detect {

// The null hypothesis: how healthy ranks vary. In all but the last, they are exchangeable at every
// step given the past.
enum class Null : std::uint8_t {
  kNormal,      // independent normal values
  kHeavy,       // Student's t with three degrees of freedom
  kCommon,      // levels and spreads that wander over steps, common to all ranks
  kPersistent,  // each rank's deviations are correlated over steps (0.5): not exchangeable
};

struct SimulatedRun {
  std::uint32_t workers = 8;
  Null null = Null::kNormal;
  std::uint32_t micro_batches = 4;
};

// The fault, on rank 0 unless noted.
struct Fault {
  enum class Kind : std::uint8_t {
    kNone,
    kLoss,           // loss + size standard deviations
    kNorm,           // log gradient norm + size standard deviations
    kDirection,      // cosines to the others + size standard deviations of their mean
    kSharedData,     // ranks 0 and 1 have the same gradient
    kRepeated,       // its first two micro-batches are identical
    kRepeatedByAll,  // the same, on every rank
    kSameSet,        // all ranks read the same micro-batches, each in its own order
  };
  Kind kind = Kind::kNone;
  double size = 0;
};

// Deterministic by seed.
class Generator {
 public:
  Generator(const SimulatedRun& run, std::uint64_t seed);
  // Valid until the next call.
  const StepRecord& next(const Fault& fault);

 private:
  double uniform();
  double normal();
  double deviate();  // mean 0, variance 1, distributed as `null` says
  void wander();
  void fill_losses(const Fault& fault);
  void fill_gradients(const Fault& fault);
  void fill_cosines(const Fault& fault);
  void finish();

  SimulatedRun run_;
  std::uint64_t state_;
  double spare_ = 0;
  bool has_spare_ = false;
  double level_ = 0;   // common to all ranks; autocorrelated, with variance 1
  double spread_ = 1;  // common to all ranks
  std::vector<double> loss_memory_;
  std::vector<double> norm_memory_;
  std::vector<double> lean_;       // what each rank adds to its cosines
  std::vector<MicroBatch> first_;  // those of rank 0
  StepRecord record_;
};

// A healthy run, roughly as measured on a small transformer.
inline constexpr double kLossLevel = 2;
inline constexpr double kLossSpread = 0.5;
inline constexpr double kNormSpread = 0.33;  // of the log; a factor of 2 is 2.1 standard deviations
inline constexpr double kNormOnLoss = 0.3;   // correlation
inline constexpr double kPeakSpread = 0.2;
inline constexpr double kTokenSpread = 0.1;
inline constexpr double kGroupSpread = 0.1;
inline constexpr double kCosineLevel = 0.04;
inline constexpr double kLeanSpread = 0.01;
inline constexpr double kPairSpread = 0.02;
inline constexpr std::size_t kGroups = 4;
inline constexpr double kPersistence = 0.5;

inline double autoregressive(double memory, double rho, double innovation) {
  return rho * memory + std::sqrt(1 - rho * rho) * innovation;
}

inline Generator::Generator(const SimulatedRun& run, std::uint64_t seed)
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

inline double Generator::uniform() {
  state_ += 0x9E3779B97F4A7C15ULL;
  return (double(mix64(state_) >> 11) + 0.5) * 0x1p-53;
}

inline double Generator::normal() {
  has_spare_ = !has_spare_;
  if (!has_spare_) return spare_;
  const double radius = std::sqrt(-2 * std::log(uniform()));
  const double angle = 2 * std::numbers::pi * uniform();
  spare_ = radius * std::sin(angle);
  return radius * std::cos(angle);
}

inline double Generator::deviate() {
  if (run_.null != Null::kHeavy) return normal();
  const double z = normal();
  const double a = normal();
  const double b = normal();
  const double c = normal();
  return z / std::sqrt(a * a + b * b + c * c);
}

inline void Generator::wander() {
  if (run_.null != Null::kCommon) return;
  level_ = autoregressive(level_, 0.999, normal());
  spread_ = std::exp(autoregressive(std::log(spread_), 0.99, 0.5 * normal()));
}

inline const StepRecord& Generator::next(const Fault& fault) {
  ++record_.step;
  wander();
  fill_losses(fault);
  fill_gradients(fault);
  fill_cosines(fault);
  finish();
  return record_;
}

inline void Generator::fill_losses(const Fault& fault) {
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

inline void Generator::fill_gradients(const Fault& fault) {
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

inline void Generator::fill_cosines(const Fault& fault) {
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

// Derives the rest of the record from the ranks' values.
inline void Generator::finish() {
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

inline constexpr std::uint64_t kHealthy = 200;    // steps before the fault
inline constexpr std::uint64_t kPatience = 2000;  // steps with the fault

// The first alarm after the fault began, if it came within kPatience steps.
inline std::optional<Alarm> first_alarm(const SimulatedRun& run, const Fault& fault,
                                        std::uint64_t seed) {
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

struct Delays {
  std::uint32_t trials = 0;
  std::uint32_t found = 0;  // within 2,000 steps
  // Steps from the fault to the alarm, 1 for the same step; NaN: most were not found.
  double median = 0;
  double right = 0;           // of those found, the share that names exactly the right ranks
  double first_step_off = 0;  // median distance of Alarm::first_step from the fault's first step
};

inline bool is_right(const Alarm& alarm, const Fault& fault, std::uint32_t workers) {
  using Kind = Fault::Kind;
  if (fault.kind == Kind::kRepeatedByAll || fault.kind == Kind::kSameSet) {
    return alarm.replicas.empty();
  }
  const bool both = fault.kind == Kind::kSharedData || workers == 2;
  return alarm.replicas == (both ? std::vector<std::uint32_t>{0, 1} : std::vector{0U}) ||
         (fault.kind == Kind::kRepeated && alarm.replicas == std::vector{0U});
}

inline Delays summarize(const std::vector<std::optional<Alarm>>& alarms, const Fault& fault,
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

}  // namespace presum::detect
