// SPDX-License-Identifier: Apache-2.0
// epoch-not-set.
#pragma once

#include <cstdint>
#include <vector>

#include "diagnose/step_context.h"

namespace presum::diagnose {

// Compares the beginning of every pass over the data with that of the pass before, per worker.
class DataOrder {
 public:
  void update(const StepContext& context, SignalLog& log);

 private:
  struct Place {
    std::uint64_t batch = 0;  // its position in the pass
    std::uint64_t order = 0;  // of its samples, with all that the batch holds
  };
  struct Worker {
    std::uint64_t pass = 0;
    std::uint64_t epoch = 0;
    bool started = false;
    bool epoch_stayed = false;  // the sampler's epoch is that of the pass before
    bool skipped = false;       // it did not begin with its first batch
    bool differs = false;       // some batch of this pass is not the one of the pass before
    std::size_t seen = 0;       // recorded steps of this pass
    std::size_t repeats = 0;    // of them, with the batch of the pass before
    std::vector<Place> before;  // the first batches of the pass before
    std::vector<Place> now;
  };
  static void follow(Worker& worker, std::uint64_t pass, const std::uint64_t* epoch);
  static void compare(Worker& worker, const WorkerRecord& record, const Batch& batch,
                      std::uint64_t steps);
  static bool is_decided(const Worker& worker, const WorkerRecord& record, const Batch& batch);
  static bool repeats_order(const Worker& worker, const WorkerRecord& record, const Batch& batch);
  void report(const StepContext& context, Blame blame, std::size_t repeats, SignalLog& log) const;

  std::uint64_t step_ = 0;  // of the record before
  PerWorker<Worker> workers_;
};

}  // namespace presum::diagnose
