// SPDX-License-Identifier: Apache-2.0
// Two macros that return errors to the caller.
#pragma once

#include <utility>

// Returns the error of a Status or Result from the enclosing function, if it has one.
#define PRESUM_TRY(...)                                          \
  do {                                                           \
    if (auto&& done = (__VA_ARGS__); !done) return done.error(); \
  } while (false)

// PRESUM_ASSIGN(auto steps, log.steps()): assigns the value of a Result, or returns its error.
#define PRESUM_ASSIGN(variable, ...) \
  PRESUM_ASSIGN_BY(PRESUM_NAME_OF(__LINE__), variable, __VA_ARGS__)
#define PRESUM_ASSIGN_BY(result, variable, ...) \
  auto result = (__VA_ARGS__);                  \
  if (!result) return result.error();           \
  variable = *std::move(result)
#define PRESUM_NAME_OF(line) PRESUM_NAME_OF_LINE(line)
#define PRESUM_NAME_OF_LINE(line) result_of_line_##line
