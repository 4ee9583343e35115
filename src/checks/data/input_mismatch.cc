// SPDX-License-Identifier: Apache-2.0
// **input-mismatch.** Looks at the model's training forward passes in its first eight steps: dtype
// and number of dimensions of each tensor, sizes after the first dimension that are the same each
// time (padded lengths are not), and mean and spread of floating-point samples. A rank's mean or
// spread differs if it is farther from the median rank than half of the spread and seven standard
// errors. Ranks that train on several tasks or sources differ for good reason, so this is
// information; it is the cause if a statistic shows the same ranks.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "checks/engine/agree.h"
#include "checks/engine/mean.h"
#include "checks/engine/rules.h"

namespace presum::checks {
namespace {

constexpr std::uint64_t kSteps = 4;      // per rank, for an estimate of the error of its mean
constexpr double kErrors = 7;            // steps of one rank may all come from one class
constexpr double kShare = 0.5;           // of the spread: smaller differences are sampling noise
constexpr std::uint64_t kUntil = 8;      // steps; ranks send these values only until then
constexpr std::uint64_t kPatience = 16;  // records since the first; after them kFewest is enough
constexpr std::uint64_t kFewest = 2;
constexpr const char* kFewSteps = "Sizes, mean and spread are compared after eight steps.";
constexpr const char* kNotAll =
    "Not all ranks sent the mean and spread of their inputs for at least four steps.";
constexpr const char* kNotTold =
    "No rank has sent the form of its inputs: no tensor among them can be read, or no step was "
    "recorded.";

struct OtherInputs : Differing {};

std::string sentence(const OtherInputs& seen, const Who& who) {
  return (who.everyone ? who.the_ranks() + " have different inputs: "
                       : who.words() + " had different inputs: ") +
         listed(seen.differ);
}

class InputMismatch final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    follow(context.record);
    Mismatch found = facts_.see(context.roster);
    compare(context.record, &Numbers::mean, "mean", found);
    compare(context.record, &Numbers::spread, "spread", found);
    if (!found.looked && context.roster.sees_no_program()) {
      return log.cannot(&kInputMismatch, kSeesNoProgram);
    }
    if (!found.looked) return log.waits(&kInputMismatch, kNotTold);
    log.checked(&kInputMismatch);
    log.needs_records(&kInputMismatch, kUntil, kFewSteps);
    if (some_not_told_) log.needs(&kInputMismatch, 1, kNotAll);
    if (found.seen.differ.empty()) return;
    log.add(sighting(&kInputMismatch, context, found.blame, 0.8, OtherInputs{found.seen}));
  }

 private:
  struct Numbers {
    Mean mean;
    Mean spread;
  };

  void follow(const StepRecord& record) {
    seen_ += told_ ? 1 : 0;
    for (const WorkerRecord& w : record.workers) {
      const double spread = real_of(w, FingerprintKind::kInputSpread);
      if (!std::isfinite(spread)) continue;
      told_ = true;
      numbers_[w.rank].mean.add(real_of(w, FingerprintKind::kInputMean));
      numbers_[w.rank].spread.add(spread);
    }
  }

  void compare(const StepRecord& record, Mean Numbers::*which, const char* name, Mismatch& found) {
    // A packet may be lost, and ranks send nothing more after these steps.
    const std::uint64_t least = seen_ >= kPatience ? kFewest : kSteps;
    std::vector<RankNumber> held;
    std::vector<double> spreads;
    double error = 0;
    for (const WorkerRecord& w : record.workers) {
      const Numbers* known = numbers_.find(w.rank);
      if (known == nullptr || (known->*which).count() < least) continue;
      held.push_back({(known->*which).value(), w.rank});
      spreads.push_back(known->spread.value());
      error = std::fmax(error, (known->*which).error());
    }
    some_not_told_ = held.size() < record.workers.size() && seen_ > 0;
    if (held.size() < 2) return;
    std::ranges::sort(spreads);
    const double spread = spreads[(spreads.size() - 1) / 2];
    const Blame odd = apart(held, std::fmax(kErrors * error, kShare * spread));
    found.looked = true;
    if (odd.ranks.empty()) return;
    found.blame.add(odd);
    found.seen.differ.emplace_back(name);
    found.seen.values.emplace_back(name, text_of(held));
  }

  static std::string text_of(const std::vector<RankNumber>& held) {
    std::string out;
    for (const RankNumber& h : held) {
      out += fmt::format("{}{}: {:.4g}", out.empty() ? "" : "; ", h.rank, h.value);
    }
    return out;
  }

  PrefixedFacts facts_{"input."};
  PerWorker<Numbers> numbers_;
  bool told_ = false;           // some numbers arrived
  std::uint64_t seen_ = 0;      // records since then
  bool some_not_told_ = false;  // on some ranks
};

}  // namespace

constexpr FingerprintKind kInputMismatchKinds[] = {FingerprintKind::kInputMean,
                                                   FingerprintKind::kInputSpread};
constexpr Check kInputMismatchExplains[] = {&kRankOutlier, &kPairTooSimilar, &kTooConsistent,
                                            &kLossEvent};
constinit const CheckInfo kInputMismatch{
    .id = "input-mismatch",
    .severity = Severity::kInfo,
    .compares = "dtypes, sizes, mean and spread of the model's inputs",
    .fires =
        "at the first step; sizes, mean and spread after 8 forward passes; a warning where a "
        "statistic shows the same ranks",
    .consequence =
        "The rank trains the model on inputs of a form that no other rank, and no evaluation, "
        "uses.",
    .cannot_see = "Inputs that are not tensors; sizes that change from batch to batch.",
    .mistake = "transform = Compose([ToTensor()])  # without Normalize on one rank",
    .fix = "Preprocess samples identically on all ranks.",
    .precedence = 306,
    .explains = kInputMismatchExplains,
    .fingerprints = kInputMismatchKinds,
    .compares_ranks = true,
    .sets_apart = true,
    .names_cause = true,
    .explains_single_ranks = false,
    .make = make<InputMismatch>,
};

}  // namespace presum::checks
