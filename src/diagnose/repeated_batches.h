// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "diagnose/step_context.h"

namespace presum::diagnose {

// Batches that come again at once: fed twice in a step, kept by a loader that is stuck, or handed
// out by each process of a loader. Says it as overlapping-data.
class RepeatedBatches {
 public:
  void update(const StepContext& context, SignalLog& log);

 private:
  struct Repeats {
    std::uint64_t length = 0;  // records in a row in which a worker's rows repeat
    std::uint64_t stuck = 0;   // records in a row with the batch of the one before
    std::uint64_t stuck_since = 0;
    std::uint64_t dealt_since = 0;
    std::uint64_t dealt = 0;   // records with another batch of the loader than the one before
    std::uint64_t echoed = 0;  // of them, with the same rows
    std::uint64_t changed_first = 0;          // how many were dealt when the rows first were others
    std::uint64_t changed = 0;                // and last
    std::uint64_t place = ~std::uint64_t{0};  // of the last batch in its pass
    std::uint64_t data = 0;                   // and the data set that it is of
    std::uint64_t batch = 0;
    std::uint64_t seen = 0;      // records with rows
    std::uint64_t repeated = 0;  // of them, with rows that repeat
  };
  void watch_repeats(const StepContext& context, SignalLog& log);
  bool rare_elsewhere(const Repeats& own) const;
  void watch_echoes(const StepContext& context, SignalLog& log);
  void watch_stuck(const StepContext& context, SignalLog& log);
  static void report_repeats(const StepContext& context, std::size_t place, std::uint64_t length,
                             SignalLog& log);

  PerWorker<Repeats> repeats_;
  Repeats all_repeats_;  // of all workers together; no length
};

}  // namespace presum::diagnose
