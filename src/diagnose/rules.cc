// SPDX-License-Identifier: Apache-2.0
#include "diagnose/rules.h"

#include <algorithm>
#include <array>

#include "diagnose/resume.h"

namespace presum::diagnose {
namespace {

using enum Check;

struct Entry {
  std::unique_ptr<Rule> (*make)();
  bool compares;                // workers with each other: it is not asked about one alone
  std::array<Check, 5> checks;  // the first `count`
  std::size_t count;
};

template <class... Checks>
constexpr Entry any(std::unique_ptr<Rule> (*make)(), Checks... checks) {
  return {make, false, {checks...}, sizeof...(checks)};
}
template <class... Checks>
constexpr Entry several(std::unique_ptr<Rule> (*make)(), Checks... checks) {
  return {make, true, {checks...}, sizeof...(checks)};
}

// A rule is one line here, and a row of checks.cc for each of its checks. `several`: of workers.
constexpr Entry kEntries[] = {
    any(make_rank_ended, kRankEnded),
    any(make_presence, kMissingWorker),
    any(make_nonfinite_gradient, kNonfiniteGradient),
    any(make_nonfinite_loss, kNonfiniteLoss),
    any(make_reduction, kNoReduction, kReductionScale, kReducedGradientMismatch),
    several(make_audits, kReductionError, kReductionDtype, kReductionNondeterministic),
    any(make_clip_norm, kClipNorm),
    any(make_lost_gradients, kLostGradients),
    any(make_recomputed, kRecomputeMismatch),
    several(make_settings, kOptimizerMismatch, kEnvironmentMismatch, kModeMismatch),
    several(make_manifest, kManifestMismatch),
    several(make_duplicates, kDuplicateData),
    any(make_data_order, kEpochNotSet),
    several(make_sampler, kSamplerMismatch),
    any(make_overlap, kOverlappingData),
    any(make_data_coverage, kDataCoverage),
    any(make_resume, kResumeMismatch),
    any(make_states, kStateDesync, kBufferDesync, kParameterDesync),
    any(make_zero_gradient, kZeroGradient),
    any(make_frozen_gradient, kFrozenGradient),
    any(make_progress, kNoProgress),
    several(make_statistics, kTokenImbalance, kWorkerOutlier, kPairTooSimilar, kTooConsistent,
            kLossEvent),
    several(make_rng, kSharedRng),
    several(make_slow_workers, kSlowWorker, kSlowNode, kDataStarved, kUnevenBatches),
    any(make_stalls, kStall),
    several(make_pace, kPeriodicStall, kGradualSlowing),
};

constexpr bool each_check_has_one_rule() {
  std::array<int, kChecks> rules{};
  for (const Entry& e : kEntries) {
    for (std::size_t i = 0; i < e.count; ++i) ++rules[static_cast<std::size_t>(e.checks[i])];
  }
  return std::ranges::all_of(rules, [](int count) { return count == 1; });
}
static_assert(each_check_has_one_rule());

}  // namespace

Rules::Rules() {
  for (const Entry& entry : kEntries) {
    rules_.push_back(entry.make());
    if (entry.make == make_resume) resume_ = static_cast<Resume*>(rules_.back().get());
  }
}

void Rules::update(const StepContext& context, SignalLog& log) {
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    if (!kEntries[i].compares || !context.alone()) {
      rules_[i]->update(context, log);
    } else {
      for (std::size_t c = 0; c < kEntries[i].count; ++c)
        log.cannot(kEntries[i].checks[c], kOneWorker);
    }
  }
}

void Rules::farewell(std::uint32_t rank, const FinalState& last, const Roster& roster,
                     SignalLog& log) {
  for (const auto& rule : rules_) rule->farewell(rank, last, roster, log);
}

void Rules::beats() {
  for (const auto& rule : rules_) rule->beats();
}

}  // namespace presum::diagnose
