// SPDX-License-Identifier: Apache-2.0
// Orders in which an all-reduce adds the values of the ranks, as lists of additions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "audit/values.h"
#include "presum/audit.h"

namespace presum::audit {

struct Addition {
  std::uint32_t into = 0;
  std::uint32_t from = 0;
};

// The sum is in row `root` after all additions. One rank: no addition.
struct Order {
  std::uint32_t root = 0;
  std::vector<Addition> additions;
};

// REQUIRES: at least one rank, `start` below `workers`; a permutation of the ranks.
Order in_turn(std::span<const std::uint32_t> permutation);
Order ring(std::uint32_t workers, std::uint32_t start);       // start, start + 1, ...
Order ring_down(std::uint32_t workers, std::uint32_t start);  // start, start - 1, ...
Order tree(std::uint32_t workers);
Order halving(std::uint32_t workers);
// Returns a permutation of the ranks, uniformly distributed and determined by the seed.
std::vector<std::uint32_t> arrival(std::uint32_t workers, std::uint64_t seed);

// The same number of values for each rank, rank by rank; at most kBlock per rank.
inline constexpr std::size_t kBlock = 2048;
template <class Real>
struct Rows {
  explicit Rows(std::size_t workers) : values(workers * kBlock), workers_(workers) {}
  std::span<Real> operator[](std::size_t worker) {
    return std::span(values).subspan(worker * kBlock, count);
  }
  std::span<const Real> operator[](std::size_t worker) const {
    return std::span(values).subspan(worker * kBlock, count);
  }
  std::size_t workers() const { return workers_; }

  std::vector<Real> values;
  std::size_t count = 0;

 private:
  std::size_t workers_;
};

// Partial sums are rounded to `accumulation`; the values and the sum are rounded to `wire`.
struct Scheme {
  Dtype wire = Dtype::kF32;
  Dtype accumulation = Dtype::kF32;
  bool operator==(const Scheme&) const = default;
};

// Adds rows of values in the wire format, in a given order. Not thread-safe, because it owns a
// buffer for partial sums.
template <class Real>
class Adder {
 public:
  explicit Adder(std::size_t workers) : partial_(workers), written_(workers) {}
  // REQUIRES: the same number of ranks, holds<Real>() for both formats; `out` as long as the rows.
  void add(const Rows<Real>& rows, const Order& order, Scheme scheme, std::span<Real> out);

 private:
  Rows<Real> partial_;
  std::vector<bool> written_;
};

// Rounds each value.
template <class Real>
void round_to(Dtype dtype, std::span<Real> values);

}  // namespace presum::audit
