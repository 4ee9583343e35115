// SPDX-License-Identifier: Apache-2.0
// What is wrong with a run, and what could not be judged (docs/findings.md). Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "presum/records.h"

namespace presum {

enum class Severity : std::uint8_t { kInfo = 0, kWarning = 1, kCritical = 2 };

struct Finding {
  // What one check saw.
  struct Evidence {
    std::string check;
    std::vector<std::uint32_t> ranks;
    std::string sentence;  // without the steps it covers
    // The values behind the sentence: a JSON object whose names end in their unit.
    std::string values = "{}";
    friend bool operator==(const Evidence&, const Evidence&) = default;
  };

  ModelKey model{.segment = 1};
  std::string check;              // id of the check, such as "duplicate-data"
  std::vector<std::string> also;  // checks merged into this one: findings with the same cause
  Severity severity = Severity::kInfo;
  // Global ranks, ascending: the minority that differs, or all ranks if there is no minority.
  std::vector<std::uint32_t> ranks;
  std::vector<std::string> hosts;  // hosts of those ranks, ascending, without repeats
  std::uint64_t first_step = 0;
  std::uint64_t last_step = 0;
  // The last step at which the differing values were still seen equal; empty if they never were.
  std::optional<std::uint64_t> equal_until;
  // For a statistic: the first step with enough evidence.
  std::optional<std::uint64_t> certain_step;
  double confidence = 0;           // 0 to 1: how sure presum is that this is the cause
  std::string title;               // one sentence, without the steps it covers
  std::vector<Evidence> evidence;  // of this check first, then of the merged ones
  std::string suspects;            // possible causes, most likely first; may be empty
  std::string remedy;              // one or two sentences
  std::string resembles;  // a public report of the same problem, such as "pytorch/pytorch#31771"
  // Other models of the segment with the same problem on the same ranks, if findings were merged
  // over models (RunLog has one finding per model).
  std::vector<ModelKey> elsewhere{};
};

struct CheckRecord {
  enum class State : std::uint8_t {
    kFound = 0,
    kPassed = 1,  // the check looked at what it expects, and it held
    // Armed, but the event that the check looks at has not happened, or not often enough.
    kNotTriggered = 2,
    kNotPossible = 3,  // this run lacks what the check needs; `reason` says what
  };
  std::string check;
  State state = State::kNotPossible;
  std::string reason;  // one sentence; for a passed check, what the result rests on
};

enum class Verdict : std::uint8_t {
  kConsistent = 0,
  // There is a warning or a critical finding. A finding of a time check alone counts only if it is
  // critical.
  kInconsistent = 1,
  kInsufficientEvidence = 2,
};

const char* to_string(Severity severity);         // "info", "warning", "critical"
const char* to_string(CheckRecord::State state);  // "found", "passed", "not-triggered", ...
const char* to_string(Verdict verdict);           // "consistent", ...

}  // namespace presum
