// SPDX-License-Identifier: Apache-2.0
#include "detect/e_values.h"

#include <algorithm>
#include <numbers>

namespace presum::detect {
namespace {

template <std::size_t N>
double polynomial(const std::array<double, N>& coefficients, double x) {
  double y = 0;
  for (const double c : coefficients) y = y * x + c;
  return y;
}

// Acklam's rational approximation for p <= 1/2; relative error about 1e-9.
double rough_quantile(double p) {
  constexpr std::array kA = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                             1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr std::array kB = {-5.447609879822406e+01, 1.615858368580409e+02,  -1.556989798598866e+02,
                             6.680131188771972e+01,  -1.328068155288572e+01, 1.0};
  constexpr std::array kC = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                             -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
  constexpr std::array kD = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                             3.754408661907416e+00, 1.0};
  if (p < 0.02425) {
    const double q = std::sqrt(-2 * std::log(p));
    return polynomial(kC, q) / polynomial(kD, q);
  }
  const double q = p - 0.5;
  return q * polynomial(kA, q * q) / polynomial(kB, q * q);
}

// Factors by which the expected median absolute deviation of n normal values is too small (Croux
// and Rousseeuw, 1992).
double small_sample_factor(std::size_t n) {
  constexpr std::array kFactors = {1.196, 1.495, 1.363, 1.206, 1.200, 1.140, 1.129, 1.107};
  if (n < 2) return 1;
  return n < 10 ? kFactors[n - 2] : double(n) / (double(n) - 0.8);
}

}  // namespace

double normal_quantile(double p) {
  if (p > 0.5) return -normal_quantile(1 - p);
  const double x = rough_quantile(p);
  const double error = 0.5 * std::erfc(-x / std::numbers::sqrt2) - p;
  const double u = error * std::sqrt(2 * std::numbers::pi) * std::exp(x * x / 2);
  return x - u / (1 + x * u / 2);
}

RankTable::RankTable(std::size_t n, std::span<const double> thetas)
    : columns_(2 * thetas.size()), values_(n * columns_) {
  std::vector<double> e(n);
  for (std::size_t k = 0; k < thetas.size(); ++k) {
    for (std::size_t r = 0; r < n; ++r) {
      e[r] = std::exp(thetas[k] * normal_quantile((double(r) + 0.5) / double(n)));
    }
    const double mean = sum(e) / double(n);
    for (std::size_t r = 0; r < n; ++r) {
      values_[r * columns_ + k] = e[r] / mean;
      values_[(n - 1 - r) * columns_ + thetas.size() + k] = e[r] / mean;
    }
  }
}

const RankTable& RankTables::of(std::size_t n) {
  const auto found = tables_.find(n);
  return found != tables_.end() ? found->second
                                : tables_.emplace(n, RankTable(n, thetas_)).first->second;
}

void RankTables::trim() {
  constexpr std::size_t kKept = 16;
  if (tables_.size() > kKept) tables_.clear();
}

Window window_of(std::span<const double> block, std::size_t columns, std::size_t from,
                 std::size_t count, const ReadingSums& now, std::uint64_t step) {
  const auto total = [&](std::size_t snapshot) {
    return sum(block.subspan(snapshot * columns + from, count));
  };
  const double m = total(0);
  const double age = std::round(double(step) - total(1) / m);
  const bool usable = age > 0 && age < 1e18;  // rounding and hostile states may yield anything
  const double steps = std::max(1.0, now.count - total(2) / m);
  return {step - std::min(step, usable ? static_cast<std::uint64_t>(age) : 0),
          (now.effect - total(3) / m) / steps, (now.difference - total(4) / m) / steps};
}

void begin_at(std::span<double> block, std::size_t columns, std::uint64_t step) {
  for (std::size_t k = 0; k < columns; ++k) block[columns + k] = block[k] * double(step);
}

void clear(std::span<double> block, std::size_t columns, std::size_t from, std::size_t count) {
  for (std::size_t m = 0; m < kSnapshots; ++m) {
    std::ranges::fill(block.subspan(m * columns + from, count), 0.0);
  }
}

double median(std::span<double> values) {
  if (values.empty()) return std::nan("");
  const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

void RobustScale::update(std::span<double> deviations) {
  constexpr double kRate = 0.02;
  const double sd = 1.4826 * small_sample_factor(deviations.size()) * median(deviations);
  if (!std::isfinite(sd)) return;
  sum_ += kRate * (sd - sum_);
  weight_ += kRate * (1 - weight_);
}

double RobustScale::distance(double difference) const {
  if (difference == 0 || std::isnan(difference)) return 0;
  return bounded(value() > 0 ? difference / value() : std::copysign(1e3, difference));
}

}  // namespace presum::detect
