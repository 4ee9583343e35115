// SPDX-License-Identifier: Apache-2.0
#include "audit/orders.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "base/hash.h"

namespace presum::audit {
namespace {

void fold(Order& order, std::uint32_t workers, std::uint32_t distance, std::uint32_t step) {
  for (std::uint32_t i = 0; i + distance < workers; i += step) {
    order.additions.push_back({i, i + distance});
  }
}

}  // namespace

Order in_turn(std::span<const std::uint32_t> permutation) {
  Order order{permutation.front(), {}};
  for (const std::uint32_t worker : permutation.subspan(1)) {
    order.additions.push_back({order.root, worker});
  }
  return order;
}

Order ring(std::uint32_t workers, std::uint32_t start) {
  std::vector<std::uint32_t> turn(workers);
  for (std::uint32_t i = 0; i < workers; ++i) turn[i] = (start + i) % workers;
  return in_turn(turn);
}

Order ring_down(std::uint32_t workers, std::uint32_t start) {
  std::vector<std::uint32_t> turn(workers);
  for (std::uint32_t i = 0; i < workers; ++i) turn[i] = (start + workers - i) % workers;
  return in_turn(turn);
}

Order tree(std::uint32_t workers) {
  Order order;
  for (std::uint32_t distance = 1; distance < workers; distance *= 2) {
    fold(order, workers, distance, 2 * distance);
  }
  return order;
}

Order halving(std::uint32_t workers) {
  Order order;
  // Ranks beyond the largest power of two join the others first.
  std::uint32_t active = workers;
  for (std::uint32_t distance = std::bit_floor(workers); distance > 0; distance /= 2) {
    fold(order, active, distance, 1);
    active = std::min(active, distance);
  }
  return order;
}

std::vector<std::uint32_t> arrival(std::uint32_t workers, std::uint64_t seed) {
  std::vector<std::uint32_t> turn(workers);
  std::iota(turn.begin(), turn.end(), 0U);
  for (std::uint32_t i = workers; i > 1; --i) {
    const std::uint64_t draw = splitmix64(splitmix64(seed) + i);
    std::swap(turn[i - 1], turn[draw % i]);  // i is far below 2^64: the bias is negligible
  }
  return turn;
}

template <class Real>
void Adder<Real>::add(const Rows<Real>& rows, const Order& order, Scheme scheme,
                      std::span<Real> out) {
  partial_.count = rows.count;
  std::fill(written_.begin(), written_.end(), false);
  const auto row = [&](std::uint32_t worker) {
    return written_[worker] ? std::as_const(partial_)[worker] : rows[worker];
  };
  with_rounding<Real>(scheme.accumulation, [&](auto rounding) {
    for (const Addition& step : order.additions) {
      const Real* a = row(step.into).data();
      const Real* b = row(step.from).data();
      Real* sum = partial_[step.into].data();
      for (std::size_t i = 0; i < rows.count; ++i) sum[i] = rounding(a[i] + b[i]);
      written_[step.into] = true;
    }
  });
  std::ranges::copy(row(order.root), out.begin());
  if (scheme.wire != scheme.accumulation) round_to(scheme.wire, out.first(rows.count));
}

template <class Real>
void round_to(Dtype dtype, std::span<Real> values) {
  with_rounding<Real>(dtype, [&](auto rounding) {
    for (Real& value : values) value = rounding(value);
  });
}

template class Adder<float>;
template class Adder<double>;
template void round_to(Dtype, std::span<float>);
template void round_to(Dtype, std::span<double>);

}  // namespace presum::audit
