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

template <class Real>
bool are_finite(const Rows<Real>& rows, std::size_t element) {
  for (std::size_t worker = 0; worker < rows.workers(); ++worker) {
    if (!std::isfinite(rows[worker][element])) return false;
  }
  return true;
}

Dtype narrower(Dtype a, Dtype b) { return significand_bits(a) < significand_bits(b) ? a : b; }

}  // namespace

template <class Real>
Bounds<Real>::Bounds(std::uint32_t workers, Dtype dtype)
    : workers_(workers), dtype_(dtype), formats_(formats_of(dtype)) {}

// Of W - 1 additions in any order, of casting the values and dividing the cast ones where the
// format is narrower than theirs: ((1 + u)^n - 1) sum |x|. A value may underflow when it is cast
// and again when it is divided, so dividing afterwards makes none of that smaller.
template <class Real>
auto Bounds<Real>::bound_of(Dtype format, std::uint32_t divisor) const -> Bound {
  const double unit = std::ldexp(1.0, -significand_bits(format));
  const double steps = workers_ - 1 + (narrower(format, dtype_) != dtype_ ? 2 : 0);
  const double tiny = std::ldexp(1.0, smallest_exponent(format) - significand_bits(format));
  return {narrower(format, dtype_), std::expm1(steps * unit) / divisor,
          (2.0 * workers_ + 1) * tiny};
}

template <class Real>
void Bounds<Real>::add(const Rows<Real>& rows, std::uint32_t divisor, double slack,
                       std::span<const Real> result, std::size_t way, bool examined) {
  sums_.of(rows);
  if (beyond_.size() <= way) {
    beyond_.resize(way + 1, std::vector<std::uint64_t>(formats_.size()));
    examined_.resize(way + 1, std::vector<std::uint64_t>(formats_.size()));
  }
  std::vector<Bound> bounds;
  for (const Dtype format : formats_) bounds.push_back(bound_of(format, divisor));
  std::vector<std::uint64_t> counts(formats_.size());
  for (std::size_t i = 0; i < rows.count; ++i) {
    const double exact = (sums_.high[i] + sums_.low[i]) / divisor;
    if (!std::isfinite(exact)) {
      // A NaN or an infinity that went in must come out.
      const bool lost = std::isfinite(result[i]) && !are_finite(rows, i);
      for (auto& count : counts) count += lost;
      continue;
    }
    const double error = std::abs(error_of(result[i], sums_.high[i], sums_.low[i], divisor));
    const double size = std::max(std::abs(static_cast<double>(result[i])), std::abs(exact));
    for (std::size_t f = 0; f < counts.size(); ++f) {
      const Bound& b = bounds[f];
      const double bound = slack * half_ulp(size, b.wire) + b.relative * sums_.sum_abs[i] + b.tiny;
      counts[f] += !(error <= bound) && !overflows(result[i], exact, b.wire);
    }
  }
  for (std::size_t f = 0; f < counts.size(); ++f) {
    beyond_[way][f] += counts[f];
    if (examined) examined_[way][f] += counts[f];
  }
}

template <class Real>
Beyond Bounds<Real>::fewest(const Counts& counts) const {
  Beyond out;
  for (std::size_t f = 0; f < formats_.size() && !counts.empty(); ++f) {
    std::uint64_t fewest = counts.front()[f];
    for (const auto& way : counts) fewest = std::min(fewest, way[f]);
    out.emplace_back(accumulation_of(formats_[f]), fewest);
  }
  return out;
}

template class Bounds<float>;
template class Bounds<double>;

}  // namespace presum::audit
