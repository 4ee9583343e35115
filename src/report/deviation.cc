// SPDX-License-Identifier: Apache-2.0
#include "report/deviation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/others_median.h"

namespace presum::report {
namespace {

constexpr double kMemory = 0.9;   // averages over about the last ten steps
constexpr double kEqual = 1e-12;  // relative to a value; smaller distances are rounding

// REQUIRES: `sorted` is sorted and not empty.
double median(std::span<const double> sorted) {
  const std::size_t n = sorted.size();
  return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

double spread(std::span<const double> sorted) {
  const double middle = median(sorted);
  std::vector<double> distances;
  for (const double x : sorted) distances.push_back(std::abs(x - middle));
  std::sort(distances.begin(), distances.end());
  const double robust = 1.4826 * median(distances);
  if (robust > 0) return robust;
  return 1.2533 * std::accumulate(distances.begin(), distances.end(), 0.0) /
         static_cast<double>(distances.size());
}

}  // namespace

std::vector<double> Deviation::step(std::span<const double> values) {
  std::vector<double> out(values.size(), std::numeric_limits<double>::quiet_NaN());
  std::vector<double> sorted;
  std::copy_if(values.begin(), values.end(), std::back_inserter(sorted),
               [](double x) { return std::isfinite(x); });
  if (sorted.size() < 2) return out;
  std::sort(sorted.begin(), sorted.end());
  const double now = spread(sorted);
  spread_ = started_ ? kMemory * spread_ + (1 - kMemory) * now : now;
  started_ = true;
  const base::OthersMedian others(std::move(sorted));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) continue;
    const double distance = values[i] - others.of(values[i]);
    out[i] = std::abs(distance) <= kEqual * std::abs(values[i]) ? 0 : distance / spread_;
  }
  return out;
}

}  // namespace presum::report
