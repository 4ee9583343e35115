// SPDX-License-Identifier: Apache-2.0
// **collective-in-loss.** presum marks each tensor with a gradient that the program all-reduces in
// place; autograd does not see that. If the walk from the loss to the model's output
// (loss-mismatch) meets a mark, the backward pass treats the reduced value as the rank's own. It is
// a warning if the loss is a sum that is then divided by the world size, since DDP divides once
// more, or if the loss is not linear in the reduced value (a contrastive loss, a normalization over
// all ranks). Else the gradient is that of the rank's own loss, as without the collective, and it
// is information.

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "checks/engine/rules.h"

namespace presum::checks {
namespace {

constexpr const char* kNoGraph =
    "No backward pass was seen whose loss is computed from the model's output.";

struct ReducedInPlace {
  enum class How : std::uint8_t { kValue, kDivided, kFunction };

  std::string call;
  How how = How::kValue;

  std::string effect() const {
    constexpr const char* kNames[] = {"the value only", "divided by the world size",
                                      "a function of all ranks"};
    return kNames[static_cast<std::size_t>(how)];
  }
  std::uint64_t key() const { return static_cast<std::uint64_t>(how); }
  static constexpr std::tuple kFields{field("call", &ReducedInPlace::call),
                                      field("effect", &ReducedInPlace::effect)};
};

std::string sentence(const ReducedInPlace& seen, const Who& who) {
  constexpr const char* kHow[] = {
      "changed the loss in place ({}) before the backward pass, which does not change the gradient",
      "summed the loss over the ranks in place ({}) and divided it by the world size: autograd "
      "sees "
      "the division only",
      "reduced a value in the loss in place ({}): autograd takes it for the rank's own"};
  return who.words() + " " +
         fmt::format(fmt::runtime(kHow[static_cast<std::size_t>(seen.how)]), seen.call);
}

class CollectiveInLoss final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    if (context.roster.sees_no_program()) return log.cannot(&kCollectiveInLoss, kSeesNoProgram);
    if (context.roster.revision() != asked_) ask(context);
    if (!known_) return log.waits(&kCollectiveInLoss, kNoGraph);
    log.checked(&kCollectiveInLoss);
    if (found_.ranks.empty()) return;
    Signal signal = sighting(&kCollectiveInLoss, context, found_, 0.95, seen_);
    if (seen_.how == ReducedInPlace::How::kValue) signal.severity = Severity::kInfo;
    log.add(std::move(signal), kAllSteps);
  }

 private:
  void ask(const StepContext& context) {
    asked_ = context.roster.revision();
    found_ = blame_where(context, [&](const WorkerRecord& w) {
      known_ = known_ || !context.roster.fact_of(w.rank, "loss.functions").empty();
      return !context.roster.fact_of(w.rank, "loss_reduced_at").empty();
    });
    if (found_.ranks.empty()) return;
    known_ = true;
    using enum ReducedInPlace::How;
    const std::uint32_t first = found_.ranks.front();
    const std::string how = context.roster.fact_of(first, "loss_reduced_how");
    seen_ = {context.roster.fact_of(first, "loss_reduced_at"), how == "divided"    ? kDivided
                                                               : how == "function" ? kFunction
                                                                                   : kValue};
  }

  std::uint64_t asked_ = ~std::uint64_t{0};  // the roster's revision
  bool known_ = false;                       // some rank's graph reached the model's output
  Blame found_;
  ReducedInPlace seen_;
};

}  // namespace

constinit const CheckInfo kCollectiveInLoss{
    .id = "collective-in-loss",
    .severity = Severity::kWarning,
    .compares = "whether the program reduces a part of the loss where autograd does not see it",
    .fires = "at the first backward pass; information if the gradient is as without the collective",
    .consequence =
        "The gradient lacks the other ranks' share, or is divided by the world size once more.",
    .cannot_see =
        "A collective inside the model, in torch-compiled code, on a detached tensor, or other "
        "than "
        "an all-reduce in place.",
    .mistake =
        "dist.all_reduce(loss)\nloss = loss / dist.get_world_size()\nloss.backward()  # DDP "
        "averages once more",
    .fix =
        "To log a mean, reduce `loss.detach().clone()`. If the gradient should flow through it, "
        "use "
        "an all-reduce that autograd knows (torch.distributed._functional_collectives).",
    .resembles = "lightly-ai/lightly#1920",
    .precedence = 205,
    .make = make<CollectiveInLoss>,
};

}  // namespace presum::checks
