// SPDX-License-Identifier: Apache-2.0
#include "diagnose/rules.h"

#include <algorithm>
#include <array>

namespace presum::diagnose {
namespace {

using enum Check;

using Update = void (*)(Rules&, const StepContext&, SignalLog&);
using Farewell = void (*)(Rules&, std::uint32_t rank, const FinalState&, const Roster&, SignalLog&);

template <auto Rule>
void update(Rules& rules, const StepContext& context, SignalLog& log) {
  (rules.*Rule).update(context, log);
}

template <auto Rule>
void farewell(Rules& rules, std::uint32_t rank, const FinalState& last, const Roster& roster,
              SignalLog& log) {
  (rules.*Rule).farewell(rank, last, roster, log);
}

struct Rule {
  std::array<Check, 5> checks;  // the first `count`
  std::size_t count;
  Update update;
  Farewell farewell = nullptr;  // what it is told when a worker leaves
};

template <class... Checks>
constexpr Rule rule(Update update, Farewell farewell, Checks... checks) {
  return {{checks...}, sizeof...(checks), update, farewell};
}

// A rule is one line here, and a row of checks.cc for each of its checks.
constexpr Rule kRules[] = {
    rule(update<&Rules::rank_ended>, farewell<&Rules::rank_ended>, kRankEnded),
    rule(update<&Rules::presence>, nullptr, kMissingWorker),
    rule(update<&Rules::nonfinite_gradient>, nullptr, kNonfiniteGradient),
    rule(update<&Rules::nonfinite_loss>, nullptr, kNonfiniteLoss),
    rule(update<&Rules::reduction>, nullptr, kNoReduction, kReductionScale,
         kReducedGradientMismatch),
    rule(update<&Rules::audits>, nullptr, kReductionError, kReductionDtype,
         kReductionNondeterministic),
    rule(update<&Rules::clip_norm>, nullptr, kClipNorm),
    rule(update<&Rules::lost_gradients>, nullptr, kLostGradients),
    rule(update<&Rules::recomputed>, nullptr, kRecomputeMismatch),
    rule(update<&Rules::settings>, nullptr, kOptimizerMismatch, kEnvironmentMismatch,
         kModeMismatch),
    rule(update<&Rules::manifest>, nullptr, kManifestMismatch),
    rule(update<&Rules::duplicates>, nullptr, kDuplicateData),
    rule(update<&Rules::data_order>, nullptr, kEpochNotSet),
    rule(update<&Rules::sampler>, nullptr, kSamplerMismatch),
    rule(update<&Rules::overlap>, nullptr, kOverlappingData),
    rule(update<&Rules::data_coverage>, farewell<&Rules::data_coverage>, kDataCoverage),
    rule(update<&Rules::resume>, farewell<&Rules::resume>, kResumeMismatch),
    rule(update<&Rules::states>, farewell<&Rules::states>, kStateDesync, kBufferDesync,
         kParameterDesync),
    rule(update<&Rules::zero>, nullptr, kZeroGradient),
    rule(update<&Rules::frozen>, nullptr, kFrozenGradient),
    rule(update<&Rules::progress>, nullptr, kNoProgress),
    rule(update<&Rules::statistics>, nullptr, kTokenImbalance, kWorkerOutlier, kPairTooSimilar,
         kTooConsistent, kLossEvent),
    rule(update<&Rules::rng>, nullptr, kSharedRng),
    rule(update<&Rules::slow_workers>, nullptr, kSlowWorker, kSlowNode, kDataStarved,
         kUnevenBatches),
    rule(update<&Rules::stalls>, nullptr, kStall),
    rule(update<&Rules::pace>, nullptr, kPeriodicStall, kGradualSlowing),
};

constexpr bool each_check_has_one_rule() {
  std::array<int, kChecks> rules{};
  for (const Rule& r : kRules) {
    for (std::size_t i = 0; i < r.count; ++i) ++rules[static_cast<std::size_t>(r.checks[i])];
  }
  return std::ranges::all_of(rules, [](int count) { return count == 1; });
}
static_assert(each_check_has_one_rule());

}  // namespace

void Rules::update(const StepContext& context, SignalLog& log) {
  for (const Rule& rule : kRules) rule.update(*this, context, log);
}

void Rules::farewell(std::uint32_t rank, const FinalState& last, const Roster& roster,
                     SignalLog& log) {
  for (const Rule& rule : kRules) {
    if (rule.farewell != nullptr) rule.farewell(*this, rank, last, roster, log);
  }
}

}  // namespace presum::diagnose
