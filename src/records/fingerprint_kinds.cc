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
    {kRngTorch, "rng_torch", kNoise, false, "shared-rng"},
    {kRngDevice, "rng_device", kNoise, false, "shared-rng"},
    {kRngNumpy, "rng_numpy", kNoise, false, "shared-rng"},
    {kRngPython, "rng_python", kNoise, false, "shared-rng"},
    {kForwardDraws, "forward_draws", kNoise, false, "shared-rng"},
    {kSamplerClass, "sampler_class", kMatch, false, "sampler-mismatch"},
    {kSamplerSeed, "sampler_seed", kMatch, false, "sampler-mismatch"},
    {kSamplerEpoch, "sampler_epoch", kMatch, false, "sampler-mismatch"},
    {kSamplerRank, "sampler_rank", kDiffer, false, "sampler-mismatch"},
    {kSamplerReplicas, "sampler_replicas", kMatch, false, "sampler-mismatch"},
    {kSamplerLength, "sampler_length", kMatch, false, "sampler-mismatch"},
    {kSamplerShuffle, "sampler_shuffle", kMatch, false, "sampler-mismatch"},
    {kSamplerDropLast, "sampler_drop_last", kMatch, false, "sampler-mismatch"},
    {kSamplerSetsEpoch, "sampler_sets_epoch", kNoise, false, "epoch-not-set"},
    {kDataClass, "data_class", kMatch, false, "dataset-mismatch"},
    {kDataLength, "data_length", kMatch, false, "dataset-mismatch"},
    {kDataAttributes, "data_attributes", kMatch, false, "dataset-mismatch"},
    {kDataPass, "data_pass", kNoise, false, ""},
    {kDataBatch, "data_batch", kNoise, false, ""},
    {kDataSubset, "data_subset", kMatch, false, "dataset-mismatch"},
    {kDataContents, "data_contents", kMatch, false, "dataset-mismatch"},
    {kDataEnded, "data_ended", kNoise, false, ""},
    {kMode, "mode", kMatch, false, "mode-mismatch"},
    {kModes, "modes", kMatch, false, "mode-mismatch"},
    {kDropout, "dropout", kMatch, true, "mode-mismatch"},
    {kDropouts, "dropouts", kMatch, false, "mode-mismatch"},
    {kNormBatches, "norm_batches", kNoise, false, "mode-mismatch"},
    {kOptimizerClass, "optimizer_class", kMatch, false, "optimizer-mismatch"},
    {kOptimizerSettings, "optimizer_settings", kMatch, false, "optimizer-mismatch"},
    {kLearningRate, "learning_rate", kMatch, true, "optimizer-mismatch"},
    {kWeightDecay, "weight_decay", kMatch, true, "optimizer-mismatch"},
    {kDtype, "dtype", kMatch, false, "environment-mismatch"},
    {kDeterminism, "determinism", kMatch, false, "environment-mismatch"},
    {kWrapperForward, "wrapper_forward", kNoise, false, "no-reduction"},
    {kGradientWeight, "gradient_weight", kNoise, true, ""},
    {kZeroShare, "zero_share", kNoise, true, "zero-gradient"},
    {kClipNorm, "clip_norm", kNoise, true, "clip-norm"},
    {kClippedNorm, "clipped_norm", kNoise, true, "clip-norm"},
    {kGradNormTold, "grad_norm_told", kNoise, true, "clip-norm"},
    {kGradNormThen, "grad_norm_then", kNoise, true, "clip-norm"},
    {kPassesCleared, "passes_cleared", kNoise, false, "lost-gradients"},
    {kForwardsDetached, "forwards_detached", kNoise, false, "lost-gradients"},
    {kBatch, "batch", kDiffer, false, "duplicate-data"},
    {kUnreadInputs, "unread_inputs", kNoise, false, ""},
    {kLabels, "labels", kNoise, false, ""},
    {kGradChanged, "grad_changed", kNoise, true, "lost-gradients"},
    {kUnchangedShare, "unchanged_share", kNoise, true, "no-progress"},
    {kRecomputed, "recomputed", kNoise, false, "recompute-mismatch"},
    {kClipLimit, "clip_limit", kNoise, true, "clip-norm"},
    {kComparedDifferent, "compared_different", kNoise, false, "state-desync"},
    {kLeftOver, "left_over", kNoise, false, "lost-gradients"},
    {kClipNormType, "clip_norm_type", kNoise, true, "clip-norm"},
    {kForwardPrecision, "forward_precision", kMatch, false, "environment-mismatch"},
    {kStepsOfOthers, "steps_of_others", kNoise, false, "no-progress"},
    {kStepsInVain, "steps_in_vain", kNoise, false, "no-progress"},
    {kBelowFp16, "below_fp16", kNoise, true, "zero-gradient"},
};

}  // namespace

std::span<const FingerprintInfo> fingerprint_kinds() { return kKinds; }

const FingerprintInfo* find_fingerprint_kind(std::uint32_t kind) {
  const auto* const found =
      std::ranges::find(kKinds, static_cast<FingerprintKind>(kind), &FingerprintInfo::kind);
  return found == std::end(kKinds) ? nullptr : found;
}

}  // namespace presum
