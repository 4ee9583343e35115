// SPDX-License-Identifier: Apache-2.0
// The rules as data: what a check is called, how bad it is, what to do, and what else it explains.
// checks.cc holds the table; docs/findings.md says how to add a row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "diagnose/diagnoser.h"

namespace presum::diagnose {

// In the order in which a cause is named: of the checks of one finding the first is its head.
enum class Check : std::uint8_t {
  kRankEnded,
  kNonfiniteGradient,
  kNonfiniteLoss,
  kNoReduction,
  kMissingWorker,
  kOptimizerMismatch,
  kEnvironmentMismatch,
  kModeMismatch,
  kManifestMismatch,
  kDuplicateData,
  kEpochNotSet,
  kSamplerMismatch,
  kOverlappingData,
  kDataCoverage,
  kReductionScale,
  kReducedGradientMismatch,
  kReductionError,
  kReductionDtype,
  kReductionNondeterministic,
  kLostGradients,
  kClipNorm,
  kRecomputeMismatch,
  kResumeMismatch,
  kStateDesync,
  kBufferDesync,
  kParameterDesync,
  kZeroGradient,
  kFrozenGradient,
  kNoProgress,
  kTokenImbalance,
  kSharedRng,
  kWorkerOutlier,
  kPairTooSimilar,
  kTooConsistent,
  kLossEvent,
  kStall,
  kSlowNode,
  kUnevenBatches,
  kDataStarved,
  kSlowWorker,
  kPeriodicStall,
  kGradualSlowing,
};
inline constexpr std::size_t kChecks = static_cast<std::size_t>(Check::kGradualSlowing) + 1;

const CheckInfo& info(Check check);
// Whether `effect` is to be expected where `cause` is found. A check explains itself.
bool explains(Check cause, Check effect);
// Whether the ranks that the check names come to have other gradients than the rest.
bool sets_apart(Check check);
// Whether the check rests on alarms of the detectors alone.
bool is_statistic(Check check);
// Likewise, and of numbers of the training rather than of times.
bool is_numeric(Check check);

}  // namespace presum::diagnose
