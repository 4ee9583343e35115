// SPDX-License-Identifier: Apache-2.0
// Infers what an all-reduce did from its input and output: docs/audit.md.
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

// Checks the arguments that everything here needs: 1 to 1,024 ranks, a divisor from 1 to 2^31 - 1,
// a known dtype. Errors: kInvalidArgument.
inline constexpr std::size_t kWorkersMax = 1024;
Status check_arguments(std::size_t workers, Dtype dtype, std::uint32_t divisor);

struct Comparison {
  Measures measures;
  Inferred inferred;
  // Leaves `repeat` unset; the caller knows it.
  AuditRecord record(Dtype dtype) const;
};

// Compares a result with the exact sum (divisor 1) or mean of the ranks' buffers, piece by piece,
// in order. Memory does not depend on the number of elements.
//
// Thread-safety: not synchronized. Borrowed pointers are only read during the call, and may be
// misaligned. Non-finite elements are compared, and left out of means. Without elements, means are
// NaN and nothing is inferred. With one rank, as with two, every order gives the same result.
class Auditor {
 public:
  // `elements`: the total number of elements. Format and order are inferred from a sample spread
  // over them; the measures cover all elements.
  static Result<std::unique_ptr<Auditor>> create(std::size_t workers, Dtype dtype,
                                                 std::uint32_t divisor, std::uint64_t elements);
  virtual ~Auditor() = default;

  // Takes the next `count` elements of every rank, and of the result, which has the same dtype.
  // Errors (kInvalidArgument): a number of leaves other than the number of ranks, a null pointer
  // with count > 0.
  virtual Status add(Leaves leaves, std::size_t count, const void* result) = 0;
  virtual Comparison comparison() const = 0;
};

struct Nearer {
  std::uint64_t to_sum = 0;
  std::uint64_t to_mean = 0;
};

// Counts the elements of a result that are nearer to the sum, and those that are nearer to the
// mean. Counts neither for elements that are not finite, or equally far from both (one rank,
// zeros). REQUIRES: arguments that check_arguments accepts, and no null pointer with count > 0.
// Thread-safe.
Nearer nearer(Leaves leaves, Dtype dtype, std::size_t count, const void* result);

}  // namespace presum::audit
