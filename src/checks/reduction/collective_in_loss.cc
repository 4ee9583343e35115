// SPDX-License-Identifier: Apache-2.0
// **collective-in-loss.** presum marks each tensor with a gradient that the program all-reduces in
// place; autograd does not see that. If the walk from the loss to the model's output
// (loss-mismatch) meets a mark, the backward pass treats the reduced value as the rank's own. It is
// a warning if the loss is a sum that is then divided by the number of ranks, since DDP divides
// once more, or if a logarithm, a power or a division by the reduced value follows (a contrastive
// loss, a normalization over all ranks). Else it is information: the gradient may be as without the
// collective. The forward of an autograd Function is left out, since it has its own backward.

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "checks/engine/rules.h"

namespace presum::checks {
namespace {

constexpr const char* kNoGraph =
    "The model's output was not found within 48 nodes of the loss's graph in any backward pass.";

struct ReducedInPlace {
  enum class How : std::uint8_t { kUnknown, kDivided, kFunction };

  std::string call;
  How how = How::kUnknown;

  std::string effect() const {
    constexpr const char* kNames[] = {"unknown", "divided by the number of ranks",
                                      "a function of all ranks"};
    return kNames[static_cast<std::size_t>(how)];
  }
  std::uint64_t key() const { return static_cast<std::uint64_t>(how); }
  static constexpr std::tuple kFields{field("call", &ReducedInPlace::call),
                                      field("effect", &ReducedInPlace::effect)};
};

std::string sentence(const ReducedInPlace& seen, const Who& who) {
  if (seen.how == ReducedInPlace::How::kDivided) {
    return fmt::format(
        "{} summed the loss over the ranks in place ({}) and divided it by their number: autograd "
        "sees the division only",
        who.words(), seen.call);
  }
  if (seen.how == ReducedInPlace::How::kFunction) {
    return fmt::format(
        "{} reduced a value in the loss in place ({}): autograd takes it for the rank's own",
        who.words(), seen.call);
  }
  return fmt::format(
      "{} changed the loss in place ({}) before the backward pass: autograd sees the rank's own "
      "loss",
      who.words(), seen.call);
}

class CollectiveInLoss final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    if (context.roster.sees_no_program()) return log.cannot(&kCollectiveInLoss, kSeesNoProgram);
    if (context.roster.revision() != asked_ || context.workers() != workers_) ask(context);
    if (!known_) return log.waits(&kCollectiveInLoss, kNoGraph);
    log.checked(&kCollectiveInLoss);
    if (found_.ranks.empty()) return;
    Signal signal = sighting(&kCollectiveInLoss, context, found_, 0.95, seen_);
    if (seen_.how == ReducedInPlace::How::kUnknown) signal.severity = Severity::kInfo;
    log.add(std::move(signal), kAllSteps);
  }

 private:
  // The gravest that some ranks report, and these ranks.
  void ask(const StepContext& context) {
    asked_ = context.roster.revision();
    workers_ = context.workers();
    found_ = {};
    for (const WorkerRecord& w : context.record.workers) {
      known_ = known_ || !context.roster.fact_of(w.rank, "loss.functions").empty();
    }
    using enum ReducedInPlace::How;
    for (const auto& [how, name] :
         {std::pair{kFunction, "function"}, std::pair{kDivided, "divided"},
          std::pair{kUnknown, "unknown"}}) {
      const std::string_view wanted = name;
      found_ = blame_where(context, [&](const WorkerRecord& w) {
        return context.roster.fact_of(w.rank, "loss_reduced_how") == wanted;
      });
      if (found_.ranks.empty()) continue;
      known_ = true;
      seen_ = {context.roster.fact_of(found_.ranks.front(), "loss_reduced_at"), how};
      return;
    }
  }

  std::uint64_t asked_ = ~std::uint64_t{0};  // the roster's revision
  std::size_t workers_ = 0;                  // of the record then
  bool known_ = false;                       // some rank's graph reached the model's output
  Blame found_;
  ReducedInPlace seen_;
};

}  // namespace

constinit const CheckInfo kCollectiveInLoss{
    .id = "collective-in-loss",
    .severity = Severity::kWarning,
    .compares = "whether the program reduces a part of the loss where autograd does not see it",
    .fires =
        "at the first backward pass; information if what follows the collective is not known to be "
        "wrong",
    .consequence =
        "The gradient lacks the other ranks' share, or is divided by the world size once more.",
    .cannot_see =
        "A collective inside the model, in torch-compiled code, under no_grad or on a detached "
        "tensor; one that begins after the first passes; another one than all_reduce.",
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
