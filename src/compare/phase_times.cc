// SPDX-License-Identifier: Apache-2.0
#include "compare/phase_times.h"

#include <cmath>

namespace presum::compare {
namespace {

constexpr std::size_t kRowsMax = 64;
constexpr std::size_t kRowsLeast = 8;

using StepMeans = std::array<double, kPhaseCount + 1>;

// Means over the ranks whose times are known; empty if there are none.
std::optional<StepMeans> means_of(const StepRecord& step) {
  StepMeans out = {};
  double workers = 0;
  for (const WorkerRecord& w : step.workers) {
    if (!w.times.known()) continue;
    ++workers;
    for (std::size_t p = 0; p < kPhaseCount; ++p) out[p] += w.times.seconds[p];
    out.back() += w.times.own();
  }
  if (workers == 0) return std::nullopt;
  for (double& seconds : out) seconds /= workers;
  return out;
}

// The 97.5% quantile of Student's t, by the Cornish-Fisher expansion; accurate to 0.1% from 7
// degrees of freedom on.
double quantile_975(double freedom) {
  constexpr double z = 1.959963984540054;
  constexpr double z3 = z * z * z;
  constexpr double z5 = z3 * z * z;
  constexpr double z7 = z5 * z * z;
  const double first = (z3 + z) / 4;
  const double second = (5 * z5 + 16 * z3 + 3 * z) / 96;
  const double third = (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / 384;
  return z + (first + (second + third / freedom) / freedom) / freedom;
}

// Degrees of freedom by Welch and Satterthwaite.
double freedom_of(double variance_a, std::size_t rows_a, double variance_b, std::size_t rows_b) {
  const double sum = variance_a + variance_b;
  const double parts = variance_a * variance_a / static_cast<double>(rows_a - 1) +
                       variance_b * variance_b / static_cast<double>(rows_b - 1);
  return parts > 0 ? sum * sum / parts : INFINITY;
}

}  // namespace

void BatchMeans::add(double value) {
  ++count_;
  sum_ += value;
  row_sum_ += value;
  if (++in_row_ < row_length_) return;
  rows_.push_back(row_sum_ / static_cast<double>(row_length_));
  row_sum_ = 0;
  in_row_ = 0;
  if (rows_.size() < kRowsMax) return;
  for (std::size_t i = 0; i < kRowsMax / 2; ++i) {
    rows_[i] = (rows_[2 * i] + rows_[2 * i + 1]) / 2;
  }
  rows_.resize(kRowsMax / 2);
  row_length_ *= 2;
}

double BatchMeans::mean() const { return count_ == 0 ? kNaN : sum_ / static_cast<double>(count_); }

double BatchMeans::variance_of_mean() const {
  if (rows_.size() < 2) return kNaN;
  const auto n = static_cast<double>(rows_.size());
  double sum = 0;
  for (const double row : rows_) sum += row;
  double squares = 0;
  for (const double row : rows_) squares += (row - sum / n) * (row - sum / n);
  return squares / (n - 1) / n;
}

TimeDifference difference_of(const BatchMeans& a, const BatchMeans& b) {
  TimeDifference out{.a = a.mean(), .b = b.mean()};
  if (a.rows() < kRowsLeast || b.rows() < kRowsLeast) return out;
  const double variance_a = a.variance_of_mean();
  const double variance_b = b.variance_of_mean();
  const double freedom = freedom_of(variance_a, a.rows(), variance_b, b.rows());
  const double half = quantile_975(freedom) * std::sqrt(variance_a + variance_b);
  out.low = out.b - out.a - half;
  out.high = out.b - out.a + half;
  return out;
}

void PhaseTimes::add(const StepRecord& a, const StepRecord& b) {
  const auto of_a = means_of(a);
  const auto of_b = means_of(b);
  if (!of_a || !of_b) return;
  ++steps_;
  for (std::size_t i = 0; i < of_a->size(); ++i) {
    a_[i].add((*of_a)[i]);
    b_[i].add((*of_b)[i]);
  }
}

std::optional<TimeComparison> PhaseTimes::result() const {
  if (steps_ == 0) return std::nullopt;
  TimeComparison out{.steps = steps_, .own = difference_of(a_.back(), b_.back())};
  for (std::size_t p = 0; p < kPhaseCount; ++p) out.phases[p] = difference_of(a_[p], b_[p]);
  return out;
}

}  // namespace presum::compare
