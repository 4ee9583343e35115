// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "presum/fingerprint.h"

namespace presum {
namespace {

constexpr auto kMatch = Expectation::kMustMatch;
constexpr auto kDiffer = Expectation::kMustDiffer;
constexpr auto kNoise = Expectation::kNoise;

constexpr std::array kKinds = {
    FingerprintInfo{FingerprintKind::kRngTorch, "rng_torch", kNoise, false, "shared-rng"},
    FingerprintInfo{FingerprintKind::kRngDevice, "rng_device", kNoise, false, "shared-rng"},
    FingerprintInfo{FingerprintKind::kRngNumpy, "rng_numpy", kNoise, false, "shared-rng"},
    FingerprintInfo{FingerprintKind::kRngPython, "rng_python", kNoise, false, "shared-rng"},
    FingerprintInfo{FingerprintKind::kForwardDraws, "forward_draws", kNoise, false, "shared-rng"},
    FingerprintInfo{FingerprintKind::kSamplerClass, "sampler_class", kMatch, false,
                    "sampler-mismatch"},
    FingerprintInfo{FingerprintKind::kSamplerSeed, "sampler_seed", kMatch, false,
                    "sampler-mismatch"},
    FingerprintInfo{FingerprintKind::kSamplerEpoch, "sampler_epoch", kMatch, false,
                    "sampler-mismatch"},
    FingerprintInfo{FingerprintKind::kSamplerRank, "sampler_rank", kDiffer, false,
                    "sampler-mismatch"},
    FingerprintInfo{FingerprintKind::kSamplerReplicas, "sampler_replicas", kMatch, false,
                    "sampler-mismatch"},
    FingerprintInfo{FingerprintKind::kSamplerLength, "sampler_length", kMatch, false,
                    "sampler-mismatch"},
    FingerprintInfo{FingerprintKind::kSamplerShuffle, "sampler_shuffle", kMatch, false,
                    "sampler-mismatch"},
    FingerprintInfo{FingerprintKind::kSamplerDropLast, "sampler_drop_last", kMatch, false,
                    "sampler-mismatch"},
    FingerprintInfo{FingerprintKind::kSamplerSetsEpoch, "sampler_sets_epoch", kNoise, false,
                    "epoch-not-set"},
    FingerprintInfo{FingerprintKind::kDataClass, "data_class", kMatch, false, "manifest-mismatch"},
    FingerprintInfo{FingerprintKind::kDataLength, "data_length", kMatch, false,
                    "manifest-mismatch"},
    FingerprintInfo{FingerprintKind::kDataAttributes, "data_attributes", kMatch, false,
                    "manifest-mismatch"},
    FingerprintInfo{FingerprintKind::kDataPass, "data_pass", kNoise, false, ""},
    FingerprintInfo{FingerprintKind::kDataBatch, "data_batch", kNoise, false, ""},
    FingerprintInfo{FingerprintKind::kDataSubset, "data_subset", kMatch, false,
                    "manifest-mismatch"},
    FingerprintInfo{FingerprintKind::kDataContents, "data_contents", kMatch, false,
                    "manifest-mismatch"},
    FingerprintInfo{FingerprintKind::kDataEnded, "data_ended", kNoise, false, ""},
    FingerprintInfo{FingerprintKind::kMode, "mode", kMatch, false, "mode-mismatch"},
    FingerprintInfo{FingerprintKind::kModes, "modes", kMatch, false, "mode-mismatch"},
    FingerprintInfo{FingerprintKind::kDropout, "dropout", kMatch, true, "mode-mismatch"},
    FingerprintInfo{FingerprintKind::kDropouts, "dropouts", kMatch, false, "mode-mismatch"},
    FingerprintInfo{FingerprintKind::kNormBatches, "norm_batches", kNoise, false, "mode-mismatch"},
    FingerprintInfo{FingerprintKind::kOptimizerClass, "optimizer_class", kMatch, false,
                    "optimizer-mismatch"},
    FingerprintInfo{FingerprintKind::kOptimizerSettings, "optimizer_settings", kMatch, false,
                    "optimizer-mismatch"},
    FingerprintInfo{FingerprintKind::kLearningRate, "learning_rate", kMatch, true,
                    "optimizer-mismatch"},
    FingerprintInfo{FingerprintKind::kWeightDecay, "weight_decay", kMatch, true,
                    "optimizer-mismatch"},
    FingerprintInfo{FingerprintKind::kDtype, "dtype", kMatch, false, "environment-mismatch"},
    FingerprintInfo{FingerprintKind::kDeterminism, "determinism", kMatch, false,
                    "environment-mismatch"},
    FingerprintInfo{FingerprintKind::kWrapperForward, "wrapper_forward", kNoise, false,
                    "no-reduction"},
    FingerprintInfo{FingerprintKind::kGradientWeight, "gradient_weight", kNoise, true, ""},
    FingerprintInfo{FingerprintKind::kZeroShare, "zero_share", kNoise, true, "zero-gradient"},
    FingerprintInfo{FingerprintKind::kClipNorm, "clip_norm", kNoise, true, "clip-norm"},
    FingerprintInfo{FingerprintKind::kClippedNorm, "clipped_norm", kNoise, true, "clip-norm"},
    FingerprintInfo{FingerprintKind::kGradNormTold, "grad_norm_told", kNoise, true, "clip-norm"},
    FingerprintInfo{FingerprintKind::kGradNormThen, "grad_norm_then", kNoise, true, "clip-norm"},
    FingerprintInfo{FingerprintKind::kPassesCleared, "passes_cleared", kNoise, false,
                    "lost-gradients"},
    FingerprintInfo{FingerprintKind::kForwardsDetached, "forwards_detached", kNoise, false,
                    "lost-gradients"},
    FingerprintInfo{FingerprintKind::kBatch, "batch", kDiffer, false, "duplicate-data"},
    FingerprintInfo{FingerprintKind::kUnreadInputs, "unread_inputs", kNoise, false, ""},
    FingerprintInfo{FingerprintKind::kLabels, "labels", kNoise, false, ""},
    FingerprintInfo{FingerprintKind::kGradChanged, "grad_changed", kNoise, true, "lost-gradients"},
    FingerprintInfo{FingerprintKind::kUnchangedShare, "unchanged_share", kNoise, true,
                    "no-progress"},
    FingerprintInfo{FingerprintKind::kRecomputed, "recomputed", kNoise, false,
                    "recompute-mismatch"},
    FingerprintInfo{FingerprintKind::kClipLimit, "clip_limit", kNoise, true, "clip-norm"},
    FingerprintInfo{FingerprintKind::kComparedDifferent, "compared_different", kNoise, false,
                    "state-desync"},
    FingerprintInfo{FingerprintKind::kLeftOver, "left_over", kNoise, false, "lost-gradients"},
    FingerprintInfo{FingerprintKind::kClipNormType, "clip_norm_type", kNoise, true, "clip-norm"},
    FingerprintInfo{FingerprintKind::kForwardPrecision, "forward_precision", kMatch, false,
                    "environment-mismatch"},
    FingerprintInfo{FingerprintKind::kStepsOfOthers, "steps_of_others", kNoise, false,
                    "no-progress"},
    FingerprintInfo{FingerprintKind::kStepsInVain, "steps_in_vain", kNoise, false, "no-progress"},
    FingerprintInfo{FingerprintKind::kBelowFp16, "below_fp16", kNoise, true, "zero-gradient"},
};

}  // namespace

std::span<const FingerprintInfo> fingerprint_kinds() { return kKinds; }

const FingerprintInfo* find_fingerprint_kind(std::uint32_t kind) {
  const auto* const found = std::find_if(
      kKinds.begin(), kKinds.end(),
      [&](const FingerprintInfo& k) { return static_cast<std::uint32_t>(k.kind) == kind; });
  return found == kKinds.end() ? nullptr : found;
}

}  // namespace presum
