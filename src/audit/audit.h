// SPDX-License-Identifier: Apache-2.0
// What an all-reduce did, from what went in and what came out: docs/audit.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "audit/inference.h"
#include "audit/measures.h"
#include "audit/scan.h"
#include "presum/audit.h"
#include "presum/dtype.h"
#include "presum/status.h"

namespace presum::audit {

// Errors (kInvalidArgument) of the numbers that everything here starts from: 1 to 1,024 workers, a
// divisor from 1 to 2^31 - 1, a known dtype.
inline constexpr std::size_t kWorkersMax = 1024;
Status check_arguments(std::size_t workers, Dtype dtype, std::uint32_t divisor);

struct Comparison {
  Measures measures;
  Inferred inferred;
  // Without `repeat`, which the caller knows.
  AuditRecord record(Dtype dtype) const;
};

// Compares a result with the exact sum (divisor 1) or mean of the workers' buffers, piece by piece
// in their order. Memory does not depend on the number of elements.
//
// Thread-safety: not synchronized. Borrowed pointers are only read during the call, and may be
// misaligned. Elements that are not finite are compared, and left out of means. No element: means
// are NaN, nothing is inferred. One worker: any order, as for two.
class Auditor {
 public:
  // `elements`: how many there will be. Format and order are inferred from a sample that is spread
  // over so many; what is measured is measured on all.
  static Result<std::unique_ptr<Auditor>> create(std::size_t workers, Dtype dtype,
                                                 std::uint32_t divisor, std::uint64_t elements);
  virtual ~Auditor() = default;

  // The next `count` elements of every worker, and of the result, which has their dtype.
  // Errors (kInvalidArgument): not as many leaves as workers, a null pointer where count > 0.
  virtual Status add(Leaves leaves, std::size_t count, const void* result) = 0;
  virtual Comparison comparison() const = 0;
};

struct Nearer {
  std::uint64_t to_sum = 0;
  std::uint64_t to_mean = 0;
};

// How many elements of a result are nearer to the sum, and how many to the mean. Neither: elements
// that are not finite or as far from both (one worker, zeros). REQUIRES: arguments that
// check_arguments takes, and no null pointer where count > 0. Thread-safe.
Nearer nearer(Leaves leaves, Dtype dtype, std::size_t count, const void* result);

}  // namespace presum::audit
