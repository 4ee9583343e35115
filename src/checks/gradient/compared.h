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

// A rank's gradients and losses beside the others', over the steps of an alarm. Ratios are
// geometric means, to that of the others. NaN where fewer than 8 steps tell.
struct Compared {
  double norm_ratio = kNaN;
  double norm_ratio_error = kNaN;  // standard error of its log
  double loss_ratio = kNaN;
  double norm_cv = kNaN;         // of its own norms
  bool layers_alike = false;     // every layer has that ratio; false where no layer is known
  std::uint64_t only_layer = 0;  // the id of the one that has another ratio, where others have 1
  double cosine = kNaN;          // with the others
  double cosine_error = kNaN;
  double cosine_of_others = kNaN;  // with each other
  // What its loss may be, where the norm and every layer have just that factor, and the loss has it
  // too or, for some, is told as the others' is.
  std::vector<std::string> scales;

  // It is as long as the others' and points the other way.
  bool is_turned() const;
  // It has the same norm at every step, and the others have not.
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

// What the last 32 steps tell of every rank.
class RecentGradients {
 public:
  void see(const StepRecord& record);
  Compared compare(std::uint32_t replica, std::uint64_t first_step) const;

 private:
  // Logs, but for the cosine.
  struct Worker {
    std::uint32_t replica = 0;
    double micro_batches = kNaN;  // of the step
    double samples = kNaN;        // of a micro-batch
    double tokens = kNaN;         // of a micro-batch, those that count in the loss
    double loss = kNaN;
    double norm = kNaN;
    double cosine = kNaN;
    std::vector<double> layers;
  };
  struct Step {
    std::uint64_t number = 0;
    double cosine_mean = kNaN;  // of all pairs
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
