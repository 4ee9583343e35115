// SPDX-License-Identifier: Apache-2.0
// What is wrong with a run, or could not be judged (docs/findings.md). Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "presum/records.h"

namespace presum {

enum class Severity : std::uint8_t { kInfo = 0, kWarning = 1, kCritical = 2 };

struct Finding {
  // What was seen of one check.
  struct Evidence {
    std::string check;
    std::vector<std::uint32_t> ranks;
    std::string sentence;       // without its span
    std::string values = "{}";  // of which it is made: a JSON object; units end their names
    friend bool operator==(const Evidence&, const Evidence&) = default;
  };

  ModelKey model{.segment = 1};
  std::string check;              // its id, such as "duplicate-data"
  std::vector<std::string> also;  // checks it absorbed: findings of the same cause
  Severity severity = Severity::kInfo;
  std::vector<std::uint32_t> ranks;  // global, ascending: the minority, or all where there is none
  std::vector<std::string> hosts;    // of those ranks, each once, ascending
  std::uint64_t first_step = 0;
  std::uint64_t last_step = 0;
  // The last step at which what differs was seen to be equal; none where it never was.
  std::optional<std::uint64_t> equal_until;
  // Of a statistic: the step in which there was enough evidence for the first time.
  std::optional<std::uint64_t> certain_step;
  double confidence = 0;           // 0 to 1: how sure presum is that this is the cause
  std::string title;               // one sentence, without its span
  std::vector<Evidence> evidence;  // its own first, then that of the checks it absorbed
  std::string suspects;            // what it may come from, the likeliest first; may be empty
  std::string remedy;              // one or two sentences
  std::string resembles;  // a public report of the same kind, such as "pytorch/pytorch#31771"
  // Other models of the segment that show the same on the same ranks, where they were put together
  // (RunLog has one finding a model).
  std::vector<ModelKey> elsewhere{};
};

struct CheckRecord {
  enum class State : std::uint8_t {
    kFound = 0,
    kPassed = 1,        // its expectation was looked at and held
    kNotTriggered = 2,  // armed, but what it looks at has not happened (or not often enough)
    kNotPossible = 3,   // this run does not have what it needs; `reason` says what
  };
  std::string check;
  State state = State::kNotPossible;
  std::string reason;  // one sentence; for a passed check what it rests on
};

enum class Verdict : std::uint8_t {
  kConsistent = 0,
  kInconsistent = 1,  // a warning or a critical finding
  kInsufficientEvidence = 2,
};

const char* to_string(Severity severity);         // "info", "warning", "critical"
const char* to_string(CheckRecord::State state);  // "found", "passed", "not-triggered", ...
const char* to_string(Verdict verdict);           // "consistent", ...

}  // namespace presum
