// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "presum/dtype.h"
#include "presum/reduce.h"
#include "presum/status.h"

// Rejects arguments that presum/reduce.h does not allow.
namespace presum::reduce {

inline Error refuse(const std::string& what) {
  return fail(ErrorCode::kInvalidArgument, "reduce: " + what);
}

inline Status check(std::size_t leaves, std::size_t most, std::uint32_t divisor, Dtype dtype) {
  if (leaves == 0) return refuse("there is no leaf; give at least one buffer");
  if (leaves > most) {
    return refuse(std::to_string(leaves) + " leaves are more than the " + std::to_string(most) +
                  " that are possible");
  }
  if (divisor < 1 || divisor > kDivisorMax) {
    return refuse("divisor " + std::to_string(divisor) + " is not from 1 to 2147483647");
  }
  if (element_bytes(dtype) > 0) return {};
  return refuse("dtype " + std::to_string(static_cast<unsigned>(dtype)) + " is unknown");
}

}  // namespace presum::reduce
