// SPDX-License-Identifier: Apache-2.0
// What the target tokens of a step weigh in its update.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checks/engine/step_context.h"

namespace presum::checks {

// One rank's micro-batches; only those with a target are listed.
struct RankTargets {
  struct Micro {
    double count = 0;   // targets
    double weight = 0;  // of one target in the rank's loss, before the reduction
    double sum() const { return count * weight; }
  };
  std::uint32_t rank = 0;
  std::vector<Micro> micro;
  std::size_t micro_batches = 0;  // all of them
  double count = 0;               // over all micro-batches
  double rows = 0;                // samples; 0 if unknown
  double sum = 0;                 // of all weights

  double weight() const { return sum / count; }
};

struct StepTargets {
  std::uint64_t step = 0;  // the last one of the update
  // The pass over the data that its last batch belongs to, if known.
  std::optional<std::uint64_t> data_pass;
  std::vector<RankTargets> ranks;
  // The program reported the weights of micro-batches in a rank's mean; the loss is not known.
  bool relative = false;
  // What the program multiplies the reduced gradient by; NaN if unknown.
  double factor = 1;

  bool known() const { return !ranks.empty(); }
  double count() const;
  // What all weights add up to after a reduction that averages: 1 for a mean over tokens.
  double total() const;
  // The same with weights times the factor.
  StepTargets with_factor() const;
};

// Puts the records of one update together: a program may reduce after each of its micro-batches.
class Updates {
 public:
  // Call at every record. Returns the targets of the update that ends with it: unknown ones if the
  // weight of a micro-batch is, none if the update goes on.
  std::optional<StepTargets> see(const StepContext& context);

 private:
  StepTargets open_;
  bool lost_ = false;  // a part of the open update is unknown
};

// Whether two weights are equal, up to the rounding of a gradient in 32 bits.
bool same_weight(double a, double b);

// Whether the losses of a step weigh targets, or samples, alike on all ranks.
bool weighs_targets_alike(const StepRecord& record);
bool weighs_samples_alike(const StepRecord& record);

// A count that the loss was divided by although it is not that of the targets that it was summed
// over.
struct OtherDivisor {
  std::string tokens_of;
  bool of_update = false;  // of the update's own targets: only the number of ranks is off
  double total = kNaN;     // see StepTargets::total(); the mean over the steps
  std::uint64_t first_step = 0;
  std::uint64_t last_step = 0;
};

// Recognizes divisors that vary with the data, and are not the right ones times a constant.
class Divisors {
 public:
  // Call at every update. Returns a divisor that the last five updates had in common. Looks at the
  // update before this one, because its divisor may include tokens of this one.
  std::optional<OtherDivisor> see(StepTargets now);

 private:
  StepTargets before_, middle_;
  std::size_t kind_ = 0;  // of the streak
  Streak streak_;
  double totals_ = 0;            // over the streak
  double least_ = 0, most_ = 0;  // divisors of the first micro-batch, over the streak
};

}  // namespace presum::checks
