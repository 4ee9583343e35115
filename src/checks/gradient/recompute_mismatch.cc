// SPDX-License-Identifier: Apache-2.0
// **recompute-mismatch.** Off by default. `attach(record=presum.Record(verify_every=n))` keeps one
// micro-batch of every n-th recorded step: arguments, buffers, generator states and the gradient
// that arrived at each output. Before the optimizer step, presum recomputes it on aliases of the
// parameters and compares the gradients bit for bit. If they differ, it recomputes a third time. If
// that result equals the training's, and all earlier repetitions were equal too, the finding is a
// warning: one of two repetitions went wrong, and the hardware is as likely to fail in training. If
// it does not, the program is not deterministic, which is information.
//
// presum refuses the following, with a note that gives the reason: FSDP2, compiled modules, a
// collective in the forward pass, foreign hooks on modules or gradients, reentrant checkpoints,
// several forward passes in one pass, arguments that are neither tensors nor plain values, modules
// with their own generators, modules whose forward pass writes to an attribute that is not a buffer
// or to an object in it (a counter, a cache, a list, an array), and parameters or inputs that the
// program changes before the optimizer step, even without torch noticing. Only a single flipped bit
// is reported as a change.
//
// Copies keep the layout of the originals (strides, alignment), because with another layout kernels
// add in a different order. If all ranks differ in the same way, the finding does not blame the
// hardware. An error from before the forward pass (in an input or a parameter) is in both
// computations, so this check misses it. At such a step it costs a forward and a backward pass of
// one micro-batch, a wait for the device, and memory for two more sets of gradients (three if they
// differ), inputs and buffers.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "checks/engine/rules.h"
#include "checks/engine/text.h"

namespace presum::checks {
namespace {

constexpr std::string_view kNotAsked =
    "No micro-batch was recomputed: attach(record=Record(verify_every=)) enables it.";
constexpr std::uint64_t kUnsteady = 1;
constexpr std::uint64_t kTwice = 2;
constexpr std::uint64_t kTurnedOver = 3;
constexpr std::uint64_t kOnce = 4;

struct Answer {
  std::uint64_t value;  // of the fingerprint
  Severity severity;
  const char* outcome;
  const char* words;
};

constexpr std::array<Answer, 4> kAnswers{{
    {kTwice, Severity::kCritical, "both repetitions alike, and unlike the training's",
     "computed another gradient than the same micro-batch gives, twice, when it is computed once "
     "more"},
    {kTurnedOver, Severity::kCritical, "one bit of parameters or inputs turned over",
     "held parameters or inputs of which one bit turned over between a micro-batch and the "
     "optimizer's step, without a write of the program"},
    {kOnce, Severity::kWarning, "one of two repetitions unlike all others",
     "computed another gradient in one of two repetitions of a micro-batch, and the same one in "
     "all others"},
    {kUnsteady, Severity::kInfo, "repetitions unlike each other",
     "computed different gradients when a micro-batch was repeated: the program is not "
     "deterministic"},
}};

struct Repetitions {
  Answer answer{};
  std::string gradients_different;

  std::string outcome() const { return answer.outcome; }
  std::uint64_t key() const { return answer.value; }
  static constexpr std::tuple kFields{
      field("outcome", &Repetitions::outcome),
      field("gradients_different", &Repetitions::gradients_different)};
};

// Not the hardware of all ranks.
bool blames_a_kernel(const Answer& answer, bool everyone, std::size_t ranks) {
  return answer.value == kTwice && everyone && ranks > 1;
}

std::string sentence(const Repetitions& seen, const Who& who) {
  if (blames_a_kernel(seen.answer, who.everyone, who.ranks.size())) {
    return who.words() +
           " computed another gradient than the same micro-batch gives when it is computed once "
           "more: a kernel that depends on more than its numbers";
  }
  return fmt::format("{} {}", who.words(), seen.answer.words);
}

constexpr std::uint64_t kSureRepeats = 3;  // micro-batches with equal gradients
// The results of ranks that recomputed one of their micro-batches.
class Recomputed final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    const auto answer = [](const WorkerRecord& w) {
      return value_of(w, FingerprintKind::kRecomputed, UINT64_MAX);
    };
    const auto told = [&](const WorkerRecord& w) { return answer(w) <= kAnswers.size(); };
    once_ = once_ || std::ranges::any_of(context.record.workers, told);
    if (!once_) return log.cannot(&kRecomputeMismatch, why_not(context.roster));
    log.checked(&kRecomputeMismatch);
    // A rank that repeatedly gives different gradients runs a program that is not deterministic.
    std::map<std::uint32_t, std::uint64_t> answers;  // by rank
    for (const WorkerRecord& w : context.record.workers) {
      Steadiness& so_far = steadiness_[w.replica];
      std::uint64_t& given = answers[w.rank] = answer(w);
      if (given == kOnce && (so_far.others > 0 || so_far.equal < kSureRepeats)) given = kUnsteady;
      so_far.equal += given == 0;
      so_far.others += told(w) && answer(w) != 0;
    }
    for (const Answer& one : kAnswers) {
      const Blame blame =
          blame_where(context, [&](const WorkerRecord& w) { return answers[w.rank] == one.value; });
      if (blame.ranks.empty()) continue;
      const std::string different =
          context.roster.fact_of(blame.ranks.front(), "recomputed_different");
      Signal signal = sighting(&kRecomputeMismatch, context, blame, 0.99,
                               Repetitions{one, shortened(different, 200)});
      signal.severity = one.severity;
      if (blames_a_kernel(one, blame.everyone, context.workers())) {
        signal.severity = Severity::kInfo;
      }
      if (one.value == kUnsteady) {
        signal.remedy =
            "Nothing, if this is known. If not, make torch use deterministic kernels "
            "(`torch.use_deterministic_algorithms`).";
      }
      log.add(std::move(signal), kAllSteps);
    }
  }

 private:
  // Kept here: the log does not copy it.
  std::string_view why_not(const Roster& roster) {
    const std::string reason = roster.fact("recompute_refused");
    if (refused_.empty() && !reason.empty()) {
      refused_ = "No micro-batch could be recomputed: " + reason + ".";
    }
    return refused_.empty() ? kNotAsked : refused_;
  }

  struct Steadiness {
    std::uint64_t equal = 0;  // micro-batches with equal gradients
    std::uint64_t others = 0;
  };
  std::map<std::uint32_t, Steadiness> steadiness_;  // by replica
  bool once_ = false;                               // some rank recomputed
  std::string refused_;
};

}  // namespace

constexpr FingerprintKind kRecomputeMismatchKinds[] = {FingerprintKind::kRecomputed};
constexpr Check kRecomputeMismatchExplains[] = {
    &kRankOutlier,       &kPairTooSimilar,          &kTooConsistent,   &kLossEvent,
    &kNonfiniteGradient, &kNonfiniteLoss,           &kParameterDesync, &kBufferDesync,
    &kStateDesync,       &kReducedGradientMismatch, &kReductionScale};
constinit const CheckInfo kRecomputeMismatch{
    .id = "recompute-mismatch",
    .severity = Severity::kCritical,
    .compares = "the gradient of a micro-batch, against that of the same micro-batch recomputed",
    .fires =
        "immediately, if `verify_every=` is set; a program that is not deterministic is "
        "information",
    .consequence =
        "A processor or memory that fails now and then: every later step contains the error.",
    .cannot_see =
        "Steps and micro-batches that are not recomputed; errors from before the forward pass; "
        "models whose forward pass cannot be repeated (FSDP2, collectives, compiled parts, hooks).",
    .mistake = "presum.attach(model, optimizer=optimizer, record=presum.Record(verify_every=100))",
    .fix =
        "Take the named ranks' hardware out of the job and test it: memory, processor or "
        "accelerator gave different results for the same numbers. If the gradient differs every "
        "time, look for nondeterministic kernels first.",
    .precedence = 220,
    .explains = kRecomputeMismatchExplains,
    .fingerprints = kRecomputeMismatchKinds,
    .make = make<Recomputed>,
};

}  // namespace presum::checks
