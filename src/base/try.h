// SPDX-License-Identifier: Apache-2.0
// Errors are passed on to the caller by these two.
#pragma once

#include <utility>

// Ends the enclosing function with the error of a Status or Result, if it has one.
#define PRESUM_TRY(...)                                          \
  do {                                                           \
    if (auto&& done = (__VA_ARGS__); !done) return done.error(); \
  } while (false)

// PRESUM_ASSIGN(auto steps, log.steps()): the value of a Result, or likewise.
#define PRESUM_ASSIGN(variable, ...) \
  PRESUM_ASSIGN_BY(PRESUM_NAME_OF(__LINE__), variable, __VA_ARGS__)
#define PRESUM_ASSIGN_BY(result, variable, ...) \
  auto result = (__VA_ARGS__);                  \
  if (!result) return result.error();           \
  variable = *std::move(result)
#define PRESUM_NAME_OF(line) PRESUM_NAME_OF_LINE(line)
#define PRESUM_NAME_OF_LINE(line) result_of_line_##line
