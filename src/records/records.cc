// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "presum/audit.h"
#include "presum/finding.h"
#include "presum/step_record.h"
#include "presum/times.h"
#include "records/names.h"

namespace presum {

const char* to_string(Accumulation accumulation) {
  return records::name_of(records::kFormats, accumulation);
}

const char* to_string(SumOrder order) { return records::name_of(records::kOrders, order); }

const char* to_string(Division division) { return records::name_of(records::kDivisions, division); }

const char* to_string(Repeat repeat) { return records::name_of(records::kRepeats, repeat); }

int significand_bits(Accumulation accumulation) {
  switch (accumulation) {
    case Accumulation::kF64:
      return 53;
    case Accumulation::kF32:
      return 24;
    case Accumulation::kF16:
      return 11;
    case Accumulation::kBF16:
      return 8;
    case Accumulation::kUnknown:
      break;
  }
  return 0;
}

const char* to_string(Severity severity) {
  return records::name_of(records::kSeverities, severity);
}

const char* to_string(CheckRecord::State state) {
  return records::name_of(records::kCheckStates, state);
}

const char* to_string(Verdict verdict) { return records::name_of(records::kVerdicts, verdict); }

const char* to_string(Phase phase) { return records::name_of(records::kPhases, phase); }

const char* to_string(CosineSource source) {
  return records::name_of(records::kCosineSources, source);
}

double least_waited(std::span<const WorkerRecord> workers) {
  double least = kNaN;
  for (const WorkerRecord& w : workers) {
    if (w.times.known()) least = std::fmin(least, w.times.of(Phase::kReduction));
  }
  return least;
}

}  // namespace presum
