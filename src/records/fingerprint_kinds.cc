// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>

#include "presum/fingerprint.h"

namespace presum {
namespace {

constexpr auto kMatch = Expectation::kMustMatch;
constexpr auto kDiffer = Expectation::kMustDiffer;
constexpr auto kNoise = Expectation::kNoise;

using enum FingerprintKind;

constexpr FingerprintInfo kKinds[] = {
    {kRngTorch, "rng_torch", kNoise, false},
    {kRngDevice, "rng_device", kNoise, false},
    {kRngNumpy, "rng_numpy", kNoise, false},
    {kRngPython, "rng_python", kNoise, false},
    {kForwardDraws, "forward_draws", kNoise, false},
    {kSamplerClass, "sampler_class", kMatch, false},
    {kSamplerSeed, "sampler_seed", kMatch, false},
    {kSamplerEpoch, "sampler_epoch", kMatch, false},
    {kSamplerRank, "sampler_rank", kDiffer, false},
    {kSamplerReplicas, "sampler_replicas", kMatch, false},
    {kSamplerLength, "sampler_length", kMatch, false},
    {kSamplerShuffle, "sampler_shuffle", kMatch, false},
    {kSamplerDropLast, "sampler_drop_last", kMatch, false},
    {kSamplerSetsEpoch, "sampler_sets_epoch", kNoise, false},
    {kDataClass, "data_class", kMatch, false},
    {kDataLength, "data_length", kMatch, false},
    {kDataAttributes, "data_attributes", kMatch, false},
    {kDataPass, "data_pass", kNoise, false},
    {kDataBatch, "data_batch", kNoise, false},
    {kDataSubset, "data_subset", kMatch, false},
    {kDataContents, "data_contents", kMatch, false},
    {kDataEnded, "data_ended", kNoise, false},
    {kMode, "mode", kMatch, false},
    {kModes, "modes", kMatch, false},
    {kDropout, "dropout", kMatch, true},
    {kDropouts, "dropouts", kMatch, false},
    {kNormBatches, "norm_batches", kNoise, false},
    {kTiedParameters, "tied_parameters", kMatch, false},
    {kOptimizerClass, "optimizer_class", kMatch, false},
    {kOptimizerSettings, "optimizer_settings", kMatch, false},
    {kLearningRate, "learning_rate", kMatch, true},
    {kWeightDecay, "weight_decay", kMatch, true},
    {kDtype, "dtype", kMatch, false},
    {kDeterminism, "determinism", kMatch, false},
    {kWrapperForward, "wrapper_forward", kNoise, false},
    {kGradientWeight, "gradient_weight", kNoise, true},
    {kZeroShare, "zero_share", kNoise, true},
    {kClipNorm, "clip_norm", kNoise, true},
    {kClippedNorm, "clipped_norm", kNoise, true},
    {kGradNormTold, "grad_norm_told", kNoise, true},
    {kGradNormThen, "grad_norm_then", kNoise, true},
    {kPassesCleared, "passes_cleared", kNoise, false},
    {kForwardsDetached, "forwards_detached", kNoise, false},
    {kBatch, "batch", kDiffer, false},
    {kUnreadInputs, "unread_inputs", kNoise, false},
    {kLabels, "labels", kNoise, false},
    {kGradChanged, "grad_changed", kNoise, true},
    {kUnchangedShare, "unchanged_share", kNoise, true},
    {kRecomputed, "recomputed", kNoise, false},
    {kClipLimit, "clip_limit", kNoise, true},
    {kComparedDifferent, "compared_different", kNoise, false},
    {kLeftOver, "left_over", kNoise, false},
    {kClipNormType, "clip_norm_type", kNoise, true},
    {kForwardPrecision, "forward_precision", kMatch, false},
    {kStepsOfOthers, "steps_of_others", kNoise, false},
    {kStepsInVain, "steps_in_vain", kNoise, false},
    {kBelowFp16, "below_fp16", kNoise, true},
    {kLossScale, "loss_scale", kMatch, true},
    {kClippedShare, "clipped_share", kNoise, true},
    {kInputMean, "input_mean", kNoise, true},
    {kInputSpread, "input_spread", kNoise, true},
    {kAsStepped, "as_stepped", kNoise, false},
    {kDataShare, "data_share", kNoise, false},
    {kRowsCut, "rows_cut", kNoise, false},
    {kRowsPassedOver, "rows_passed_over", kNoise, false},
    {kBatchAgain, "batch_again", kNoise, false},
    {kGradFactor, "grad_factor", kNoise, true},
    {kBackwardOrder, "backward_order", kNoise, false},
    {kRowsChanged, "rows_changed", kNoise, false},
};

}  // namespace

std::span<const FingerprintInfo> fingerprint_kinds() { return kKinds; }

const FingerprintInfo* find_fingerprint_kind(std::uint32_t kind) {
  const auto* const found =
      std::ranges::find(kKinds, static_cast<FingerprintKind>(kind), &FingerprintInfo::kind);
  return found == std::end(kKinds) ? nullptr : found;
}

}  // namespace presum
