// SPDX-License-Identifier: Apache-2.0
// How far a sum can be from the exact one, by the format in which it was added: docs/audit.md, "How
// format and order are inferred".
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
// Formats in which values of a dtype may have been added, widest first.
std::span<const Dtype> formats_of(Dtype dtype);

// For each format, widest first: elements further off than sums in it can be, in any order.
using Beyond = std::vector<std::pair<Accumulation, std::uint64_t>>;

struct Excess {
  Beyond beyond;
  // Further off than four times what sums in the narrowest formats usually are. The bounds are
  // those of the worst order, within which most numbers are where workers are many.
  std::uint64_t far = 0;
};

// Whether every worker's value of an element is.
template <class Real>
bool are_finite(const Rows<Real>& rows, std::size_t element);

// One element of a result beside the exact sum, which is (high + low) / divisor.
template <class Real>
struct ResultElement {
  Real result;
  double high;
  double low;
  double sum_abs;
  bool finite;  // every worker's value is
};

// The bounds of all formats. Immutable.
class Bounds {
 public:
  // `divisor` as for reduce::exact, of sums that are divided once they are added. `slack`: how many
  // half units in the last place division and rounding may add up to; `divided`: how many
  // roundings each value had before it was added.
  Bounds(std::uint32_t workers, Dtype dtype, std::uint32_t divisor, double slack, int divided = 0);
  // Of sums or means however they are made.
  static Bounds of_any_division(std::uint32_t workers, Dtype dtype, std::uint32_t divisor);

  // counts[f] is of the format f, the last one of elements that are far.
  std::size_t counts() const { return limits_.size() + 1; }
  template <class Real>
  void count(const ResultElement<Real>& element, std::span<std::uint64_t> counts) const;

  // Of |error|, all times the divisor.
  struct Limit {
    Dtype wire = Dtype::kF32;  // of the sum
    double relative = 0;       // to the sum of absolute values
    double half_ulps = 0;      // of the larger of result and exact value
    double tiny = 0;           // what underflow adds
    double unit = 0;           // unit roundoff
    bool narrowest = false;    // has a usual error
  };
  const std::vector<Limit>& limits() const { return limits_; }
  // The usual error of a format is its unit times this and the sum of absolute values, plus its
  // unit times that and the size of the sum.
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

// What counts say of each format, and of what is far.
Excess excess_of(Dtype dtype, std::span<const std::uint64_t> counts);

// Counts for each division that there may have been: the fewest are reported. Not thread-safe.
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
