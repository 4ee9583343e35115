// SPDX-License-Identifier: Apache-2.0
// nonfinite-gradient, nonfinite-loss, zero-gradient, frozen-gradient.
#pragma once

#include <cstdint>

#include "diagnose/step_context.h"

namespace presum::diagnose {

// Steps in a row in which something is not finite are one episode; its ranks are those of its first
// step, since everything after that may have come through the parameters.
class Nonfinite {
 public:
  explicit Nonfinite(Check check) : check_(check) {}
  void update(const StepContext& context, SignalLog& log);

 private:
  bool broken(const WorkerRecord& worker) const;
  void begin(const StepContext& context, Ranks ranks);
  void report(const StepContext& context, const Ranks& now, SignalLog& log) const;
  bool maybe_skipped(const StepContext& context) const;
  bool optimiser_stood_still(const StepRecord& record) const;
  std::string title(const StepContext& context) const;

  Check check_;
  std::uint64_t records_ = 0;
  std::uint64_t length_ = 0;  // records of this episode in which the optimiser took no step
  bool running_ = false;
  bool healthy_before_ = false;  // the record before was finite on all workers
  bool sudden_ = false;          // all workers at once, and finite before
  bool skipped_ = false;  // the optimiser took no step in this episode so far, as far as known
  bool counted_ = false;  // some worker's optimiser took a step
  Blame blame_;
  PerWorker<std::uint64_t> optimizer_steps_;
};

// Gradients in which most elements that were not zero at the run's start have become so: underflow
// in 16 bits, or units that died. On all workers; some of them stand out by their statistics.
class VanishedElements {
 public:
  void update(const StepContext& context, SignalLog& log);

 private:
  struct Worker {
    std::uint64_t records = 0;
    double least = 1;  // share that was not zero, at the start
    Streak below;
  };
  void follow(const WorkerRecord& worker, std::uint64_t step);

  PerWorker<Worker> workers_;
};

class ZeroGradient {
 public:
  void update(const StepContext& context, SignalLog& log);

 private:
  void whole(const StepContext& context, SignalLog& log);
  void below_fp16(const StepContext& context, SignalLog& log);
  bool others_learn(const StepContext& context) const;

  VanishedElements vanished_;
  Streak below_;                // samples of which next to nothing was left
  std::uint64_t all_zero_ = 0;  // records in a row
  Ranks zero_;                  // in the record before
  std::uint64_t same_ = 0;      // records in a row in which it was these, and no other
  std::uint64_t same_since_ = 0;
  double first_loss_ = kNaN;  // mean over the workers
  bool learned_ = false;      // some gradient was not zero
};

class FrozenGradient {
 public:
  void update(const StepContext& context, SignalLog& log);

 private:
  struct Last {
    std::uint64_t fingerprint = 0;
    std::uint64_t batch = 0;  // 0: unknown
  };
  struct Found {
    Ranks certain;  // the data changed, the gradient did not
    Ranks likely;   // nobody knows the data
    Ranks same_data;
    std::size_t moved_on_same_data = 0;
    std::size_t compared = 0;
  };
  Found compare(const StepContext& context) const;
  void remember(const StepContext& context);

  PerWorker<Last> last_;
  std::uint64_t frozen_steps_ = 0;
};

}  // namespace presum::diagnose
