// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <tuple>
#include <vector>

#include "checks/engine/evidence.h"
#include "presum/step_record.h"

namespace presum::checks {

// A rank's gradients and losses relative to the others', over the steps of an alarm. Ratios are
// geometric means. NaN with fewer than 8 usable steps.
struct Compared {
  double norm_ratio = kNaN;
  double norm_ratio_error = kNaN;  // standard error of its log
  double loss_ratio = kNaN;
  double norm_cv = kNaN;         // of the rank's own norms
  bool layers_alike = false;     // every layer has norm_ratio; false if no layer is known
  std::uint64_t only_layer = 0;  // id of the only layer whose ratio is not 1
  double cosine = kNaN;          // cosine similarity with the others
  double cosine_error = kNaN;
  double cosine_of_others = kNaN;  // of the others with each other
  // How the rank's loss may be scaled: the norm and every layer have exactly that factor. The loss
  // has it too, or, for some divisors, the reported loss equals the others'.
  std::vector<std::string> scales;

  // It is as long as the others' and points in the opposite direction.
  bool is_turned() const;
  // Its norm is the same at every step, unlike the others'.
  bool is_clipped() const;

  static constexpr std::tuple kFields{field("norm_ratio", &Compared::norm_ratio),
                                      field("norm_ratio_error", &Compared::norm_ratio_error),
                                      field("loss_ratio", &Compared::loss_ratio),
                                      field("norm_cv", &Compared::norm_cv),
                                      field("layers_alike", &Compared::layers_alike),
                                      field("cosine", &Compared::cosine),
                                      field("cosine_error", &Compared::cosine_error),
                                      field("cosine_of_others", &Compared::cosine_of_others),
                                      field("scales", &Compared::scales)};
};

// The gradients and losses of every rank in the last 32 steps.
class RecentGradients {
 public:
  void see(const StepRecord& record);
  Compared compare(std::uint32_t replica, std::uint64_t first_step) const;

 private:
  // Logs, except for the cosine similarity.
  struct Worker {
    std::uint32_t replica = 0;
    double micro_batches = kNaN;  // per step
    double samples = kNaN;        // per micro-batch
    double tokens = kNaN;         // per micro-batch, only tokens that count in the loss
    double loss = kNaN;
    double norm = kNaN;
    double cosine = kNaN;
    std::vector<double> layers;
  };
  struct Step {
    std::uint64_t number = 0;
    double cosine_mean = kNaN;  // over all pairs
    std::vector<Worker> workers;

    double cosine_of_others(const Worker& one) const;
  };
  struct Ratios;

  Ratios ratios(std::uint32_t replica, std::uint64_t first_step, double Worker::*divisor,
                double sign) const;
  std::vector<std::string> scales(std::uint32_t replica, std::uint64_t first_step,
                                  const Ratios& seen) const;

  std::deque<Step> steps_;
  std::vector<std::uint64_t> ids_;  // of the layers
};

}  // namespace presum::checks
