// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "presum/dtype.h"
#include "presum/reduce.h"
#include "presum/status.h"

// What presum/reduce.h refuses.
namespace presum::reduce {

inline Error refuse(const std::string& what) {
  return fail(ErrorCode::kInvalidArgument, "reduce: " + what);
}

inline Status check_leaves(std::size_t leaves, std::size_t most) {
  if (leaves == 0) return refuse("there is no leaf; give at least one buffer");
  if (leaves <= most) return {};
  return refuse(std::to_string(leaves) + " leaves are more than the " + std::to_string(most) +
                " that are possible");
}

inline Status check_divisor(std::uint32_t divisor) {
  if (divisor >= 1 && divisor <= kDivisorMax) return {};
  return refuse("divisor " + std::to_string(divisor) + " is not from 1 to 2147483647");
}

inline Status check_dtype(Dtype dtype) {
  if (static_cast<unsigned>(dtype) <= 3) return {};
  return refuse("dtype " + std::to_string(static_cast<unsigned>(dtype)) + " is unknown");
}

// The first error, or none.
template <class... Checks>
Status all_of(const Status& first, const Checks&... others) {
  if constexpr (sizeof...(others) == 0) {
    return first;
  } else {
    return first ? all_of(others...) : first;
  }
}

}  // namespace presum::reduce
