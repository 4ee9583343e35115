// SPDX-License-Identifier: Apache-2.0
#include "presum/step_record.h"

#include <cmath>

#include "records/names.h"

namespace presum {

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
