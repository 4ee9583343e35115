// SPDX-License-Identifier: Apache-2.0
// The workers' values added as a hypothesis says: divided before or after, in an order, rounded.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "audit/orders.h"
#include "presum/audit.h"

namespace presum::audit {

// One block after the other. Not thread-safe.
// REQUIRES everywhere: holds<Real>() of all formats.
template <class Real>
class TrialSum {
 public:
  // `divisor` as for reduce::exact.
  TrialSum(std::uint32_t workers, std::uint32_t divisor);

  // Takes what the workers add: their values in the wire's format, divided where `before` says so.
  void prepare(const Rows<Real>& rows, Dtype wire, Division before);
  // Valid until the next prepare(), like sums of it.
  const Rows<Real>& prepared() const { return prepared_; }

  // Adds it: in an order that begins with worker `start` where it is a ring, or exactly, divided by
  // `divisor` in the same rounding.
  void add(Scheme scheme, SumOrder kind, std::uint32_t start);
  void add_exactly(Dtype wire, std::uint32_t divisor);
  // The last sum, divided where `division` is one after the addition. Valid until the next call.
  std::span<const Real> divided(Division division, Dtype wire);

 private:
  std::uint32_t workers_;
  std::uint32_t divisor_;
  Adder<Real> adder_;
  Rows<Real> prepared_;
  std::vector<Real> sum_;
  std::vector<Real> divided_;
};

}  // namespace presum::audit
