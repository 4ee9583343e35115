// SPDX-License-Identifier: Apache-2.0
// **optimizer-mismatch.** Fingerprints that a rank did not send are not compared. If only the
// learning rate differs, in the same way as the lengths of the ranks' data, the finding says so:
// the schedule has the length of the loader.

#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "checks/engine/agree.h"
#include "checks/engine/rules.h"

namespace presum::checks {
namespace {

constexpr const char* kUneven =
    "Give every rank the same number of batches: `drop_last=True`, a sampler that pads, or a "
    "schedule with a fixed number of steps. If the data stays uneven, train inside `model.join()`.";

constexpr const char* kScale = "loss scale";
constexpr const char* kOneScale =
    "Let all ranks find the same non-finite gradients: sum `found_inf` over the ranks before "
    "`scaler.update()` (torch.distributed.fsdp.sharded_grad_scaler does), or unscale the reduced "
    "gradients. Until then the rank with the larger scale has the larger weight in the mean.";

struct OtherOptimizer : Differing {
  std::string data_lengths;  // by rank; set if only the learning rate differs, and in the same way
  static constexpr auto kFields = std::tuple_cat(
      Differing::kFields, std::tuple{field("data_lengths", &OtherOptimizer::data_lengths)});
};

std::string sentence(const OtherOptimizer& seen, const Who& who) {
  if (!seen.data_lengths.empty()) {
    return who.everyone ? who.the_ranks() +
                              " differ in their learning rate, as in the number of their batches"
                        : who.words() + " had another learning rate, and another number of batches";
  }
  if (seen.differ == std::vector<std::string>{kScale}) {
    return who.everyone ? who.the_ranks() + " differ in their loss scale"
                        : who.words() + " had another loss scale than the others";
  }
  return (who.everyone ? who.the_ranks() + " differ in their optimizer: "
                       : who.words() + " had another optimizer: ") +
         listed(seen.differ);
}

// The lengths of the ranks' data, if only the learning rate differs, and in the same way: the
// schedule has the length of the loader. Empty in all other cases.
std::string uneven_data(const StepContext& context, const Differing& found) {
  static constexpr const char* kRates[] = {"learning rate", "settings"};
  const bool rate = std::ranges::all_of(found.differ, [](const std::string& name) {
    return std::ranges::find(kRates, name) != std::end(kRates);
  });
  const auto ranks = [](const Split& held) {
    std::vector<Ranks> out;
    for (const Split::Group& group : held.groups) out.push_back(group.ranks);
    return out;
  };
  const auto rates = ranks(split(context.record, FingerprintKind::kLearningRate));
  for (const FingerprintKind length :
       {FingerprintKind::kSamplerLength, FingerprintKind::kDataLength}) {
    const Split lengths = split(context.record, length);
    if (rate && rates.size() > 1 && ranks(lengths) == rates) return lengths.text();
  }
  return "";
}

class OptimizerMismatch final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    // A separate scale matters only if gradients of several ranks are summed.
    const auto reduced = [](const WorkerRecord& w) { return w.number.is_reduced(); };
    const auto all = [](FingerprintKind) { return true; };
    const auto no_scale = [](FingerprintKind kind) { return kind != FingerprintKind::kLossScale; };
    const bool sums = std::ranges::all_of(context.record.workers, reduced);
    Mismatch found = sums ? compare_kinds(context, &kOptimizerMismatch, all)
                          : compare_kinds(context, &kOptimizerMismatch, no_scale);
    if (!found.looked) return log.cannot(&kOptimizerMismatch, kNotSent);
    log.checked(&kOptimizerMismatch);
    std::vector<std::string>& names = found.seen.differ;
    if (names.empty()) return;
    if (std::ranges::find(names, "settings") != names.end()) name_settings(context, found.seen);
    OtherOptimizer seen{std::move(found.seen), ""};
    seen.data_lengths = uneven_data(context, seen);
    const bool uneven = !seen.data_lengths.empty();
    const bool scales = seen.differ == std::vector<std::string>{kScale};
    Signal signal =
        sighting(&kOptimizerMismatch, context, std::move(found.blame), 0.95, std::move(seen));
    if (uneven) signal.remedy = kUneven;
    if (scales) signal.remedy = kOneScale;
    // Rates that follow each rank's own loss diverge one after the other.
    log.add(std::move(signal), kAllSteps);
  }

 private:
  // Names the optimizer settings that ranks report differently.
  void name_settings(const StepContext& context, Differing& found) {
    constexpr std::string_view kPrefix = "optimizer.";
    if (named_revision_ != context.roster.revision()) {
      named_revision_ = context.roster.revision();
      named_ = {};
      for (const auto& [key, fact] : count_facts(context.roster)) {
        if (fact.differs && key.starts_with(kPrefix))
          add_fact(context.roster, std::string(key), named_);
      }
    }
    const auto& [names, values] = named_.seen;
    if (names.empty()) return;
    std::erase(found.differ, "settings");
    for (const std::string& name : names) found.differ.push_back(name.substr(kPrefix.size()));
    for (const auto& [name, value] : values) {
      found.values.emplace_back(name.substr(kPrefix.size()), value);
    }
  }

  std::uint64_t named_revision_ = 0;  // the revision of the facts in `named_`
  Mismatch named_;                    // optimizer settings that differ
};

}  // namespace

constexpr FingerprintKind kOptimizerMismatchKinds[] = {
    FingerprintKind::kOptimizerClass, FingerprintKind::kOptimizerSettings,
    FingerprintKind::kLearningRate, FingerprintKind::kWeightDecay, FingerprintKind::kLossScale};
constexpr Check kOptimizerMismatchExplains[] = {&kParameterDesync, &kBufferDesync,   &kStateDesync,
                                                &kRankOutlier,     &kPairTooSimilar, &kLossEvent,
                                                &kReductionScale};
constinit const CheckInfo kOptimizerMismatch{
    .id = "optimizer-mismatch",
    .severity = Severity::kCritical,
    .compares = "the optimizer class, hyperparameters and loss scale of all ranks",
    .fires = "immediately; with more than 64 parameter groups, 64 per step in turn",
    .consequence =
        "Ranks take different steps from the same gradient, so their parameters drift apart.",
    .cannot_see = "Optimizer settings that are not in its parameter groups.",
    .mistake =
        "scheduler = OneCycleLR(optimizer, 1e-3, total_steps=len(loader))  # lengths differ by "
        "rank",
    .fix =
        "Build the optimizer and its schedule from the same configuration on every rank, and load "
        "both from the same checkpoint.",
    .precedence = 60,
    .explains = kOptimizerMismatchExplains,
    .fingerprints = kOptimizerMismatchKinds,
    .compares_ranks = true,
    .sets_apart = true,
    .make = make<OptimizerMismatch>,
};

}  // namespace presum::checks
