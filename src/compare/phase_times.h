// SPDX-License-Identifier: Apache-2.0
// How long the workers of two runs took, phase by phase.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "compare/compare.h"
#include "presum/step_record.h"

namespace presum::compare {

// The mean of a series and how sure it is, where neighbors may be alike: by the means of rows of
// equally many values, of which it keeps 64 at most. Values after the last full row do not count
// there.
class BatchMeans {
 public:
  void add(double value);
  double mean() const;  // NaN without any
  std::size_t rows() const { return rows_.size(); }
  double variance_of_mean() const;  // NaN for fewer than two rows

 private:
  std::uint64_t count_ = 0;
  double sum_ = 0;
  std::vector<double> rows_;  // their means
  std::uint64_t row_length_ = 1;
  std::uint64_t in_row_ = 0;  // values of the row that is not full
  double row_sum_ = 0;        // likewise
};

// The 95% interval of the difference of the means, by Welch's t-test. Not known for fewer than 8
// rows of one.
TimeDifference difference_of(const BatchMeans& a, const BatchMeans& b);

class PhaseTimes {
 public:
  // A common step. Counts where times of workers of both runs are known.
  void add(const StepRecord& a, const StepRecord& b);
  // None where no step counted.
  std::optional<TimeComparison> result() const;

 private:
  // By Phase, and own time after these.
  using Series = std::array<BatchMeans, kPhaseCount + 1>;
  std::uint64_t steps_ = 0;
  Series a_, b_;
};

}  // namespace presum::compare
