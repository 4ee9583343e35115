// SPDX-License-Identifier: Apache-2.0
#include "audit/measures.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "presum/reduce.h"

namespace presum::audit {
namespace {

// high + low += x, with an error far below the last bit of `high`.
void accumulate(double& high, double& low, double x) {
  const double sum = high + x;
  const double back = sum - high;
  low += (high - (sum - back)) + (x - back);
  high = sum;
}

constexpr double kScaledMax = 0x1p400;

}  // namespace

double error_of(double value, double high, double low, double divisor) {
  const double product = value * divisor;
  const double rest = std::fma(value, divisor, -product);
  return ((product - high) + (rest - low)) / divisor;
}

template <class Real>
void Sums::of(const Rows<Real>& rows) {
  high.assign(rows.count, 0);
  low.assign(rows.count, 0);
  sum_abs.assign(rows.count, 0);
  for (std::size_t worker = 0; worker < rows.workers(); ++worker) {
    const auto row = rows[worker];
    for (std::size_t i = 0; i < rows.count; ++i) {
      const auto x = static_cast<double>(row[i]);
      accumulate(high[i], low[i], x);
      sum_abs[i] += std::abs(x);
    }
  }
}

template <class Real>
Exact<Real>::Exact(std::size_t workers, Dtype dtype, std::uint32_t divisor)
    : workers_(workers),
      dtype_(dtype),
      divisor_(divisor),
      packed_(workers * kBlock * element_bytes(dtype)),
      sum_(kBlock * element_bytes(dtype)) {}

template <class Real>
void Exact<Real>::rounded(const Rows<Real>& rows, std::span<Real> out) {
  std::vector<std::uint32_t> order(workers_);
  std::iota(order.begin(), order.end(), 0U);
  rounded(rows, order, out);
}

template <class Real>
void Exact<Real>::rounded(const Rows<Real>& rows, std::span<const std::uint32_t> order,
                          std::span<Real> out) {
  const std::size_t stride = kBlock * element_bytes(dtype_);
  std::vector<const void*> leaves;
  for (const std::uint32_t worker : order) {
    std::byte* leaf = packed_.data() + leaves.size() * stride;
    pack(rows[worker], dtype_, leaf);
    leaves.push_back(leaf);
  }
  // Cannot fail, because the constructor's requirements hold.
  static_cast<void>(reduce::exact(leaves, dtype_, rows.count, divisor_, sum_.data()));
  unpack(sum_.data(), 0, dtype_, out.first(rows.count));
}

template <class Real>
const Truth<Real>& Exact<Real>::truth(const Rows<Real>& rows) {
  truth_.rounded.resize(rows.count);
  rounded(rows, truth_.rounded);
  truth_.sums.of(rows);
  return truth_;
}

void UlpHistogram::add(std::uint64_t ulps, std::uint64_t times) {
  if (times == 0) return;
  count_ += times;
  largest_ = std::max(largest_, ulps);
  if (ulps < kSmall) {
    small_[ulps] += times;
  } else {
    large_[static_cast<std::size_t>(std::bit_width(ulps))] += times;
  }
}

std::uint64_t UlpHistogram::percentile(double share) const {
  const double needed = share * static_cast<double>(count_);
  std::uint64_t seen = 0;
  for (std::size_t ulps = 0; ulps < kSmall; ++ulps) {
    seen += small_[ulps];
    if (static_cast<double>(seen) >= needed) return ulps;
  }
  for (std::size_t width = 0; width < large_.size(); ++width) {
    seen += large_[width];
    if (static_cast<double>(seen) < needed) continue;
    const std::uint64_t end = width >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << width) - 1;
    return std::min(end, largest_);
  }
  return largest_;
}

void Squares::add(double x) {
  if (x == 0) return;
  double scaled = x * scale_;
  if (sum_ == 0 || std::abs(scaled) > kScaledMax) {
    // The largest and the smallest double are within 2^75 of 1 at the ends of this range.
    const int shift = std::clamp(-std::ilogb(x), -1000, 1000);
    sum_ = std::ldexp(sum_, 2 * (shift - shift_));
    shift_ = shift;
    scale_ = std::ldexp(1.0, shift);
    scaled = x * scale_;
  }
  sum_ += scaled * scaled;
}

void Squares::add_sum(double squares) {
  if (squares == 0) return;
  const int shift = std::clamp(-std::ilogb(squares) / 2, -1000, 1000);
  if (sum_ == 0 || shift < shift_) {
    sum_ = std::ldexp(sum_, 2 * (shift - shift_));
    shift_ = shift;
    scale_ = std::ldexp(1.0, shift);
  }
  sum_ += std::ldexp(squares, 2 * shift_);
}

double Squares::root_of_ratio(const Squares& a, const Squares& b) {
  return std::ldexp(std::sqrt(a.sum_ / b.sum_), b.shift_ - a.shift_);
}

template <class Real>
void Measures::add(std::span<const Real> result, const Truth<Real>& truth, Dtype dtype,
                   double divisor) {
  elements += result.size();
  for (std::size_t i = 0; i < result.size(); ++i) {
    differing += !same(result[i], truth.rounded[i]);
    const Sums& s = truth.sums;
    const double error = error_of(result[i], s.high[i], s.low[i], divisor);
    if (!std::isfinite(result[i]) || !std::isfinite(truth.rounded[i]) || !std::isfinite(error)) {
      ++nonfinite;
      continue;
    }
    const std::int64_t a = place(result[i], dtype);
    const std::int64_t b = place(truth.rounded[i], dtype);
    const auto high = static_cast<std::uint64_t>(std::max(a, b));
    ulps.add(high - static_cast<std::uint64_t>(std::min(a, b)));
    squared_errors_.add(error);
    squared_exact_.add((s.high[i] + s.low[i]) / divisor);
    const double sum_abs = s.sum_abs[i] / divisor;
    if (sum_abs == 0) continue;
    error_sum_ += std::abs(error) / sum_abs;
    error_max = std::max(error_max, std::abs(error) / sum_abs);
  }
}

void Measures::add_distances(std::span<const std::uint64_t> few,
                             std::span<const std::uint32_t> distances) {
  const std::uint64_t before = ulps.count();
  for (std::size_t k = 0; k < few.size(); ++k) ulps.add(k, few[k]);
  for (const std::uint32_t distance : distances) ulps.add(distance);
  const std::uint64_t count = ulps.count() - before;
  elements += count;
  differing += count - few.front();
}

void Measures::add_sums(double squared_errors, double squared_exact, double ratios,
                        double largest_ratio) {
  squared_errors_.add_sum(squared_errors);
  squared_exact_.add_sum(squared_exact);
  error_sum_ += ratios;
  error_max = std::max(error_max, largest_ratio);
}

double Measures::relative_l2() const {
  return Squares::root_of_ratio(squared_errors_, squared_exact_);
}

double Measures::error_mean() const {
  return error_sum_ / static_cast<double>(elements - nonfinite);
}

template <class Real>
std::uint64_t differing(std::span<const Real> a, std::span<const Real> b) {
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += !same(a[i], b[i]);
  return count;
}

template void Sums::of(const Rows<float>&);
template void Sums::of(const Rows<double>&);
template class Exact<float>;
template class Exact<double>;
template void Measures::add(std::span<const float>, const Truth<float>&, Dtype, double);
template void Measures::add(std::span<const double>, const Truth<double>&, Dtype, double);
template std::uint64_t differing(std::span<const float>, std::span<const float>);
template std::uint64_t differing(std::span<const double>, std::span<const double>);

}  // namespace presum::audit
