// SPDX-License-Identifier: Apache-2.0
// Reduces long series to a few rows in which a one-step spike stays visible. Plain values: one
// thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace presum::report {

// Maps steps to the rows of a chart. Few steps: one bucket and one row per step, and an empty
// bucket where steps between two recorded ones are missing. Many steps: buckets of equal width,
// with two rows each.
class StepAxis {
 public:
  // REQUIRES: steps ascend strictly; buckets_max >= 2. Up to 2 buckets_max steps are not decimated.
  StepAxis(std::span<const std::uint64_t> steps, std::size_t buckets_max);

  bool decimated() const { return width_ != 0; }
  std::size_t buckets() const { return starts_.size(); }
  std::size_t rows_per_bucket() const { return decimated() ? 2 : 1; }
  // The bucket of a step; empty for a step that is not on the axis.
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

// One series over an axis. Keeps both extremes of each bucket, the lower one first.
class Column {
 public:
  explicit Column(const StepAxis& axis);
  // Adds a step's value; steps must ascend. A value that is not finite is skipped.
  void add(std::size_t bucket, double value);
  // One value per row; NaN if the bucket has no value.
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
