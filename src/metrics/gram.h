// SPDX-License-Identifier: Apache-2.0
// The exact dot products of all pairs of workers, where each worker computed a share of them.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "packet/packet.h"
#include "presum/step_record.h"

namespace presum::metrics {

// W x W, symmetric, by position in the list of workers. Entries of a worker whose norm is not
// finite are not to be used.
class Gram {
 public:
  // Adds the workers' shares up. Null where one is missing or not of W = `expected` workers, and
  // where the sum contradicts the workers' norms. `steps` and `records` are parallel, by replica.
  static std::optional<Gram> sum(std::span<const packet::Step* const> steps,
                                 std::span<const WorkerRecord> records, std::size_t expected);

  double product(std::size_t i, std::size_t j) const { return products_[i * workers_ + j]; }
  // From -1 to 1. REQUIRES: both gradients are finite and not zero.
  double cosine(std::size_t i, std::size_t j) const;
  // Sum over i != j of <g_i, g_j>; NaN if one of them is.
  double cross_sum() const;

 private:
  explicit Gram(std::size_t workers) : workers_(workers), products_(workers * workers) {}
  void add(std::span<const double> share);
  bool fits(std::span<const WorkerRecord> records) const;

  std::size_t workers_;
  std::vector<double> products_;
};

}  // namespace presum::metrics
