// SPDX-License-Identifier: Apache-2.0
#include "report/axis.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace presum::report {
namespace {

// The median distance between recorded steps; 1 if there are fewer than two.
std::uint64_t usual_stride(std::span<const std::uint64_t> steps) {
  std::vector<std::uint64_t> strides;
  for (std::size_t i = 1; i < steps.size(); ++i) strides.push_back(steps[i] - steps[i - 1]);
  if (strides.empty()) return 1;
  const auto middle = strides.begin() + static_cast<std::ptrdiff_t>(strides.size() / 2);
  std::nth_element(strides.begin(), middle, strides.end());
  return *middle;
}

}  // namespace

StepAxis::StepAxis(std::span<const std::uint64_t> steps, std::size_t buckets_max) {
  if (steps.size() <= 2 * buckets_max) {
    place_each(steps);
  } else {
    place_in_buckets(steps, buckets_max);
  }
}

void StepAxis::place_each(std::span<const std::uint64_t> steps) {
  const auto stride = usual_stride(steps);
  for (const std::uint64_t step : steps) {
    if (!starts_.empty() && step - starts_.back() > stride) {
      starts_.push_back(starts_.back() + stride);
    }
    starts_.push_back(step);
  }
}

void StepAxis::place_in_buckets(std::span<const std::uint64_t> steps, std::size_t buckets_max) {
  const auto span = steps.back() - steps.front();
  width_ = span / buckets_max + 1;
  for (std::uint64_t i = 0; i <= span / width_; ++i) {
    starts_.push_back(steps.front() + i * width_);
  }
}

std::optional<std::size_t> StepAxis::bucket(std::uint64_t step) const {
  if (starts_.empty() || step < starts_.front()) return std::nullopt;
  if (decimated()) {
    const auto at = (step - starts_.front()) / width_;
    return at < starts_.size() ? std::optional<std::size_t>(at) : std::nullopt;
  }
  const auto found = std::lower_bound(starts_.begin(), starts_.end(), step);
  if (found == starts_.end() || *found != step) return std::nullopt;
  return static_cast<std::size_t>(found - starts_.begin());
}

std::vector<std::uint64_t> StepAxis::rows() const {
  if (!decimated()) return starts_;
  std::vector<std::uint64_t> out;
  for (const std::uint64_t start : starts_) {
    out.push_back(start);
    out.push_back(start + width_ / 2);
  }
  return out;
}

Column::Column(const StepAxis& axis)
    : rows_per_bucket_(axis.rows_per_bucket()),
      buckets_(axis.buckets(), {std::numeric_limits<double>::infinity(),
                                -std::numeric_limits<double>::infinity()}) {}

void Column::add(std::size_t bucket, double value) {
  if (!std::isfinite(value)) return;
  Extremes& e = buckets_[bucket];
  e.low = std::min(e.low, value);
  e.high = std::max(e.high, value);
}

std::vector<double> Column::rows() const {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> out;
  for (const Extremes& e : buckets_) {
    const bool empty = e.low > e.high;
    const double low = empty ? kNone : e.low;
    const double high = empty ? kNone : e.high;
    // The lower extreme always comes first, so that the edges of a band keep their order in every
    // row.
    out.push_back(low);
    if (rows_per_bucket_ == 2) out.push_back(high);
  }
  return out;
}

}  // namespace presum::report
