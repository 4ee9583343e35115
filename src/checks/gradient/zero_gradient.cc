// SPDX-License-Identifier: Apache-2.0
// **zero-gradient, frozen-gradient.** If the loss is exactly zero too, and some gradient was
// nonzero before, nothing is left to learn (a satisfied margin): information. A repeated gradient
// is fine if its batch repeats too and no other rank's gradient changed on a repeated batch (no
// rank stepped). If batches are unknown, at most half of the ranks may be frozen; with more,
// parameters and data may not have changed. A gradient that is one step old but changes is not
// visible.
//
// Vanished elements: the baseline is the lowest share of nonzero elements in records 5 to 20. If
// less than a quarter of that share remains for 10 records in a row, on all ranks, it is a warning:
// underflow in 16 bits, or dead units. A baseline below a quarter is not used. A run that
// underflows from its start shows in a sample of what remains (8 of the optimizer's gradients, 512
// elements of each, in its first 3 steps and then one in 10). It is a warning after 3 samples in a
// row if more than half of the elements are zero or at most 4 times fp16's smallest number, if such
// small elements are half or more of the nonzero ones, and if all of these are multiples of that
// number, which happens only in fp16. It does not apply if the loss is below a tenth of its first
// value, with a loss scaler, or if the program divides gradients by a number that is not a power of
// two. Zeros are counted in the first 64 of every 960 elements of a parameter, which costs the pass
// 0 to 4%.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "checks/engine/rules.h"

namespace presum::checks {
namespace {

constexpr std::uint64_t kAllZero = 3;   // records until zero gradients on all ranks are a finding
constexpr std::uint64_t kOneZero = 10;  // on some ranks: more than a batch without targets
constexpr double kStillLearning = 0.1;  // of the first loss

// Vanishing elements: the start of the run, without its first records, in which much may be zero by
// initialization; the share that remains; for how long.
constexpr std::uint64_t kFirstRecords = 4;
constexpr std::uint64_t kStart = 20;
constexpr double kLeft = 0.25;
constexpr double kLeastShare = 0.25;  // below it most elements were zero, as for embeddings
constexpr std::uint64_t kVanished = 10;

// Samples in a row for which fp16 left almost nothing, and the share.
constexpr std::uint64_t kBelowSamples = 3;
constexpr double kMostBelow = 0.5;

constexpr const char* kScaleTheLoss =
    "Too small for fp16: train in bf16, or scale the loss (GradScaler) and do not divide it by "
    "large numbers.";
constexpr const char* kNoGradient =
    "The loss is nonzero but its gradient is zero: detached before the backward pass, masked, "
    "multiplied by zero, or too small for fp16 (scale the loss, or train in bf16).";

double share_not_zero(const WorkerRecord& worker) {
  return has_gradient(worker) ? 1 - real_of(worker, FingerprintKind::kZeroShare) : kNaN;
}

struct Vanished {
  double not_zero_share = 0;
  double not_zero_at_start_share = 0;
  static constexpr std::tuple kFields{
      field("not_zero_share", &Vanished::not_zero_share),
      field("not_zero_at_start_share", &Vanished::not_zero_at_start_share)};
};

std::string sentence(const Vanished& /*seen*/, const Who& who) {
  return who.words() + " had gradients of which most elements have become exactly zero";
}

struct ExactlyZero {
  std::uint64_t ranks_zero = 0;
  bool everyone = false;
  bool harmless = false;

  std::uint64_t key() const { return (everyone ? 1 : 0) + (harmless ? 2 : 0); }
  static constexpr std::tuple kFields{field("ranks_zero", &ExactlyZero::ranks_zero)};
};

std::string sentence(const ExactlyZero& /*seen*/, const Who& who) {
  return who.words() + " had a gradient of exactly zero";
}

struct BelowFp16 {
  double below_fp16_share = 0;  // the lowest of all ranks
  static constexpr std::tuple kFields{field("below_fp16_share", &BelowFp16::below_fp16_share)};
};

std::string sentence(const BelowFp16& seen, const Who& who) {
  return fmt::format(
      "{} had gradients too small for fp16: at least {:.0f} % of their sampled elements are zero "
      "or a few "
      "times its smallest number",
      who.words(), 100 * seen.below_fp16_share);
}

// Gradients in which most elements that were nonzero at the start of the run became zero: underflow
// in 16 bits, or dead units. On all ranks; if only some ranks have it, statistics show them.
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
    Signal signal = sighting(&kZeroGradient, context, std::move(blame), 0.9,
                             Vanished{now / ranks, start / ranks});
    signal.first_step = first;
    signal.severity = Severity::kWarning;
    signal.remedy =
        "Too small for 16 bits: train in bf16, or scale the loss (GradScaler) and do not divide it "
        "by large numbers. If not, units died: lower the learning rate.";
    log.add(std::move(signal), 1);
  }

 private:
  struct Worker {
    std::uint64_t records = 0;
    double least = 1;  // lowest nonzero share at the start
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
    if (known == 0) return log.cannot(&kZeroGradient, "No gradient could be read.");
    log.checked(&kZeroGradient);
    blame.everyone = blame.ranks.size() == known;
    all_zero_ = blame.everyone ? all_zero_ + 1 : 0;
    if (all_zero_ > 0 && all_zero_ < kAllZero) {
      log.needs(&kZeroGradient, kAllZero - all_zero_,
                "The gradient was zero on all ranks, as for a batch without a target.");
    }
    if (known == 1) {
      log.needs_records(&kZeroGradient, kAllZero, "A batch without a target has a zero gradient.");
    }
    if (blame.ranks.empty() || (blame.everyone && all_zero_ < kAllZero)) return;
    report(context, std::move(blame), log);
  }

  // A batch without a target, or a satisfied margin: not a fault if it is temporary, or once
  // something was learned.
  void report(const StepContext& context, Blame blame, SignalLog& log) const {
    const bool everyone = blame.everyone;
    const bool nothing_to_learn = std::ranges::all_of(
        context.record.workers, [](const auto& w) { return w.grad_norm != 0 || w.loss == 0; });
    const bool passes = everyone ? learned_ : same_ < kOneZero || !others_learn(context);
    const ExactlyZero seen{.ranks_zero = blame.ranks.size(),
                           .everyone = everyone,
                           .harmless = nothing_to_learn && passes};
    Signal signal = sighting(&kZeroGradient, context, std::move(blame), 1, seen);
    const std::uint64_t first = context.record.step - (everyone ? all_zero_ - 1 : 0);
    signal.first_step = std::min(first, context.record.step);
    if (seen.harmless) signal.severity = Severity::kInfo;
    if (nothing_to_learn && !passes && !everyone) {
      signal.severity = Severity::kWarning;
      signal.first_step = same_since_;
    }
    if (!nothing_to_learn) signal.remedy = kNoGradient;
    log.add(std::move(signal));
  }

  // Underflow from the first step of the run on, without a baseline to compare with.
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
    Signal signal = sighting(&kZeroGradient, context, of_all(context.record), 0.9,
                             BelowFp16{share(*std::ranges::min_element(workers, {}, share))});
    signal.first_step = below_.first_step;
    signal.severity = Severity::kWarning;
    signal.remedy = kScaleTheLoss;
    log.add(std::move(signal), kAllSteps);
  }

  // Whether most ranks still learn, with a loss that is not a small rest of the first: margins are
  // satisfied gradually, on one rank and then on another.
  bool others_learn(const StepContext& context) const {
    const std::size_t others = context.workers() - zero_.size();
    const double loss = context.record.loss_mean * static_cast<double>(context.workers()) /
                        static_cast<double>(others);
    // A loss below 0 has no small rest.
    const bool rest = first_loss_ > 0 && loss < kStillLearning * first_loss_;
    return 2 * others >= context.workers() && !rest;
  }

  VanishedElements vanished_;
  Streak below_;                // samples with almost nothing left
  std::uint64_t all_zero_ = 0;  // records in a row
  Ranks zero_;                  // in the previous record
  std::uint64_t same_ = 0;      // records in a row with exactly these ranks
  std::uint64_t same_since_ = 0;
  double first_loss_ = kNaN;  // mean over the ranks
  bool learned_ = false;      // some gradient was nonzero
};

}  // namespace

constexpr FingerprintKind kZeroGradientKinds[] = {FingerprintKind::kZeroShare,
                                                  FingerprintKind::kBelowFp16};
constexpr Check kZeroGradientExplains[] = {&kRankOutlier, &kPairTooSimilar, &kTooConsistent,
                                           &kLossEvent, &kFrozenGradient};
constinit const CheckInfo kZeroGradient{
    .id = "zero-gradient",
    .severity = Severity::kCritical,
    .compares = "gradients that are exactly zero",
    .fires =
        "immediately; on all ranks after 3 records; shares of zero elements after 10 and elements "
        "too small for fp16 after 3 samples (3 records), both as warnings",
    .consequence =
        "A rank with a zero gradient contributes nothing, and the mean is too small by its share.",
    .cannot_see =
        "Gradients that are only nearly zero; with a loss scaler, elements that underflow from the "
        "first step of the run on.",
    .mistake = "loss = criterion(output.detach(), target)",
    .fix =
        "Look for a detached loss, a frozen model or a batch without any target on the named "
        "ranks.",
    .precedence = 270,
    .explains = kZeroGradientExplains,
    .fingerprints = kZeroGradientKinds,
    .of_a_step = true,
    .sets_apart = true,
    .info_explains = false,
    .explains_single_ranks = false,
    .make = make<ZeroGradient>,
};

}  // namespace presum::checks
