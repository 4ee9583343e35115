// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "audit/inference.h"

namespace presum::audit {
namespace {

// Formats in which values of a dtype may have been added, widest first.
std::vector<Dtype> formats_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
      return {Dtype::kF64, Dtype::kF32};
    case Dtype::kF32:
      return {Dtype::kF64, Dtype::kF32, Dtype::kF16, Dtype::kBF16};
    case Dtype::kF16:
    case Dtype::kBF16:
      break;
  }
  return {Dtype::kF32, dtype};
}

// An infinity in the place of a value that is about as large as the dtype holds.
bool overflows(double result, double exact, Dtype dtype) {
  const double limit = dtype == Dtype::kF16 ? 65504 : std::numeric_limits<float>::max();
  return std::isinf(result) && dtype != Dtype::kF64 && std::abs(exact) > 0.99 * limit;
}

Dtype narrower(Dtype a, Dtype b) { return significand_bits(a) < significand_bits(b) ? a : b; }

}  // namespace

template <class Real>
Bounds<Real>::Bounds(std::uint32_t workers, Dtype dtype)
    : workers_(workers), dtype_(dtype), formats_(formats_of(dtype)) {}

// Of W - 1 additions in any order, and of rounding the values to the format first where that is
// narrower than theirs: ((1 + u)^n - 1) sum |x|, and what underflow adds.
template <class Real>
double Bounds<Real>::rounding_error(Dtype format, double sum_abs) const {
  const double unit = std::ldexp(1.0, -significand_bits(format));
  const double steps = workers_ - 1 + (narrower(format, dtype_) != dtype_ ? 1 : 0);
  const double tiny = std::ldexp(1.0, smallest_exponent(format) - significand_bits(format));
  return std::expm1(steps * unit) * sum_abs + (workers_ + 1) * tiny;
}

template <class Real>
void Bounds<Real>::add(const Rows<Real>& rows, std::uint32_t divisor, double slack,
                       std::span<const Real> result, std::size_t way) {
  sums_.of(rows);
  if (beyond_.size() <= way) beyond_.resize(way + 1);
  beyond_[way].resize(formats_.size());
  for (std::size_t f = 0; f < formats_.size(); ++f) {
    const Dtype wire = narrower(formats_[f], dtype_);
    std::uint64_t count = 0;
    for (std::size_t i = 0; i < rows.count; ++i) {
      const double exact = (sums_.high[i] + sums_.low[i]) / divisor;
      if (!std::isfinite(exact) || overflows(result[i], exact, wire)) continue;
      const double error = error_of(result[i], sums_.high[i], sums_.low[i], divisor);
      const double size = std::max(std::abs(static_cast<double>(result[i])), std::abs(exact));
      const double bound =
          slack * half_ulp(size, wire) + rounding_error(formats_[f], sums_.sum_abs[i]) / divisor;
      count += !(std::abs(error) <= bound);
    }
    beyond_[way][f] += count;
  }
}

template <class Real>
std::vector<std::pair<Accumulation, std::uint64_t>> Bounds<Real>::beyond() const {
  std::vector<std::pair<Accumulation, std::uint64_t>> out;
  for (std::size_t f = 0; f < formats_.size() && !beyond_.empty(); ++f) {
    std::uint64_t fewest = beyond_.front()[f];
    for (const auto& way : beyond_) fewest = std::min(fewest, way[f]);
    out.emplace_back(accumulation_of(formats_[f]), fewest);
  }
  return out;
}

template class Bounds<float>;
template class Bounds<double>;

}  // namespace presum::audit
