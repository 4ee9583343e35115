// SPDX-License-Identifier: Apache-2.0
// Reduces a step's record to one number per rank and statistic; NaN if a rank has none.
#pragma once

#include <span>
#include <vector>

#include "presum/step_record.h"

namespace presum::detect {

// Indexed by replica; one element per expected rank. Buffers are reused from step to step.
struct Statistics {
  std::vector<double> loss;
  std::vector<double> norm;       // log, divided by the gradient's weight if it is known
  std::vector<double> direction;  // needs three ranks
  std::vector<double> peak;       // log
  // Of norm on loss; needs four ranks and losses that differ.
  std::vector<double> residual;
  std::vector<double> tokens;              // log
  std::vector<double> closest;             // distance between the two closest micro-batch losses
  std::vector<std::vector<double>> micro;  // finite micro-batch losses with positive weight

  // `odd`: ranks whose loss or norm is known to deviate. They get no residual, because they would
  // tilt the line. REQUIRES: `odd` has `workers` elements; all replicas are below `workers`.
  void fill(const StepRecord& record, std::size_t workers, const std::vector<bool>& odd);

 private:
  void fill_worker(const WorkerRecord& worker);
  void fill_residual(const std::vector<bool>& odd);
  void fill_closest();

  std::vector<double> scratch_;
};

// The log of a norm divided by the weight of the rank's gradient, if known: a rank with few tokens
// has a short gradient by design.
double log_norm(const WorkerRecord& worker, double norm);
// Whether the losses of each rank's micro-batches can be compared without weighting: their weights
// are reported, or nothing shows that their sizes differ. False if the numbers of target tokens
// differ, or if the numbers of samples differ between ranks or do not divide evenly, because the
// losses may then be weighted by them.
bool weigh_alike(const StepRecord& record);
// Whether the group's gradient on every rank is only rounding error of the other groups', as for a
// bias before a normalization. Its norm is then meaningless.
bool practically_zero(const StepRecord& record, const GroupRecord& group);
// log_norm of a group, indexed by replica.
void fill_group(const StepRecord& record, const GroupRecord& group, std::span<double> out);

}  // namespace presum::detect
