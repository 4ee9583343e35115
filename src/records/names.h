// SPDX-License-Identifier: Apache-2.0
// Names of enumerators, indexed by their numbers, for display and for tables.
#pragma once

#include <array>
#include <cstddef>

namespace presum::records {

inline constexpr std::array kCosineSources = {"none", "sketch", "total-norm", "exact", "gram"};
inline constexpr std::array kSeverities = {"info", "warning", "critical"};
inline constexpr std::array kCheckStates = {"found", "passed", "not-triggered", "not-possible"};
inline constexpr std::array kVerdicts = {"consistent", "inconsistent", "insufficient-evidence"};
inline constexpr std::array kFormats = {"unknown", "fp64", "fp32", "fp16", "bf16"};
inline constexpr std::array kOrders = {"unknown", "any",       "exact", "sequential",
                                       "ring",    "ring-down", "tree",  "halving"};
inline constexpr std::array kDivisions = {"unknown",       "none",           "before-multiply",
                                          "before-divide", "after-multiply", "after-divide",
                                          "once"};
inline constexpr std::array kStepUses = {"unknown", "used", "unused", "kept"};
inline constexpr std::array kPhases = {"data",      "forward", "backward",
                                       "optimizer", "rest",    "reduction"};
inline constexpr std::array kRepeats = {"not-tried", "equal", "different"};

// Returns "unknown" for a value out of range.
template <class Enum, std::size_t N>
const char* name_of(const std::array<const char*, N>& names, Enum value) {
  const auto at = static_cast<std::size_t>(value);
  return at < N ? names[at] : "unknown";
}

}  // namespace presum::records
