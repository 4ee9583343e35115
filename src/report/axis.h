// SPDX-License-Identifier: Apache-2.0
// Reduces long series to few rows in which a spike of one step stays visible. Plain values: one
// thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace presum::report {

// Which rows of a chart a step falls into. Few steps: one bucket and one row each, and an empty
// bucket where steps are missing between two recorded ones. Many: buckets of equal width with two
// rows each.
class StepAxis {
 public:
  // REQUIRES: steps ascend strictly; buckets_max >= 2. At most 2 buckets_max steps stay
  // undecimated.
  StepAxis(std::span<const std::uint64_t> steps, std::size_t buckets_max);

  bool decimated() const { return width_ != 0; }
  std::size_t buckets() const { return starts_.size(); }
  std::size_t rows_per_bucket() const { return decimated() ? 2 : 1; }
  // Where a step falls; none for a step that is not on the axis.
  std::optional<std::size_t> bucket(std::uint64_t step) const;
  // The first step of each bucket.
  const std::vector<std::uint64_t>& starts() const { return starts_; }
  // The x of each row.
  std::vector<std::uint64_t> rows() const;

 private:
  void place_each(std::span<const std::uint64_t> steps);
  void place_in_buckets(std::span<const std::uint64_t> steps, std::size_t buckets_max);

  std::vector<std::uint64_t> starts_;
  std::uint64_t width_ = 0;  // steps in a bucket; 0: one bucket per step
};

// One series over an axis. Of each bucket it keeps both extremes, the lowest first.
class Column {
 public:
  explicit Column(const StepAxis& axis);
  // Adds a step's value; steps come in ascending order. A value that is not finite is left out.
  void add(std::size_t bucket, double value);
  // One value per row; NaN where a bucket holds none.
  std::vector<double> rows() const;

 private:
  struct Extremes {
    double low;
    double high;
  };
  std::size_t rows_per_bucket_;
  std::vector<Extremes> buckets_;
};

}  // namespace presum::report
