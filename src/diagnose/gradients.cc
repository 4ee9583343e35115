// SPDX-License-Identifier: Apache-2.0
// nonfinite-gradient, nonfinite-loss, zero-gradient, frozen-gradient.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/hash.h"
#include "diagnose/rules.h"

namespace presum::diagnose {
namespace {

constexpr std::uint64_t kAllZero = 3;   // records until gradients of zero everywhere are a finding
constexpr std::uint64_t kOneZero = 10;  // and of some ranks are more than a batch without targets
constexpr double kStillLearning = 0.1;  // of the first loss

// Of elements that vanish: the run's start, without its first records, in which much may be zero by
// initialisation; what is left of their share; for how long.
constexpr std::uint64_t kFirstRecords = 4;
constexpr std::uint64_t kStart = 20;
constexpr std::uint64_t kVanishedKey = 8;  // beside those of ZeroGradient
constexpr double kLeft = 0.25;
constexpr double kLeastShare = 0.25;  // below it most were zero, as of embeddings
constexpr std::uint64_t kVanished = 10;

// Of what fp16 has left next to nothing of: samples in a row, and their share.
constexpr std::uint64_t kBelowSamples = 3;
constexpr std::uint64_t kBelowKey = 9;
constexpr double kMostBelow = 0.5;

constexpr const char* kScaleTheLoss =
    "Too small for fp16: train in bf16, or scale the loss (GradScaler) and do not divide it by "
    "large numbers.";
constexpr const char* kNoGradient =
    "The loss is not zero and its gradient is: detached before the backward pass, masked, "
    "multiplied by zero, or too small for fp16 (scale the loss, or train in bf16).";

// Records in which a loss scaler looks for its first factor.
constexpr std::uint64_t kScalerSearch = 16;

std::uint64_t key_of(const Ranks& ranks) {
  std::uint64_t key = 0;
  for (const std::uint32_t rank : ranks) key = mix64(key + rank + 1);
  return key;
}

std::int64_t nonfinite_elements(const StepRecord& record) {
  std::uint64_t sum = 0;
  for (const WorkerRecord& w : record.workers) sum += w.nonfinite;
  return static_cast<std::int64_t>(sum);
}

std::uint64_t batch_of(const WorkerRecord& worker, const Batch& batch) {
  const std::uint64_t* whole = worker.fingerprint_of(FingerprintKind::kBatch);
  if (whole != nullptr) return mix64(*whole) | 1;
  return batch.known ? batch.set | 1 : 0;
}

double share_not_zero(const WorkerRecord& worker) {
  return has_gradient(worker) ? 1 - real_of(worker, FingerprintKind::kZeroShare) : kNaN;
}

bool optimiser_known(const StepContext& context) {
  if (!context.roster.fact("grad_scaler").empty()) return true;
  const std::string name = context.roster.fact("optimizer");
  return !name.empty() && name != "unknown";
}

// Steps in a row in which something is not finite are one episode; its ranks are those of its first
// step, since everything after that may have come through the parameters.
class Nonfinite final : public Rule {
 public:
  explicit Nonfinite(Check check) : check_(check) {}

  void update(const StepContext& context, SignalLog& log) override {
    if (context.workers() == 0) return;
    log.checked(check_);
    ++records_;
    counted_ = counted_ || std::ranges::any_of(context.record.workers, [](const WorkerRecord& w) {
                 return w.optimizer_step > 0;
               });
    const Ranks now = blame_where(context, [&](const WorkerRecord& w) { return broken(w); }).ranks;
    if (now.empty()) {
      running_ = false;
    } else {
      if (!running_) begin(context, now);
      skipped_ = skipped_ && ++length_ <= kScalerSearch && maybe_skipped(context);
      report(context, now, log);
    }
    healthy_before_ = now.empty();
    for (const WorkerRecord& w : context.record.workers)
      optimizer_steps_[w.replica] = w.optimizer_step;
  }

 private:
  bool broken(const WorkerRecord& worker) const {
    if (check_ == Check::kNonfiniteLoss) return worker.loss_nonfinite;
    return worker.nonfinite > 0 || std::isinf(worker.grad_norm);
  }

  void begin(const StepContext& context, Ranks ranks) {
    running_ = true;
    skipped_ = true;
    length_ = 0;
    blame_.everyone = ranks.size() == context.workers();
    blame_.ranks = std::move(ranks);
    sudden_ = blame_.everyone && healthy_before_ && context.workers() > 1;
  }

  void report(const StepContext& context, const Ranks& now, SignalLog& log) const {
    Signal signal = sighting({check_, key_of(blame_.ranks)}, context, blame_, sudden_ ? 0.8 : 1);
    const bool overflow =
        check_ == Check::kNonfiniteGradient && !context.roster.fact("grad_scaler").empty();
    if (skipped_) signal.severity = overflow ? Severity::kInfo : Severity::kWarning;
    signal.title = title(context);
    signal.evidence = {{"workers_not_finite", static_cast<std::int64_t>(now.size())}};
    if (check_ == Check::kNonfiniteGradient) {
      signal.evidence.emplace_back("nonfinite_elements", nonfinite_elements(context.record));
    }
    log.add(std::move(signal));
  }

  // Without an optimiser that counts, nobody knows whether a scaler of losses left the step out.
  bool maybe_skipped(const StepContext& context) const {
    if (check_ == Check::kNonfiniteGradient && !counted_ && !optimiser_known(context)) return true;
    return optimiser_stood_still(context.record);
  }

  // A loss scaler that meets an overflow leaves the step out on all ranks and lowers its factor,
  // most of all in its first steps. A count that never moved says nothing later on.
  bool optimiser_stood_still(const StepRecord& record) const {
    return std::ranges::all_of(record.workers, [&](const WorkerRecord& w) {
      const std::uint64_t* found = optimizer_steps_.find(w.replica);
      const std::uint64_t before = found == nullptr ? 0 : *found;
      return w.optimizer_step == before && (before > 0 || records_ <= kScalerSearch);
    });
  }

  std::string title(const StepContext& context) const {
    const std::string what = check_ == Check::kNonfiniteLoss ? "loss" : "gradient";
    if (skipped_ && (counted_ || optimiser_known(context))) {
      return "{Ranks} had a " + what + " that was not finite, and the optimiser left the step out";
    }
    if (skipped_) {
      return "{Ranks} had a " + what +
             " that was not finite; whether the optimiser left the step out is not known";
    }
    if (sudden_) {
      return "{Ranks} turned to a " + what +
             " that is not finite at the same step: it came with the parameters or the reduction "
             "of the step before";
    }
    return "{Ranks} had a " + what + " that was not finite";
  }

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
  void update(const StepContext& context, SignalLog& log) {
    Blame blame;
    std::uint64_t first = context.record.step;
    double now = 0;
    double start = 0;
    for (const WorkerRecord& w : context.record.workers) {
      follow(w, context.record.step);
      const Worker* known = workers_.find(w.replica);
      if (known == nullptr || known->below.length < kVanished || std::isnan(share_not_zero(w)))
        continue;
      insert(blame.ranks, w.rank);
      first = std::min(first, known->below.first_step);
      now += share_not_zero(w);
      start += known->least;
    }
    if (blame.ranks.empty() || blame.ranks.size() < context.workers()) return;
    const auto ranks = static_cast<double>(blame.ranks.size());
    blame.everyone = true;
    Signal signal = sighting({Check::kZeroGradient, kVanishedKey}, context, std::move(blame), 0.9);
    signal.first_step = first;
    signal.severity = Severity::kWarning;
    signal.title = "{Ranks} had gradients of which most elements have become exactly zero";
    signal.remedy =
        "Too small for 16 bits: train in bf16, or scale the loss (GradScaler) and do not divide it "
        "by large numbers. Else units died: lower the learning rate.";
    signal.evidence = {{"share_not_zero", now / ranks}, {"share_not_zero_at_start", start / ranks}};
    log.add(std::move(signal), 1);
  }

 private:
  struct Worker {
    std::uint64_t records = 0;
    double least = 1;  // share that was not zero, at the start
    Streak below;
  };

  void follow(const WorkerRecord& worker, std::uint64_t step) {
    const double share = share_not_zero(worker);
    if (std::isnan(share)) return;
    Worker& known = workers_[worker.replica];
    if (known.records < kStart) {
      if (known.records++ >= kFirstRecords) known.least = std::min(known.least, share);
      return;
    }
    known.below.see(known.least >= kLeastShare && share < kLeft * known.least, step);
  }

  PerWorker<Worker> workers_;
};

class ZeroGradient final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    whole(context, log);
    vanished_.update(context, log);
    below_fp16(context, log);
  }

 private:
  void whole(const StepContext& context, SignalLog& log) {
    Blame blame;
    std::size_t known = 0;
    for (const WorkerRecord& w : context.record.workers) {
      known += !std::isnan(w.grad_norm);
      learned_ = learned_ || w.grad_norm > 0;
      if (w.grad_norm == 0) insert(blame.ranks, w.rank);
    }
    if (std::isnan(first_loss_)) first_loss_ = context.record.loss_mean;
    if (blame.ranks != zero_) {
      same_ = 0;
      same_since_ = context.record.step;
    }
    ++same_;
    zero_ = blame.ranks;
    if (known == 0) return log.cannot(Check::kZeroGradient, "No gradient could be read.");
    log.checked(Check::kZeroGradient);
    blame.everyone = blame.ranks.size() == known;
    all_zero_ = blame.everyone ? all_zero_ + 1 : 0;
    if (all_zero_ > 0 && all_zero_ < kAllZero) {
      log.needs(Check::kZeroGradient, kAllZero - all_zero_,
                "The gradient was zero on all ranks, as of one batch without a target.");
    }
    if (known == 1) {
      log.needs_records(Check::kZeroGradient, kAllZero,
                        "One batch without a target has a gradient of zero.");
    }
    if (blame.ranks.empty() || (blame.everyone && all_zero_ < kAllZero)) return;
    const std::uint64_t first = context.record.step - (blame.everyone ? all_zero_ - 1 : 0);
    Signal signal = sighting({Check::kZeroGradient, blame.everyone}, context, blame, 1);
    signal.first_step = std::min(first, context.record.step);
    signal.title = "{Ranks} had a gradient of exactly zero";
    // A batch without a target, or a margin that is met: not a fault as long as it passes, or once
    // something was learned.
    const bool nothing_to_learn = std::ranges::all_of(
        context.record.workers, [](const auto& w) { return w.grad_norm != 0 || w.loss == 0; });
    const bool passes = blame.everyone ? learned_ : same_ < kOneZero || !others_learn(context);
    if (nothing_to_learn && passes) signal.severity = Severity::kInfo;
    if (nothing_to_learn && !passes && !blame.everyone) {
      signal.severity = Severity::kWarning;
      signal.first_step = same_since_;
    }
    if (!nothing_to_learn) signal.remedy = kNoGradient;
    signal.key += 2 * static_cast<std::uint64_t>(signal.severity == Severity::kInfo);
    signal.evidence = {{"workers_zero", static_cast<std::int64_t>(blame.ranks.size())}};
    log.add(std::move(signal));
  }

  // From the run's first step on, where no start of it can be compared with.
  void below_fp16(const StepContext& context, SignalLog& log) {
    const auto& workers = context.record.workers;
    const auto share = [](const WorkerRecord& w) {
      return real_of(w, FingerprintKind::kBelowFp16);
    };
    if (std::ranges::all_of(workers, [&](const auto& w) { return std::isnan(share(w)); })) return;
    const bool learned = context.record.loss_mean < kStillLearning * first_loss_;
    const bool below =
        std::ranges::all_of(workers, [&](const auto& w) { return share(w) > kMostBelow; });
    if (below_.see(below && !learned, context.record.step) < kBelowSamples) return;
    Signal signal =
        sighting({Check::kZeroGradient, kBelowKey}, context, of_all(context.record), 0.9);
    signal.first_step = below_.first_step;
    signal.severity = Severity::kWarning;
    signal.title = fmt::format(
        "{{Ranks}} had gradients too small for fp16: {:.0f} % of their elements are zero or a few "
        "times its smallest number",
        100 * share(workers.front()));
    signal.remedy = kScaleTheLoss;
    signal.evidence = {{"share_below_fp16", share(workers.front())}};
    log.add(std::move(signal), kAllSteps);
  }

  // Most of them, and their loss is no small rest of what it was: a margin is met by and by, now on
  // one worker and then on another.
  bool others_learn(const StepContext& context) const {
    const std::size_t others = context.workers() - zero_.size();
    const double loss = context.record.loss_mean * static_cast<double>(context.workers()) /
                        static_cast<double>(others);
    // Of a loss below 0 a small rest is none.
    const bool rest = first_loss_ > 0 && loss < kStillLearning * first_loss_;
    return 2 * others >= context.workers() && !rest;
  }

  VanishedElements vanished_;
  Streak below_;                // samples of which next to nothing was left
  std::uint64_t all_zero_ = 0;  // records in a row
  Ranks zero_;                  // in the record before
  std::uint64_t same_ = 0;      // records in a row in which it was these, and no other
  std::uint64_t same_since_ = 0;
  double first_loss_ = kNaN;  // mean over the workers
  bool learned_ = false;      // some gradient was not zero
};

class FrozenGradient final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    const Found found = compare(context);
    remember(context);
    if (found.compared == 0) {
      return log.waits(Check::kFrozenGradient, "No worker has two gradients to compare yet.");
    }
    log.checked(Check::kFrozenGradient);
    Blame blame;
    blame.ranks = found.certain;
    if (2 * found.likely.size() <= found.compared) blame.ranks = unite(blame.ranks, found.likely);
    // The same data give the same gradient as long as the parameters stay: others show if they did.
    if (found.moved_on_same_data > 0) blame.ranks = unite(blame.ranks, found.same_data);
    if (blame.ranks.empty()) return;
    blame.everyone = blame.ranks.size() == context.workers();
    Signal signal =
        sighting(Check::kFrozenGradient, context, blame, found.certain.empty() ? 0.9 : 0.99);
    signal.title = "{Ranks} repeated the gradient of the step before, bit for bit";
    signal.evidence = {{"steps_frozen", static_cast<std::int64_t>(++frozen_steps_)},
                       {"data_changed", found.certain.empty() ? "unknown" : "yes"}};
    log.add(std::move(signal), 1);
  }

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

  Found compare(const StepContext& context) const {
    Found found;
    for (std::size_t i = 0; i < context.workers(); ++i) {
      const WorkerRecord& w = context.record.workers[i];
      const Last* last = last_.find(w.replica);
      if (last == nullptr || last->fingerprint == 0 || !has_gradient(w)) continue;
      ++found.compared;
      const bool same = w.fingerprint == last->fingerprint;
      const std::uint64_t batch = batch_of(w, context.batches[i]);
      const bool known = batch != 0 && last->batch != 0;
      if (known && batch == last->batch) {
        found.moved_on_same_data += !same;
        if (same) insert(found.same_data, w.rank);
      } else if (same) {
        insert(known ? found.certain : found.likely, w.rank);
      }
    }
    return found;
  }

  void remember(const StepContext& context) {
    for (std::size_t i = 0; i < context.workers(); ++i) {
      const WorkerRecord& w = context.record.workers[i];
      const bool usable = has_gradient(w) && w.fingerprint != 0;
      last_[w.replica] = {usable ? w.fingerprint : 0, batch_of(w, context.batches[i])};
    }
  }

  PerWorker<Last> last_;
  std::uint64_t frozen_steps_ = 0;
};

}  // namespace

std::unique_ptr<Rule> make_nonfinite_gradient() {
  return std::make_unique<Nonfinite>(Check::kNonfiniteGradient);
}

std::unique_ptr<Rule> make_nonfinite_loss() {
  return std::make_unique<Nonfinite>(Check::kNonfiniteLoss);
}

std::unique_ptr<Rule> make_zero_gradient() { return std::make_unique<ZeroGradient>(); }

std::unique_ptr<Rule> make_frozen_gradient() { return std::make_unique<FrozenGradient>(); }

}  // namespace presum::diagnose
