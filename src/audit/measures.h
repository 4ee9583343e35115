// SPDX-License-Identifier: Apache-2.0
// How far a result is from the exact sum: docs/audit.md, "What is measured".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "audit/orders.h"
#include "presum/audit.h"
#include "presum/dtype.h"

namespace presum::audit {

// Sums of rows, element by element, as unevaluated pairs of doubles; and the sums of their absolute
// values.
struct Sums {
  template <class Real>
  void of(const Rows<Real>& rows);

  std::vector<double> high;
  std::vector<double> low;
  std::vector<double> sum_abs;
};

template <class Real>
struct Truth {
  std::vector<Real> rounded;  // the sum or mean, correctly rounded to the rows' dtype
  Sums sums;                  // not divided
};

// Computes the truth for rows of one dtype. Not thread-safe.
template <class Real>
class Exact {
 public:
  // REQUIRES: 1 to reduce::kLeavesMax ranks, a divisor from 1 to reduce::kDivisorMax.
  Exact(std::size_t workers, Dtype dtype, std::uint32_t divisor);
  void rounded(const Rows<Real>& rows, std::span<Real> out);
  // The same for rows in another order; equals `rounded` if nothing depends on the order.
  void rounded(const Rows<Real>& rows, std::span<const std::uint32_t> order, std::span<Real> out);
  const Truth<Real>& truth(const Rows<Real>& rows);

 private:
  std::size_t workers_;
  Dtype dtype_;
  std::uint32_t divisor_;
  std::vector<std::byte> packed_;
  std::vector<std::byte> sum_;
  Truth<Real> truth_;
};

// The error of a value: value - (high + low) / divisor, nearly exact. NaN if an operand is not
// finite.
double error_of(double value, double high, double low, double divisor);

// Percentiles of distances in units in the last place: exact up to 4,096; above, the upper end of a
// power-of-two range.
class UlpHistogram {
 public:
  void add(std::uint64_t ulps, std::uint64_t times = 1);
  std::uint64_t count() const { return count_; }
  std::uint64_t largest() const { return largest_; }
  // Returns the smallest distance that at least this share of the elements does not exceed; 0 if
  // there are no elements.
  std::uint64_t percentile(double share) const;
  UlpPercentiles percentiles() const {
    return {percentile(0.5), percentile(0.9), percentile(0.99), largest_};
  }

 private:
  static constexpr std::size_t kSmall = 4097;
  std::array<std::uint64_t, kSmall> small_{};
  std::array<std::uint64_t, 65> large_{};  // by bit width
  std::uint64_t count_ = 0;
  std::uint64_t largest_ = 0;
};

// A sum of squares scaled by a power of two, so that no square overflows or underflows.
class Squares {
 public:
  void add(double x);            // REQUIRES: finite
  void add_sum(double squares);  // REQUIRES: finite, not negative
  // Returns the square root of a / b. NaN for 0 / 0, infinite for x / 0.
  static double root_of_ratio(const Squares& a, const Squares& b);

 private:
  double sum_ = 0;    // times 4^shift_
  double scale_ = 1;  // 2^shift_
  int shift_ = 0;
};

// Measures summed over blocks. Elements whose exact value, result or error is not finite count only
// in `elements`, `differing` and `nonfinite` (in fp64, partial sums can overflow).
class Measures {
 public:
  template <class Real>
  void add(std::span<const Real> result, const Truth<Real>& truth, Dtype dtype, double divisor);

  // Adds totals: few[k] elements at a distance of k, the elements with the given nonzero
  // `distances`, and sums over elements.
  void add_distances(std::span<const std::uint64_t> few, std::span<const std::uint32_t> distances);
  void add_sums(double squared_errors, double squared_exact, double ratios, double largest_ratio);

  std::uint64_t elements = 0;
  std::uint64_t differing = 0;  // from the correctly rounded value
  std::uint64_t nonfinite = 0;
  UlpHistogram ulps;
  double error_max = 0;  // largest |error| / sum of |x|; 0 if that sum is 0

  double relative_l2() const;  // NaN if the exact result is zero everywhere
  double error_mean() const;   // mean |error| / sum of |x|; NaN without elements

 private:
  Squares squared_errors_;
  Squares squared_exact_;
  double error_sum_ = 0;
};

// Number of elements in which two blocks differ as numbers.
template <class Real>
std::uint64_t differing(std::span<const Real> a, std::span<const Real> b);

}  // namespace presum::audit
