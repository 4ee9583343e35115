// SPDX-License-Identifier: Apache-2.0
#include "presum/finding.h"

namespace presum {

const char* to_string(Severity severity) {
  switch (severity) {
    case Severity::kInfo:
      return "info";
    case Severity::kWarning:
      return "warning";
    case Severity::kCritical:
      return "critical";
  }
  return "unknown";
}

const char* to_string(CheckRecord::State state) {
  switch (state) {
    case CheckRecord::State::kFound:
      return "found";
    case CheckRecord::State::kPassed:
      return "passed";
    case CheckRecord::State::kNotTriggered:
      return "not-triggered";
    case CheckRecord::State::kNotPossible:
      return "not-possible";
  }
  return "unknown";
}

const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kConsistent:
      return "consistent";
    case Verdict::kInconsistent:
      return "inconsistent";
    case Verdict::kInsufficientEvidence:
      return "insufficient-evidence";
  }
  return "unknown";
}

}  // namespace presum
