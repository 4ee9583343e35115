// SPDX-License-Identifier: Apache-2.0
// Made-up steps of data-parallel training, healthy or with one fault, and what the detectors say
// about them: false alarms and delays (docs/detectors.md, "Measured").
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "detect/detector.h"
#include "presum/step_record.h"

namespace presum::detect {

// The null hypothesis: how healthy workers vary. All but the last are exchangeable at every step
// given the past.
enum class Null : std::uint8_t {
  kNormal,      // independent normal values
  kHeavy,       // Student's t with three degrees of freedom
  kCommon,      // levels and spreads that wander over steps, in common for all workers
  kPersistent,  // each worker's deviations are correlated over steps (0.5): not exchangeable
};
const char* to_string(Null null);

struct SimulatedRun {
  std::uint32_t workers = 8;
  Null null = Null::kNormal;
  std::uint32_t micro_batches = 4;
};

// What is wrong, with worker 0 unless said otherwise.
struct Fault {
  enum class Kind : std::uint8_t {
    kNone,
    kLoss,           // loss + size standard deviations
    kNorm,           // log gradient norm + size standard deviations
    kDirection,      // cosines to the others + size standard deviations of their mean
    kSharedData,     // workers 0 and 1 hold the same gradient
    kRepeated,       // its first two micro-batches are one
    kRepeatedByAll,  // likewise, on every worker
    kSameSet,        // all workers read the same micro-batches, each in its own order
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
  double deviate();  // of mean 0 and variance 1, as the null has it
  void wander();
  void fill_losses(const Fault& fault);
  void fill_gradients(const Fault& fault);
  void fill_cosines(const Fault& fault);
  void finish();

  SimulatedRun run_;
  std::uint64_t state_;
  double spare_ = 0;
  bool has_spare_ = false;
  double level_ = 0;   // in common: autocorrelated, of variance 1
  double spread_ = 1;  // in common
  std::vector<double> loss_memory_;
  std::vector<double> norm_memory_;
  std::vector<double> lean_;       // what each worker adds to its cosines
  std::vector<MicroBatch> first_;  // of worker 0
  StepRecord record_;
};

// Share of the work that is done, from 0 to 1. Called by several threads, one at a time.
using Progress = std::function<void(double)>;

struct Rate {
  std::uint64_t count = 0;
  double per_million = 0;
  double low = 0;  // exact 95% interval of a Poisson count
  double high = 0;
};
// REQUIRES: steps > 0.
Rate rate_of(std::uint64_t count, std::uint64_t steps);

struct FalseAlarms {
  std::uint64_t steps = 0;
  Rate alarms;
  Rate events;  // Alarm::Kind::kEvent: not error-controlled
};
// Gives one step after the other, each valid until the next call.
using Steps = std::function<const StepRecord&()>;
// Healthy steps, in stretches of at most 250,000, for each of which `source` is asked by its number
// and a detector is made. `source` is called by several threads.
FalseAlarms false_alarms(const std::function<Steps(std::uint64_t)>& source, double level,
                         std::uint64_t steps, const Progress& progress);
// Of made-up ones.
FalseAlarms false_alarms(const SimulatedRun& run, std::uint64_t steps, std::uint64_t seed,
                         const Progress& progress);

struct Delays {
  std::uint32_t trials = 0;
  std::uint32_t found = 0;    // within 2,000 steps
  double median = 0;          // steps from the fault to the alarm, 1 for the same step; NaN: most
                              // were not found
  double right = 0;           // of those found, the share with exactly the right workers
  double first_step_off = 0;  // median distance of Alarm::first_step from the fault's first step
};
// Every trial has 200 healthy steps first.
Delays delays(const SimulatedRun& run, const Fault& fault, std::uint32_t trials, std::uint64_t seed,
              const Progress& progress);

}  // namespace presum::detect
