// SPDX-License-Identifier: Apache-2.0
// From a step's record to one number per worker and statistic; NaN where a worker has none.
#pragma once

#include <span>
#include <vector>

#include "presum/step_record.h"

namespace presum::detect {

// By replica; as long as workers are expected. Buffers are reused from step to step.
struct Statistics {
  std::vector<double> loss;
  std::vector<double> norm;       // log, over the gradient's weight where it is known
  std::vector<double> direction;  // needs three workers
  std::vector<double> peak;       // log
  std::vector<double> residual;   // of norm on loss; needs four workers and losses that differ
  std::vector<double> tokens;     // log
  std::vector<double> closest;    // distance of the closest micro-batch losses
  std::vector<std::vector<double>> micro;  // finite losses of micro-batches that count

  // `odd`: workers whose loss or norm is known to deviate; they would tilt the line of the
  // residuals and have none. REQUIRES: one for each of `workers`, and replicas below.
  void fill(const StepRecord& record, std::size_t workers, const std::vector<bool>& odd);

 private:
  void fill_worker(const WorkerRecord& worker);
  void fill_residual(const std::vector<bool>& odd);
  void fill_closest();

  std::vector<double> scratch_;
};

// Log of a norm over the weight of the worker's gradient, where that is known: a worker with few
// tokens has a short gradient on purpose.
double log_norm(const WorkerRecord& worker, double norm);
// Whether the losses of each worker's micro-batches can be compared as they are: weights are told,
// or nothing shows that sizes differ. False where numbers of target tokens do, or where numbers of
// samples differ between workers or cannot be divided evenly: losses may be weighted by these.
bool weigh_alike(const StepRecord& record);
// Whether the group has no gradient but the rounding of the others' on any worker, as a bias before
// a normalization: its norm says nothing.
bool practically_zero(const StepRecord& record, const GroupRecord& group);
// log_norm of a group, by replica.
void fill_group(const StepRecord& record, const GroupRecord& group, std::span<double> out);

}  // namespace presum::detect
