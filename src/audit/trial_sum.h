// SPDX-License-Identifier: Apache-2.0
// Adds the values of the ranks as a hypothesis says: divided before or after, in an order, rounded.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "audit/orders.h"
#include "presum/audit.h"

namespace presum::audit {

// Processes one block after the other. Not thread-safe. All functions REQUIRE holds<Real>() for all
// formats.
template <class Real>
class TrialSum {
 public:
  // `divisor` as for reduce::exact.
  TrialSum(std::uint32_t workers, std::uint32_t divisor);

  // Sets what the ranks add: their values in the wire format, divided if `before` says so.
  void prepare(const Rows<Real>& rows, Dtype wire, Division before);
  // Valid until the next prepare(); so are sums of it.
  const Rows<Real>& prepared() const { return prepared_; }

  // Adds the prepared values: in an order, which starts with rank `start` if it is a ring; or
  // exactly, divided by `divisor` in the same rounding.
  void add(Scheme scheme, SumOrder kind, std::uint32_t start);
  void add_exactly(Dtype wire, std::uint32_t divisor);
  // Returns the last sum, divided if `division` comes after the addition. Valid until the next
  // call.
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
