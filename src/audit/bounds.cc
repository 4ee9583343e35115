// SPDX-License-Identifier: Apache-2.0
#include "audit/bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace presum::audit {
namespace {

constexpr double kUsual = 4;  // more than this many times the usual error is not usual

// Returns whether an infinity replaces a value about as large as the largest of the dtype.
bool overflows(double result, double exact, Dtype dtype) {
  const double limit = dtype == Dtype::kF16 ? 65504 : std::numeric_limits<float>::max();
  return std::isinf(result) && dtype != Dtype::kF64 && std::abs(exact) > 0.99 * limit;
}

Dtype narrower(Dtype a, Dtype b) { return significand_bits(a) < significand_bits(b) ? a : b; }

template <class Real>
bool is_value_of(Dtype format, Real x) {
  if constexpr (std::is_same_v<Real, double>) {
    return format != Dtype::kF32 || same(x, ToF32{}(x));
  } else {
    bool is = true;
    with_rounding<Real>(format, [&](auto rounding) { is = same(x, rounding(x)); });
    return is;
  }
}

}  // namespace

template <class Real>
bool are_finite(const Rows<Real>& rows, std::size_t element) {
  for (std::size_t worker = 0; worker < rows.workers(); ++worker) {
    if (!std::isfinite(rows[worker][element])) return false;
  }
  return true;
}

Accumulation accumulation_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return Accumulation::kF32;
    case Dtype::kF64:
      return Accumulation::kF64;
    case Dtype::kBF16:
      return Accumulation::kBF16;
    case Dtype::kF16:
      return Accumulation::kF16;
  }
  return Accumulation::kUnknown;
}

std::span<const Dtype> formats_of(Dtype dtype) {
  using enum Dtype;
  static constexpr Dtype kOfF64[] = {kF64, kF32};
  static constexpr Dtype kOfF32[] = {kF64, kF32, kF16, kBF16};
  static constexpr Dtype kOfF16[] = {kF32, kF16};
  static constexpr Dtype kOfBF16[] = {kF32, kBF16};
  switch (dtype) {
    case Dtype::kF32:
      return kOfF32;
    case Dtype::kF64:
      return kOfF64;
    case Dtype::kBF16:
      return kOfBF16;
    case Dtype::kF16:
      return kOfF16;
  }
  return {};
}

// The error of W - 1 additions in any order, of casting the values, and of dividing the cast values
// if the format is narrower than theirs: ((1 + u)^n - 1) sum |x|. A value may underflow when it is
// cast and again when it is divided, so dividing afterwards reduces none of that. Usual errors:
// rounding errors add up randomly. With random signs, partial sums are about as large as the values
// together; with equal signs, as large as the whole sum.
Bounds::Bounds(std::uint32_t workers, Dtype dtype, std::uint32_t divisor, double slack, int divided)
    : dtype_(dtype),
      divisor_(divisor),
      usual_of_values_(kUsual * 0.6),
      usual_of_sum_(kUsual * std::sqrt(workers / 3.0)) {
  for (const Dtype format : formats_of(dtype)) {
    const Dtype wire = narrower(format, dtype);
    const double unit = std::ldexp(1.0, -significand_bits(format));
    const double of_wire = std::ldexp(1.0, -significand_bits(wire));
    const double steps = workers - 1 + (wire != dtype ? 2 : 0);
    const double tiny = std::ldexp(1.0, smallest_exponent(format) - significand_bits(format));
    limits_.push_back({.wire = wire,
                       .relative = std::expm1(steps * unit + divided * of_wire),
                       .half_ulps = slack * divisor,
                       .tiny = (2.0 * workers + 1) * tiny * divisor,
                       .unit = unit,
                       .narrowest = significand_bits(format) <= 11 || dtype == Dtype::kF64});
  }
}

Bounds Bounds::of_any_division(std::uint32_t workers, Dtype dtype, std::uint32_t divisor) {
  if (std::has_single_bit(divisor)) return {workers, dtype, divisor, 1};
  // The sum, its quotient and the inverse are rounded; or each value and the inverse.
  return {workers, dtype, divisor, 4, 2};
}

// A result that underflowed in a narrower format is a value of that format.
template <class Real>
double Bounds::rounding(const Limit& limit, double size, Real result) const {
  if (limit.wire != dtype_ && !is_value_of(limit.wire, result)) {
    return limit.half_ulps * limit.unit * size;
  }
  return limit.half_ulps * half_ulp(size, limit.wire) + limit.tiny;
}

template <class Real>
void Bounds::count(const ResultElement<Real>& element, std::span<std::uint64_t> counts) const {
  const double exact = (element.high + element.low) / divisor_;
  if (!std::isfinite(exact)) {
    // A NaN or infinity in the input must appear in the result.
    const bool lost = std::isfinite(element.result) && !element.finite;
    for (auto& count : counts) count += lost;
    return;
  }
  const double error =
      std::abs(error_of(element.result, element.high, element.low, divisor_)) * divisor_;
  const double size = std::max(std::abs(static_cast<double>(element.result)), std::abs(exact));
  const double usual =
      usual_of_values_ * element.sum_abs + usual_of_sum_ * std::abs(exact) * divisor_;
  bool is_far = true;
  for (std::size_t f = 0; f < limits_.size(); ++f) {
    const Limit& limit = limits_[f];
    const double least = rounding(limit, size, element.result);
    const double most = limit.relative * element.sum_abs;
    const bool over = overflows(element.result, exact, limit.wire);
    counts[f] += !(error <= least + most) && !over;
    if (limit.narrowest) {
      is_far = is_far && !over && !(error <= least + std::min(most, limit.unit * usual));
    }
  }
  counts.back() += is_far;
}

Excess excess_of(Dtype dtype, std::span<const std::uint64_t> counts) {
  Excess out;
  if (counts.empty()) return out;
  std::size_t f = 0;
  for (const Dtype format : formats_of(dtype)) {
    out.beyond.emplace_back(accumulation_of(format), counts[f++]);
  }
  out.far = counts.back();
  return out;
}

template <class Real>
void BoundsByDivision<Real>::add(const Rows<Real>& rows, std::uint32_t divisor, double slack,
                                 std::span<const Real> result, std::size_t division) {
  const Bounds bounds(workers_, dtype_, divisor, slack);
  if (counts_.size() <= division)
    counts_.resize(division + 1, std::vector<std::uint64_t>(bounds.counts()));
  sums_.of(rows);
  for (std::size_t i = 0; i < rows.count; ++i) {
    bounds.count<Real>(
        {result[i], sums_.high[i], sums_.low[i], sums_.sum_abs[i], are_finite(rows, i)},
        counts_[division]);
  }
}

template <class Real>
Excess BoundsByDivision<Real>::excess() const {
  if (counts_.empty()) return excess_of(dtype_, {});
  std::vector<std::uint64_t> fewest = counts_.front();
  for (const auto& counts : counts_) {
    for (std::size_t f = 0; f < fewest.size(); ++f) fewest[f] = std::min(fewest[f], counts[f]);
  }
  return excess_of(dtype_, fewest);
}

template bool are_finite(const Rows<float>&, std::size_t);
template bool are_finite(const Rows<double>&, std::size_t);
template void Bounds::count(const ResultElement<float>&, std::span<std::uint64_t>) const;
template void Bounds::count(const ResultElement<double>&, std::span<std::uint64_t>) const;
template class BoundsByDivision<float>;
template class BoundsByDivision<double>;

}  // namespace presum::audit
