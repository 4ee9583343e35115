// SPDX-License-Identifier: Apache-2.0
#include "detect/least_steps.h"

#include <algorithm>

#include "detect/detector.h"

namespace presum::detect {

std::uint64_t least_steps(std::size_t workers) {
  if (workers < 2) return 0;
  StepRecord record;
  for (std::uint32_t i = 0; i < std::min<std::size_t>(workers, 1024); ++i) {
    WorkerRecord worker;
    worker.rank = worker.replica = i;
    worker.loss = i == 0 ? 2 : 1;
    record.workers.push_back(worker);
  }
  record.workers_expected = record.workers_seen = static_cast<std::uint32_t>(record.workers.size());
  Detector detector({});
  while (detector.update(record).empty()) ++record.step;
  return record.step + 1;
}

}  // namespace presum::detect
