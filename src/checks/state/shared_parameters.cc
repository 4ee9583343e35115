// SPDX-License-Identifier: Apache-2.0
// **shared-parameters.** At the first step and every 25th, presum looks for parameters that the
// model holds under several names (tied weights). Every rank must tie the same ones. A parameter
// that two optimizers update on every rank is information, and on some ranks only a finding, once
// that has held for 25 steps: a step counts if the parameter has a gradient. An optimizer that
// replaces another, or that calls another inside its own step, counts as one with it.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "checks/engine/agree.h"
#include "checks/engine/rules.h"

namespace presum::checks {
namespace {

constexpr std::uint64_t kSureOfRanks = 25;  // steps: ranks tell at different times
constexpr const char* kSameOptimizers = "Step the same optimizers on every rank.";
constexpr const char* kOneOptimizer =
    "Nothing, if this is on purpose. Otherwise give each parameter to one optimizer; a tied weight "
    "is one parameter with two names.";

struct OtherTies {
  std::string ties;  // by rank: "0-2: none; 3: head.weight = embed.weight"
  static constexpr std::tuple kFields{field("ties", &OtherTies::ties)};
};

std::string sentence(const OtherTies& seen, const Who& who) {
  return fmt::format("{} ({})",
                     who.everyone ? who.the_ranks() + " tie different parameters"
                                  : who.words() + " tied different parameters than the others",
                     seen.ties);
}

struct InTwoOptimizers {
  std::string parameters;
  std::string optimizers;
  static constexpr std::tuple kFields{field("parameters", &InTwoOptimizers::parameters),
                                      field("optimizers", &InTwoOptimizers::optimizers)};
};

std::string sentence(const InTwoOptimizers& seen, const Who& who) {
  return fmt::format("{} updated {} with two optimizers ({}){}", who.words(), seen.parameters,
                     seen.optimizers, who.everyone ? "" : ", and the others did not");
}

class SharedParameters final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    compare_ties(context, log);
    if (context.roster.revision() != asked_) ask(context);
    const bool sure = in_two_.everyone || context.record.step >= asked_at_ + kSureOfRanks;
    if (in_two_.ranks.empty() || !sure || (in_two_.everyone && found_on_some_)) return;
    found_on_some_ = !in_two_.everyone;
    Signal signal = sighting(&kSharedParameters, context, in_two_, 0.99, seen_);
    signal.first_step = asked_at_;
    if (in_two_.everyone) signal.severity = Severity::kInfo;
    signal.remedy = in_two_.everyone ? kOneOptimizer : kSameOptimizers;
    log.add(std::move(signal), kAllSteps);
  }

 private:
  static void compare_ties(const StepContext& context, SignalLog& log) {
    const Split tied = split(context.record, FingerprintKind::kTiedParameters);
    if (tied.known == 0) return log.cannot(&kSharedParameters, kNotSent);
    if (context.alone()) return log.cannot(&kSharedParameters, kOneWorker);
    log.checked(&kSharedParameters);
    if (!tied.differs()) return;
    const auto names = [&](std::uint64_t value) -> std::string {
      const auto& group = *std::ranges::find(tied.groups, value, &Split::Group::value);
      const std::string tied_here = context.roster.fact_of(group.ranks.front(), "tied_parameters");
      return tied_here.empty() ? "none" : tied_here;
    };
    log.add(sighting(&kSharedParameters, context, tied.blame(), 0.99, OtherTies{tied.text(names)}),
            1);
  }

  void ask(const StepContext& context) {
    asked_ = context.roster.revision();
    const Ranks before = std::exchange(in_two_.ranks, {});
    in_two_ = blame_where(context, [&](const WorkerRecord& w) {
      return !context.roster.fact_of(w.rank, "in_two_optimizers").empty();
    });
    if (in_two_.ranks != before) asked_at_ = context.record.step;
    if (in_two_.ranks.empty()) return;
    const std::uint32_t first = in_two_.ranks.front();
    seen_ = {context.roster.fact_of(first, "in_two_optimizers"),
             context.roster.fact_of(first, "two_optimizers")};
  }

  std::uint64_t asked_ = ~std::uint64_t{0};  // the roster's revision
  std::uint64_t asked_at_ = 0;               // step
  bool found_on_some_ = false;               // some ranks, and not the others
  Blame in_two_;
  InTwoOptimizers seen_;
};

}  // namespace

constexpr FingerprintKind kSharedParametersKinds[] = {FingerprintKind::kTiedParameters};
constexpr Check kSharedParametersExplains[] = {
    &kEnvironmentMismatch,     &kOptimizerMismatch, &kParameterDesync, &kStateDesync,
    &kReducedGradientMismatch, &kReductionScale,    &kRankOutlier,     &kLossEvent};
constinit const CheckInfo kSharedParameters{
    .id = "shared-parameters",
    .severity = Severity::kCritical,
    .compares = "which parameters have several names, or several optimizers",
    .fires =
        "at the first step, and every 25 steps; information if two optimizers update one on every "
        "rank",
    .consequence =
        "Ranks that tie or update other parameters train different models: where one is tied, its "
        "gradient is the sum of two, and one made after the model was wrapped is not reduced.",
    .cannot_see =
        "Parameters that share memory without being one Parameter object; steps of optimizers "
        "that are not torch's.",
    .mistake =
        "ddp = DistributedDataParallel(model)  # refuses ranks that tie differently before it\n"
        "if rank == 0:\n    model.head.weight = nn.Parameter(weights)  # no longer the embedding's",
    .fix = "Tie the weights on every rank, after loading and before the model is wrapped.",
    .resembles = "NVIDIA/Megatron-LM#656",
    .precedence = 35,
    .explains = kSharedParametersExplains,
    .fingerprints = kSharedParametersKinds,
    .sets_apart = true,
    .info_explains = false,
    .make = make<SharedParameters>,
};

}  // namespace presum::checks
