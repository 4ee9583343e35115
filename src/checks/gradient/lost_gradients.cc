// SPDX-License-Identifier: Apache-2.0
// **lost-gradients.** Detects four cases, each between one optimizer step and the next. It needs
// the optimizer.
//
// - *Cleared*: passes whose `.grad` was zeroed before the optimizer used it, reduced or not,
//   between passes or after the last one (the optimizer then gets nothing: `None`, or zeros in the
//   steps of the sample below). Not reported if parameters moved in between (sharpness-aware
//   training), if an input's gradient was requested (adversarial examples), if a remaining pass has
//   the same rows, if the loss scale changed, if another optimizer steps in between (a GAN), or if
//   the optimizer's gradient is not what the last passes made, up to a factor: then the program
//   accumulates gradients itself. A pass over other rows that only measures something (gradient
//   noise, influence) looks the same; take its gradients with `torch.autograd.grad`, which leaves
//   `.grad` alone.
// - *Detached*: training forward passes without a backward pass, if their output has a loss in it,
//   or if no part of a loader's batch was trained on. Evaluation mode does not count, nor do rows
//   of a batch of which other rows were used.
// - *Changed*: a sample of the accumulated gradient (4 parameters, 64 elements of each) is compared
//   with itself after a pass that is not reduced and before the next pass, in the first 3 steps of
//   the optimizer and then in one of 10. If it changed by a factor, the finding names clipping,
//   unscaling or scaling; if not by a factor, it was overwritten.
// - *Never cleared*: a step's first pass adds to a gradient that an optimizer step has already
//   used. Reported if one optimizer steps all parameters, and not if the sum is zeroed before it is
//   used.
//
// Under FSDP2 only *detached* and *changed* are visible, since `zero_grad()` keeps what FSDP2
// accumulates. With gradients on a device, zeroing in place is not visible; torch's default
// `set_to_none=True` is.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string>
#include <utility>

#include "checks/engine/rules.h"
#include "checks/engine/text.h"

namespace presum::checks {
namespace {

using enum FingerprintKind;

// A program may skip a batch or inspect a gradient now and then; that is not a finding.
constexpr std::uint64_t kSureSteps = 3;  // steps that show it, and
constexpr std::uint64_t kMost = 2;       // at least one in this many since the first
constexpr std::uint64_t kSampled = 2;    // the same where only some steps are sampled
enum Way : std::size_t { kCleared, kDetached, kChanged, kAgain };

bool is_factor(double factor, double of) { return std::abs(factor - of) <= 1e-3 * std::abs(of); }

struct LostPasses {
  std::uint32_t of_rank = 0;  // the owner of these micro-batches
  bool cleared = false;       // false: no backward pass went through them
  std::uint64_t micro_batches_lost = 0;
  std::uint64_t micro_batches = 0;

  std::string lost() const { return cleared ? "cleared" : "detached"; }
  std::uint64_t key() const { return cleared ? 1 : 0; }
  static constexpr std::tuple kFields{field("of_rank", &LostPasses::of_rank),
                                      field("lost", &LostPasses::lost),
                                      field("micro_batches_lost", &LostPasses::micro_batches_lost),
                                      field("micro_batches", &LostPasses::micro_batches)};
};

std::string sentence(const LostPasses& seen, const Who& who) {
  const auto whose = who.ranks.size() > 1 ? fmt::format(" (rank {})", seen.of_rank) : "";
  return fmt::format("{} lost the gradients of {} of {} micro-batches of a step{}: {}", who.words(),
                     seen.micro_batches_lost, seen.micro_batches, whose,
                     seen.cleared ? "they were cleared before the optimizer's step"
                                  : "no backward pass went through them");
}

struct ChangedSum {
  double factor_between_passes = kNaN;  // NaN if it is a different gradient
  std::string usual_cause;
  static constexpr std::tuple kFields{
      field("factor_between_passes", &ChangedSum::factor_between_passes),
      field("usual_cause", &ChangedSum::usual_cause)};
};

std::string sentence(const ChangedSum& seen, const Who& who) {
  if (std::isnan(seen.factor_between_passes)) {
    return who.words() + " overwrote the accumulated gradient between two micro-batches of a step";
  }
  if (seen.factor_between_passes == 0) {
    return who.words() + " cleared the accumulated gradient within a step";
  }
  return fmt::format(
      "{} multiplied the accumulated gradient by {} between two micro-batches of a step: usually "
      "{} before the sum was whole",
      who.words(), number(seen.factor_between_passes), seen.usual_cause);
}

struct NeverCleared {
  static constexpr std::tuple<> kFields{};
};

std::string sentence(const NeverCleared& /*seen*/, const Who& who) {
  return who.words() +
         " added each step's gradient to those of the steps before: nothing clears it after the "
         "optimizer's step";
}

// The usual cause of a change of the accumulated gradient.
std::string usual_cause(const StepContext& context, double factor) {
  const double power = -std::log2(factor);
  const bool scaled = !context.roster.fact("grad_scaler").empty();
  if (std::isnan(factor) || factor == 0) return "";
  if (scaled && power >= 3 && is_factor(power, std::round(power))) {
    return "the loss scaler's factor was divided out";
  }
  const auto clips = [](const WorkerRecord& w) { return w.fingerprint_of(kClipNorm) != nullptr; };
  if (factor < 1 && std::ranges::any_of(context.record.workers, clips)) return "it was clipped";
  return "it was scaled";
}

// NaN if the accumulated gradient became a different one, 1 if it did not change.
double factor_of(const WorkerRecord& worker) {
  const std::uint64_t* bits = worker.fingerprint_of(kGradChanged);
  return bits == nullptr ? 1 : std::bit_cast<double>(*bits);
}

// Micro-batches whose loss was computed and whose gradient no optimizer step uses, or one uses
// again.
class LostGradients final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    if (context.roster.sees_no_program()) return log.cannot(&kLostGradients, kSeesNoProgram);
    const auto& workers = context.record.workers;
    const auto steps = [](const WorkerRecord& w) { return w.optimizer_step > 0; };
    if (std::ranges::none_of(workers, steps)) {
      return log.cannot(&kLostGradients, "No optimizer step was seen.");
    }
    log.checked(&kLostGradients);
    log.needs_records(&kLostGradients, kSureSteps,
                      "A program may skip a batch now and then, so a finding needs several steps.");
    lost(context, log);
    changed(context, log);
    left_over(context, log);
  }

 private:
  Signal signal_of(std::size_t way, const StepContext& context, Blame who, Evidence seen) const {
    Signal signal = sighting(&kLostGradients, context, std::move(who), way == kCleared ? 0.95 : 0.9,
                             std::move(seen));
    signal.first_step = habits_[way].first_step;
    return signal;
  }

  bool is_habit(std::size_t way, const StepContext& context, const Ranks& who) {
    const std::uint64_t seen = habits_[way].see(!who.empty(), context.record.step);
    return !who.empty() && seen >= (way == kChanged ? kSampled : kSureSteps);
  }

  void lost(const StepContext& context, SignalLog& log) {
    if (context.record.unused()) return;  // reported with the next step that is used
    for (const auto& [way, kind] :
         {std::pair{kCleared, kPassesCleared}, std::pair{kDetached, kForwardsDetached}}) {
      const Blame who = blame_where(
          context, [lost = kind](const WorkerRecord& w) { return value_of(w, lost) > 0; });
      if (!is_habit(way, context, who.ranks)) continue;
      const WorkerRecord& one = worker_of(context.record, who.ranks.front());
      const std::uint64_t missing = value_of(one, kind);
      const bool nothing_left = way == kCleared && factor_of(one) == 0;
      const std::uint64_t all = missing + (nothing_left ? 0 : one.micro_batches);
      log.add(signal_of(way, context, who,
                        LostPasses{.of_rank = one.rank,
                                   .cleared = way == kCleared,
                                   .micro_batches_lost = missing,
                                   .micro_batches = all}),
              kAllSteps);
    }
  }

  void changed(const StepContext& context, SignalLog& log) {
    const auto looked = [](const WorkerRecord& w) { return w.fingerprint_of(kGradChanged); };
    if (std::ranges::none_of(context.record.workers, looked)) return;
    const Blame who = blame_where(context, [](const WorkerRecord& w) {
      return factor_of(w) != 1 && value_of(w, kPassesCleared) == 0;
    });
    if (!is_habit(kChanged, context, who.ranks)) return;
    const double factor = factor_of(worker_of(context.record, who.ranks.front()));
    log.add(signal_of(kChanged, context, who, ChangedSum{factor, usual_cause(context, factor)}),
            kAllSteps);
  }

  void left_over(const StepContext& context, SignalLog& log) {
    if (context.record.unused()) return;
    const Blame who =
        blame_where(context, [](const WorkerRecord& w) { return value_of(w, kLeftOver) > 0; });
    if (!is_habit(kAgain, context, who.ranks)) return;
    Signal signal = signal_of(kAgain, context, who, NeverCleared{});
    signal.remedy =
        "Call `optimizer.zero_grad()` once per step, after the optimizer step or before the first "
        "backward pass; check that it is not called on another optimizer or model.";
    log.add(std::move(signal), kAllSteps);
  }

  std::array<Streak, 4> habits_{{{kMost}, {kMost}, {kMost}, {kMost}}};  // by Way
};

}  // namespace

constexpr FingerprintKind kLostGradientsKinds[] = {
    FingerprintKind::kPassesCleared, FingerprintKind::kForwardsDetached,
    FingerprintKind::kGradChanged, FingerprintKind::kLeftOver};
constexpr Check kLostGradientsExplains[] = {&kRankOutlier, &kPairTooSimilar,   &kTooConsistent,
                                            &kLossEvent,   &checks::kClipNorm, &kBufferDesync,
                                            &kNoProgress,  &kTokenImbalance};
constinit const CheckInfo kLostGradients{
    .id = "lost-gradients",
    .severity = Severity::kWarning,
    .compares = "the micro-batches whose loss was computed, against those in the optimizer step",
    .fires = "after 3 steps that show it, at least every second one",
    .consequence = "The optimizer step is not made of the micro-batches that you think it is.",
    .cannot_see =
        "Gradients that are dropped only now and then, or beside the steps of another optimizer (a "
        "GAN); losses of models that do not return them, if no loader dealt the batch.",
    .mistake =
        "for batch in micro_batches:\n    optimizer.zero_grad()  # belongs before the loop\n    "
        "loss = model(**batch).loss\nloss.backward()            # only the last one",
    .fix =
        "Call `zero_grad()` once per optimizer step, after it; call `backward()` on the loss of "
        "every micro-batch; clip and unscale after the last one.",
    .resembles = "allenai/open-instruct#1498",
    .precedence = 200,
    .explains = kLostGradientsExplains,
    .fingerprints = kLostGradientsKinds,
    .make = make<LostGradients>,
};

}  // namespace presum::checks
