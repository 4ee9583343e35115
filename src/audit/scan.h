// SPDX-License-Identifier: Apache-2.0
// One pass over all elements of a result: its measures, and the number of elements that are further
// off than sums in each format can be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "audit/bounds.h"
#include "audit/measures.h"
#include "audit/scan_kernel.h"

namespace presum::audit {

using Leaves = std::span<const void* const>;

// Reads elements of every rank from `first` on, as values.
template <class Real>
void read_rows(Leaves leaves, Dtype dtype, std::size_t first, std::size_t count, Rows<Real>& rows);

// Not thread-safe. Pieces may have any length: the bits do not depend on how a buffer is divided.
// REQUIRES: the default floating-point environment.
template <class Real>
class Scan {
 public:
  // REQUIRES: arguments that check_arguments accepts.
  Scan(std::uint32_t workers, Dtype dtype, std::uint32_t divisor);
  // REQUIRES: one leaf per rank.
  void add(Leaves leaves, std::size_t count, const void* result);

  struct Result {
    Measures measures;
    Excess excess;
  };
  Result result() const;

 private:
  // Elements that do not yet fill a tile, row by row; the result is the last row.
  struct Pending {
    std::vector<std::byte> bytes;
    std::size_t count = 0;
  };

  bool has_kernel() const;
  void keep(Leaves leaves, std::size_t first, std::size_t count, const void* result);
  void add_pending();
  void add_tile(Leaves leaves, std::size_t first, std::size_t count, const void* result);
  void add_left(Leaves leaves, std::size_t first, const void* result);
  void add_plainly(Leaves leaves, std::size_t first, std::size_t count, const void* result);
  void add_rows();

  Dtype dtype_;
  std::uint32_t divisor_;
  Bounds bounds_;
  ScanPlan plan_;
  Pending pending_;
  ScanSums sums_;
  ScannedTile tile_;
  std::vector<std::uint64_t> counts_;
  Rows<Real> rows_;
  std::vector<Real> actual_;
  Exact<Real> exact_;
  Measures measures_;
};

}  // namespace presum::audit
