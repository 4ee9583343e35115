// SPDX-License-Identifier: Apache-2.0
// How long the ranks of two runs took, phase by phase.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "compare/compare.h"
#include "presum/step_record.h"

namespace presum::compare {

// The mean of a series and its uncertainty, if neighboring values may be correlated. Uses the means
// of rows of equally many values; keeps at most 64 rows. The uncertainty ignores values after the
// last full row.
class BatchMeans {
 public:
  void add(double value);
  double mean() const;  // NaN without values
  std::size_t rows() const { return rows_.size(); }
  double variance_of_mean() const;  // NaN for fewer than two rows

 private:
  std::uint64_t count_ = 0;
  double sum_ = 0;
  std::vector<double> rows_;  // their means
  std::uint64_t row_length_ = 1;
  std::uint64_t in_row_ = 0;  // number of values in the incomplete row
  double row_sum_ = 0;        // sum of the incomplete row
};

// The 95% interval of the difference of the means, by Welch's t-test. NaN if either has fewer than
// 8 rows.
TimeDifference difference_of(const BatchMeans& a, const BatchMeans& b);

class PhaseTimes {
 public:
  // Adds a common step. It counts if times of ranks are known in both runs.
  void add(const StepRecord& a, const StepRecord& b);
  // Empty if no step counted.
  std::optional<TimeComparison> result() const;

 private:
  // By Phase; own time is last.
  using Series = std::array<BatchMeans, kPhaseCount + 1>;
  std::uint64_t steps_ = 0;
  Series a_, b_;
};

}  // namespace presum::compare
