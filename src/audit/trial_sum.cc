// SPDX-License-Identifier: Apache-2.0
#include "audit/trial_sum.h"

#include <algorithm>

#include "audit/measures.h"
#include "audit/values.h"

namespace presum::audit {
namespace {

Order order_of(SumOrder kind, std::uint32_t workers, std::uint32_t start) {
  switch (kind) {
    case SumOrder::kTree:
      return tree(workers);
    case SumOrder::kHalving:
      return halving(workers);
    case SumOrder::kRingDown:
      return ring_down(workers, start);
    default:
      return ring(workers, start);
  }
}

template <class Real>
Real inverse(std::uint32_t divisor) {
  return static_cast<Real>(1.0 / divisor);
}

}  // namespace

template <class Real>
TrialSum<Real>::TrialSum(std::uint32_t workers, std::uint32_t divisor)
    : workers_(workers),
      divisor_(divisor),
      adder_(workers),
      prepared_(workers),
      sum_(kBlock),
      divided_(kBlock) {}

template <class Real>
void TrialSum<Real>::prepare(const Rows<Real>& rows, Dtype wire, Division before) {
  prepared_.count = rows.count;
  std::ranges::copy(rows.values, prepared_.values.begin());
  with_rounding<Real>(wire, [&](auto rounding) {
    const Real factor = inverse<Real>(divisor_);
    const Real divisor = static_cast<Real>(divisor_);
    for (std::size_t worker = 0; worker < workers_; ++worker) {
      for (Real& x : prepared_[worker]) {
        x = rounding(x);
        if (before == Division::kBeforeMultiply) x = rounding(x * factor);
        if (before == Division::kBeforeDivide) x = rounding(x / divisor);
      }
    }
  });
}

template <class Real>
void TrialSum<Real>::add(Scheme scheme, SumOrder kind, std::uint32_t start) {
  adder_.add(prepared_, order_of(kind, workers_, start), scheme, sum_);
}

template <class Real>
void TrialSum<Real>::add_exactly(Dtype wire, std::uint32_t divisor) {
  Exact<Real>(workers_, wire, divisor).rounded(prepared_, sum_);
}

template <class Real>
std::span<const Real> TrialSum<Real>::divided(Division division, Dtype wire) {
  const auto sum = std::span(sum_).first(prepared_.count);
  const bool multiply = division == Division::kAfterMultiply;
  if (!multiply && division != Division::kAfterDivide) return sum;
  const Real factor = inverse<Real>(divisor_);
  const Real divisor = static_cast<Real>(divisor_);
  with_rounding<Real>(wire, [&](auto rounding) {
    for (std::size_t i = 0; i < sum.size(); ++i) {
      divided_[i] = rounding(multiply ? sum[i] * factor : sum[i] / divisor);
    }
  });
  return std::span(divided_).first(sum.size());
}

template class TrialSum<float>;
template class TrialSum<double>;

}  // namespace presum::audit
