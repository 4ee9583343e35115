// SPDX-License-Identifier: Apache-2.0
#include "diagnose/checks.h"

#include <array>
#include <initializer_list>

namespace presum::diagnose {
namespace {

using enum Check;
using enum Severity;
using Checks = std::uint64_t;  // one bit a check

constexpr Checks bit(Check check) { return Checks{1} << static_cast<unsigned>(check); }
static_assert(kChecks <= 64);

constexpr Checks set_of(std::initializer_list<Check> checks) {
  Checks set = 0;
  for (const Check check : checks) set |= bit(check);
  return set;
}

constexpr Checks kStatistics =
    set_of({kWorkerOutlier, kPairTooSimilar, kTooConsistent, kLossEvent});
constexpr Checks kTimes =
    set_of({kSlowNode, kUnevenBatches, kDataStarved, kSlowWorker, kPeriodicStall, kGradualSlowing});
constexpr Checks kDesync = set_of({kParameterDesync, kBufferDesync, kStateDesync});
constexpr Checks kNonfinite = set_of({kNonfiniteGradient, kNonfiniteLoss});

struct Rule {
  Check check;
  CheckInfo info;
  Checks explains;
};

constexpr std::array<Rule, kChecks> kRules{{
    {kRankEnded,
     {"rank-ended", kCritical, "whether every rank is there until all have left the training",
      "Read the traceback and the system's log of the named rank: the others failed because it was "
      "gone. A process that was killed without a word has often run out of memory.",
      ""},
     set_of({kMissingWorker})},
    {kNonfiniteGradient,
     {"nonfinite-gradient", kCritical, "NaN and Inf in every worker's own gradient",
      "Look at the batch, the loss and the first layer with NaN on the named ranks at the first "
      "step, and skip or clip on all ranks alike. If all ranks turned at once, look at the "
      "reduction and the optimiser of the step before.",
      "deepspeedai/DeepSpeed#8061"},
     kNonfinite | kDesync | kStatistics |
         set_of({kReducedGradientMismatch, kReductionScale, kZeroGradient, kFrozenGradient})},
    {kNonfiniteLoss,
     {"nonfinite-loss", kCritical, "NaN and Inf in every worker's loss",
      "Look at the batch of the named ranks at the first step: a log or a division of zero, or a "
      "batch without any target token.",
      "WeatherGenerator#2724"},
     kNonfinite | kDesync | kStatistics | set_of({kZeroGradient})},
    {kNoReduction,
     {"no-reduction", kCritical, "whether gradients were averaged at all before the optimiser ran",
      "Call the wrapped model itself, not `.module`, and end `no_sync()` before the last backward "
      "pass of each optimiser step. Every worker trains a model of its own until then.",
      "pytorch/pytorch#104336"},
     kDesync | kStatistics |
         set_of({kMissingWorker, kReductionScale, kReducedGradientMismatch, kReductionError,
                 kClipNorm})},
    {kMissingWorker,
     {"missing-worker", kWarning, "packets of every worker at every step",
      "See whether the process of these ranks still runs and reaches the aggregator's port. Steps "
      "without them are judged by the others alone.",
      ""},
     kStatistics},
    {kOptimizerMismatch,
     {"optimizer-mismatch", kCritical, "optimiser class and hyper-parameters of all workers",
      "Build the optimiser and its schedule from the same configuration on every rank, and load "
      "the same checkpoint of them.",
      ""},
     kDesync | set_of({kWorkerOutlier, kPairTooSimilar, kLossEvent})},
    {kEnvironmentMismatch,
     {"environment-mismatch", kWarning,
      "versions, device, precision, determinism and environment variables of all workers",
      "Use the same image and launch environment on every host.", ""},
     kDesync | set_of({kReducedGradientMismatch, kWorkerOutlier})},
    {kModeMismatch,
     {"mode-mismatch", kWarning, "training or evaluation mode and dropout rates of all workers",
      "Call `model.train()` on every rank after validation, and build the model from one "
      "configuration.",
      ""},
     set_of({kBufferDesync, kWorkerOutlier, kPairTooSimilar, kLossEvent})},
    {kManifestMismatch,
     {"manifest-mismatch", kWarning, "length and contents of the data set of all workers",
      "Sort file lists before use and check that every host has the same files: a sampler splits "
      "positions, so lists that differ are read twice in part and not at all in part.",
      "pytorch/pytorch#70103"},
     kStatistics | set_of({kDuplicateData, kSamplerMismatch, kOverlappingData, kDataCoverage,
                           kTokenImbalance})},
    {kDuplicateData,
     {"duplicate-data", kCritical, "whether workers read the same samples at a step",
      "Shard the data by rank: a DistributedSampler (or split_dataset_by_node) with this job's "
      "rank and world size. Until then these workers do the work of one.",
      "huggingface/datasets#7868"},
     kStatistics |
         set_of({kEpochNotSet, kSamplerMismatch, kOverlappingData, kDataCoverage, kSharedRng})},
    {kEpochNotSet,
     {"epoch-not-set", kWarning, "whether the order of the samples changes from pass to pass",
      "Call `sampler.set_epoch(epoch)` before every pass over the data.", "pytorch/pytorch#31771"},
     set_of({kOverlappingData})},
    {kSamplerMismatch,
     {"sampler-mismatch", kWarning, "seed, epoch, rank, replicas and settings of all samplers",
      "Give every rank's sampler the same seed, epoch and settings, and its own rank.",
      "NVlabs/LongLive#71"},
     set_of({kDuplicateData, kEpochNotSet, kOverlappingData, kDataCoverage, kPairTooSimilar,
             kTooConsistent})},
    {kOverlappingData,
     {"overlapping-data", kWarning, "whether a sample is drawn twice in one pass over the data",
      "Give every rank's sampler the same seed and epoch, or split the data into disjoint shards, "
      "and feed each micro-batch once. Samples read twice take the place of others that are not "
      "read.",
      "karpathy/llm.c#792"},
     set_of({kDataCoverage, kWorkerOutlier, kPairTooSimilar, kTooConsistent})},
    {kDataCoverage,
     {"data-coverage", kWarning, "samples drawn in a whole pass against the data set's length",
      "Divide the data once: hand Accelerate or the Trainer a loader without a DistributedSampler, "
      "and a data set that is not split by rank already. A sampler of your own has to deal every "
      "sample.",
      "huggingface/accelerate#3520"},
     0},
    {kReductionScale,
     {"reduction-scale", kCritical,
      "norm of the reduced gradient against the mean that it ought to be",
      "Divide by the world size exactly once: in the reduction, or in the loss, not in both and "
      "not in neither.",
      "NeMo Automodel#3830"},
     kNonfinite | set_of({kReducedGradientMismatch, kReductionError, kLossEvent})},
    {kReducedGradientMismatch,
     {"reduced-gradient-mismatch", kCritical, "whether all workers hold the same reduced gradient",
      "Look at communication hooks, at parameters that only some ranks use, and at the "
      "communication library; exchange the hardware of the named ranks if it comes back.",
      "pmodels/mpich#6538"},
     kNonfinite | kDesync | set_of({kReductionError, kClipNorm, kWorkerOutlier, kLossEvent})},
    {kReductionError,
     {"reduction-error", kCritical,
      "each element of an audited sum against what rounding can explain",
      "Look at the communication library and its version, at communication hooks, and at who "
      "writes to the buffer while it is reduced; `presum audit` on saved gradients shows what was "
      "done to them.",
      "NVIDIA/nccl#1950"},
     kNonfinite | set_of({kLossEvent})},
    {kReductionDtype,
     {"reduction-dtype", kWarning, "the format in which an audited sum was accumulated",
      "Reduce in fp32 (`reduce_dtype`, no compressing hook, fp32 gradients), or let presum reduce "
      "with `reduction=\"exact\"`.",
      "pytorch/pytorch#190626"},
     0},
    {kReductionNondeterministic,
     {"reduction-nondeterministic", kWarning, "the same reduction of the same gradients, twice",
      "Fix the algorithm of the communication library, or let presum reduce with "
      "`reduction=\"exact\"`: its bits depend on no order.",
      "NVIDIA/nccl#1497"},
     0},
    {kLostGradients,
     {"lost-gradients", kWarning,
      "the micro-batches whose loss was computed with those that the optimiser's step is made of",
      "Call `zero_grad()` once for each optimiser step, after it; call `backward()` on the loss of "
      "every micro-batch; clip and unscale after the last of them.",
      "allenai/open-instruct#1498"},
     kStatistics | set_of({kClipNorm, kBufferDesync, kNoProgress, kTokenImbalance})},
    {kClipNorm,
     {"clip-norm", kWarning, "the norm that gradients are clipped by with the gradients' own",
      "Clip by the norm of the reduced gradient over all parameters, after the loss scaler's "
      "`unscale_`: the same number on every rank. Norms of parts add up as the root of the sum of "
      "their squares, each part once.",
      "meta-pytorch/torchtune#2240"},
     kDesync},
    {kRecomputeMismatch,
     {"recompute-mismatch", kCritical,
      "the gradient of a micro-batch with that of the same one computed once more",
      "Take the named ranks' hardware out of the job and test it: memory, processor or accelerator "
      "gave another result for the same numbers. Where it differs each time, look for kernels "
      "that are not deterministic first.",
      ""},
     kStatistics | kNonfinite | kDesync | set_of({kReducedGradientMismatch, kReductionScale})},
    {kResumeMismatch,
     {"resume-mismatch", kCritical,
      "weights, optimiser state, generators and data of a run that continues with what it left",
      "Load model, optimiser, generators and the place in the data from one checkpoint.",
      "NVIDIA/Megatron-LM#6858"},
     set_of({kOverlappingData, kDataCoverage})},
    {kStateDesync,
     {"state-desync", kCritical,
      "the optimiser's moments and counters, and what `monitor.watch` names",
      "Load one checkpoint of the optimiser on every rank, after it holds its parameters, and "
      "change "
      "its state on all ranks alike; broadcast what is watched from one rank.",
      ""},
     kDesync | kStatistics},
    {kBufferDesync,
     {"buffer-desync", kWarning, "buffers (such as BatchNorm statistics) of all workers",
      "Leave `broadcast_buffers` on, use synchronised BatchNorm, or declare the buffers with "
      "`local_buffers=`. Otherwise evaluation and checkpoints depend on the rank.",
      "mmdetection#2539"},
     set_of({kWorkerOutlier, kLossEvent})},
    {kParameterDesync,
     {"parameter-desync", kCritical, "parameters and optimiser-step counts of all workers",
      "Broadcast the parameters from one rank and take every decision to step or skip on all ranks "
      "alike. Initialise before the model is wrapped, and restart from a checkpoint of before.",
      "pytorch/pytorch#69031"},
     kNonfinite | kStatistics | set_of({kBufferDesync})},
    {kZeroGradient,
     {"zero-gradient", kCritical, "gradients that are exactly zero",
      "Look for a detached loss, a frozen model or a batch without any target on the named ranks.",
      ""},
     kStatistics | set_of({kFrozenGradient})},
    {kFrozenGradient,
     {"frozen-gradient", kCritical, "gradients that repeat the previous step's bit for bit",
      "Look for gradients that are not cleared and recomputed, a batch that is fed again, or a "
      "backward pass that the named ranks skip.",
      ""},
     kStatistics},
    {kNoProgress,
     {"no-progress", kCritical, "parameters with what they were before the optimizer's steps",
      "Look whether the optimizer holds the parameters of this model (build it after the model is "
      "copied, moved or sharded by `fully_shard`), in a group whose learning rate is above 0, "
      "whether gradients are still there at its step, and whether its updates are too small for "
      "their format: bf16 needs fp32 master weights.",
      ""},
     set_of({kFrozenGradient})},
    {kTokenImbalance,
     {"token-imbalance", kWarning, "target tokens of every worker's batch",
      "Weight each worker's loss by its target tokens: divide the summed loss by the global token "
      "count, or batch by length on all ranks alike.",
      "huggingface/transformers#34242"},
     set_of({kWorkerOutlier, kLossEvent})},
    {kSharedRng,
     {"shared-rng", kInfo, "random generators of all workers, where they are in use",
      "Add the rank to the seed after the model is built, and seed loader workers by rank too.",
      "huggingface/transformers#31412"},
     0},
    {kWorkerOutlier,
     {"worker-outlier", kWarning, "each worker's loss, norm and direction against the others'",
      "Compare data, code path and hardware of the named ranks with the others'. No harder check "
      "explains the difference.",
      ""},
     kStatistics},
    {kPairTooSimilar,
     {"pair-too-similar", kWarning, "cosines of all pairs of workers",
      "Look whether these workers read the same data; switch the data fingerprints on to see it "
      "directly.",
      ""},
     set_of({kTooConsistent, kWorkerOutlier})},
    {kTooConsistent,
     {"too-consistent", kWarning, "whether workers differ as much as their micro-batches do",
      "Look whether all workers read the same data: their average is no better than one of them.",
      "huggingface/datasets#5360"},
     set_of({kPairTooSimilar})},
    {kLossEvent,
     {"loss-event", kInfo, "single steps far outside everything seen",
      "Look at the named rank's batch of that step.", "WeatherGenerator#2724"},
     0},
    {kStall,
     {"stall", kCritical, "whether every rank goes on, by what each says of itself now and then",
      "Look at the lines that the evidence names. Ranks at different points of the program have "
      "taken different branches: a condition on the rank, another number of batches, an exception "
      "that one of them swallowed.",
      ""},
     set_of({kMissingWorker})},
    {kSlowNode,
     {"slow-node", kWarning, "own time of all ranks of a host against that of other hosts",
      "Look at the host: clocks and power limits of its accelerators, other jobs, its disk and "
      "network. Exchange it if nothing of the program's tells it apart.",
      ""},
     set_of({kSlowWorker, kDataStarved})},
    {kUnevenBatches,
     {"uneven-batches", kInfo, "whether own times follow the token counts of batches",
      "Deal batches by their tokens rather than by their number of samples: sort by length into "
      "global batches, or pack.",
      ""},
     set_of({kSlowWorker})},
    {kDataStarved,
     {"data-starved", kWarning, "time between the end of a step and its first forward pass",
      "Load ahead (`num_workers`, `prefetch_factor`, `pin_memory`), move work out of the loader, "
      "and see what the named rank reads from another disk than the others.",
      ""},
     0},
    {kSlowWorker,
     {"slow-worker", kWarning, "each rank's own time against the others'",
      "Look at what the named phase does on this rank alone: work behind `if rank == 0`, logging, "
      "another device or clock, a processor that is shared.",
      ""},
     0},
    {kPeriodicStall,
     {"periodic-stall", kInfo, "steps that take far longer than usual, at equal distances",
      "Nothing, where that is a checkpoint or an evaluation that is worth it. Else save "
      "asynchronously, evaluate less often, or call the garbage collector at times of your own on "
      "all ranks together.",
      ""},
     0},
    {kGradualSlowing,
     {"gradual-slowing", kInfo, "for how long the fastest rank computes, over hundreds of steps",
      "Look for what grows: a list of losses with their graphs, a cache, a log that is written "
      "anew, memory that is swapped, a device that becomes hot.",
      ""},
     0},
}};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kChecks; ++i) {
    if (static_cast<std::size_t>(kRules[i].check) != i) return false;
  }
  return true;
}
static_assert(in_order(), "a rule stands at the place of its check");

constexpr std::array<CheckInfo, kChecks> kCatalogue = [] {
  std::array<CheckInfo, kChecks> catalogue{};
  for (std::size_t i = 0; i < kChecks; ++i) catalogue[i] = kRules[i].info;
  return catalogue;
}();

}  // namespace

const CheckInfo& info(Check check) { return kCatalogue[static_cast<std::size_t>(check)]; }

bool explains(Check cause, Check effect) {
  return cause == effect || (kRules[static_cast<std::size_t>(cause)].explains & bit(effect)) != 0;
}

bool sets_apart(Check check) {
  constexpr Checks kApart = set_of({kOptimizerMismatch, kEnvironmentMismatch, kModeMismatch,
                                    kReducedGradientMismatch, kBufferDesync, kParameterDesync});
  return (kApart & bit(check)) != 0;
}

bool is_statistic(Check check) { return ((kStatistics | kTimes) & bit(check)) != 0; }

bool is_numeric(Check check) { return (kStatistics & bit(check)) != 0; }

std::span<const CheckInfo> catalogue() { return kCatalogue; }

}  // namespace presum::diagnose
