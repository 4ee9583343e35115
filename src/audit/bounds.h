// SPDX-License-Identifier: Apache-2.0
// How far a sum can be from the exact one, depending on the format of the additions: docs/audit.md,
// "How format and order are inferred".
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "audit/measures.h"
#include "audit/orders.h"
#include "presum/audit.h"

namespace presum::audit {

Accumulation accumulation_of(Dtype dtype);
// The formats in which values of a dtype may have been added, widest first.
std::span<const Dtype> formats_of(Dtype dtype);

// For each format, widest first: the number of elements further off than a sum in this format can
// be, in any order.
using Beyond = std::vector<std::pair<Accumulation, std::uint64_t>>;

struct Excess {
  Beyond beyond;
  // Elements further off than four times the usual error of sums in the narrowest formats. The
  // bounds cover the worst order; with many ranks, most numbers are within them.
  std::uint64_t far = 0;
};

// Returns whether the values of all ranks for an element are finite.
template <class Real>
bool are_finite(const Rows<Real>& rows, std::size_t element);

// One element of a result, and the exact sum, which is (high + low) / divisor.
template <class Real>
struct ResultElement {
  Real result;
  double high;
  double low;
  double sum_abs;
  bool finite;  // the values of all ranks are finite
};

// The bounds of all formats. Immutable.
class Bounds {
 public:
  // `divisor` as for reduce::exact, for sums that are divided after the addition. `slack`: the
  // maximum sum of the errors of division and rounding, in half units in the last place. `divided`:
  // the number of roundings of each value before the addition.
  Bounds(std::uint32_t workers, Dtype dtype, std::uint32_t divisor, double slack, int divided = 0);
  // Bounds for sums or means, regardless of how they are made.
  static Bounds of_any_division(std::uint32_t workers, Dtype dtype, std::uint32_t divisor);

  // counts[f] belongs to format f; the last count is that of the far elements.
  std::size_t counts() const { return limits_.size() + 1; }
  template <class Real>
  void count(const ResultElement<Real>& element, std::span<std::uint64_t> counts) const;

  // Limits of |error|, all times the divisor.
  struct Limit {
    Dtype wire = Dtype::kF32;  // format of the sum
    double relative = 0;       // relative to the sum of absolute values
    double half_ulps = 0;      // of the larger of result and exact value
    double tiny = 0;           // contribution of underflow
    double unit = 0;           // unit roundoff
    bool narrowest = false;    // the format has a usual error
  };
  const std::vector<Limit>& limits() const { return limits_; }
  // The usual error of a format is its unit times (usual_of_values() times the sum of absolute
  // values, plus usual_of_sum() times the magnitude of the sum).
  double usual_of_values() const { return usual_of_values_; }
  double usual_of_sum() const { return usual_of_sum_; }

 private:
  template <class Real>
  double rounding(const Limit& limit, double size, Real result) const;

  Dtype dtype_;
  double divisor_;
  double usual_of_values_;
  double usual_of_sum_;
  std::vector<Limit> limits_;
};

// What the counts say about each format, and about far elements.
Excess excess_of(Dtype dtype, std::span<const std::uint64_t> counts);

// Keeps counts for each possible division, and reports the lowest. Not thread-safe.
template <class Real>
class BoundsByDivision {
 public:
  BoundsByDivision(std::uint32_t workers, Dtype dtype) : workers_(workers), dtype_(dtype) {}
  // `division`: its number, the same for all blocks.
  void add(const Rows<Real>& rows, std::uint32_t divisor, double slack,
           std::span<const Real> result, std::size_t division);
  Excess excess() const;

 private:
  std::uint32_t workers_;
  Dtype dtype_;
  std::vector<std::vector<std::uint64_t>> counts_;
  Sums sums_;
};

}  // namespace presum::audit
