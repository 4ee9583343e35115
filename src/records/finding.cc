// SPDX-License-Identifier: Apache-2.0
#include "presum/finding.h"

#include "records/names.h"

namespace presum {

const char* to_string(Severity severity) {
  return records::name_of(records::kSeverities, severity);
}

const char* to_string(CheckRecord::State state) {
  return records::name_of(records::kCheckStates, state);
}

const char* to_string(Verdict verdict) { return records::name_of(records::kVerdicts, verdict); }

}  // namespace presum
