// SPDX-License-Identifier: Apache-2.0
#include "diagnose/checks.h"

#include <algorithm>
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

struct CheckRow {
  Check check;
  CheckInfo info;
  Checks explains = 0;
};

constexpr std::array<CheckRow, kChecks> kCheckRows{{
    {kRankEnded,
     {"rank-ended", kCritical, "whether every rank is there until all have left the training",
      "Read the traceback and the system's log of the named rank: the others failed because it was "
      "gone. A process that was killed without a word has often run out of memory.",
      "The other ranks cannot go on, and what they raise names the network rather than the cause.",
      "How a process of another host ended: of it only its last sign of life is known. A program "
      "that catches its exception and exits. The end of the process that records.",
      "if not torch.isfinite(loss):   # on one rank\n    raise RuntimeError(\"loss is not "
      "finite\")"},
     set_of({kMissingWorker})},
    {kNonfiniteGradient,
     {"nonfinite-gradient", kCritical, "NaN and Inf in every worker's own gradient",
      "Look at the batch, the loss and the first layer with NaN on the named ranks at the first "
      "step, and skip or clip on all ranks alike. If all ranks turned at once, look at the "
      "reduction and the optimiser of the step before.",
      "One NaN in one worker's gradient is a NaN in the sum, and in every parameter after the "
      "step.",
      "A gradient that was never read: one that the run says it could not look into.",
      "loss = (target * torch.log(p)).mean()  # p is 0 on one rank: -inf, then NaN",
      "deepspeedai/DeepSpeed#8061"},
     kNonfinite | kDesync | kStatistics |
         set_of({kReducedGradientMismatch, kReductionScale, kZeroGradient, kFrozenGradient})},
    {kNonfiniteLoss,
     {"nonfinite-loss", kCritical, "NaN and Inf in every worker's loss",
      "Look at the batch of the named ranks at the first step: a log or a division of zero, or a "
      "batch without any target token.",
      "A loss that is not finite makes a gradient that is not, and with it the sum.",
      "Losses that presum was not told and could not see.",
      "loss = total / targets.ne(-100).sum()  # a batch without targets: 0 / 0",
      "WeatherGenerator#2724"},
     kNonfinite | kDesync | kStatistics | set_of({kZeroGradient})},
    {kNoReduction,
     {"no-reduction", kCritical, "whether gradients were averaged at all before the optimiser ran",
      "Call the wrapped model itself, not `.module`, and end `no_sync()` before the last backward "
      "pass of each optimiser step. Every worker trains a model of its own until then.",
      "Every worker trains a model of its own; what is saved is the model of one of them, trained "
      "on its share of the data.",
      "A reduction by means that presum does not know is not seen either: name it with "
      "`monitor.before_reduction()`.",
      "loss = ddp.module(x).loss       # around the wrapper: nothing is reduced\n"
      "with ddp.no_sync():             # left on in the last micro-batch\n"
      "    loss.backward()\n"
      "optimizer.step()",
      "pytorch/pytorch#104336"},
     kDesync | kStatistics |
         set_of({kMissingWorker, kReductionScale, kReducedGradientMismatch, kReductionError,
                 kClipNorm})},
    {kMissingWorker,
     {"missing-worker", kWarning, "packets of every worker at every step",
      "See whether the process of these ranks still runs and reaches the aggregator's port. Steps "
      "without them are judged by the others alone.",
      "Steps are judged without these workers: what is wrong on them is not seen.",
      "A worker whose packets are lost looks like one that died.",
      "if rank == 0:\n    os._exit(0)  # or a process that was killed for its memory"},
     kStatistics},
    {kOptimizerMismatch,
     {"optimizer-mismatch", kCritical, "optimiser class and hyper-parameters of all workers",
      "Build the optimiser and its schedule from the same configuration on every rank, and load "
      "the same checkpoint of them.",
      "Workers take different steps from the same gradient, so their parameters drift apart.",
      "Settings of an optimiser that are not in its parameter groups.",
      "scheduler = OneCycleLR(optimizer, 1e-3, total_steps=len(loader))  # lengths differ by "
      "rank"},
     kDesync | set_of({kWorkerOutlier, kPairTooSimilar, kLossEvent})},
    {kEnvironmentMismatch,
     {"environment-mismatch", kWarning,
      "versions, device, precision, determinism and environment variables of all workers",
      "Use the same image and launch environment on every host.",
      "The same program may compute other numbers on some ranks.",
      "Libraries that are not on presum's list of facts; precision inside code that torch "
      "compiles.",
      "torch.set_float32_matmul_precision(\"high\")  # on some hosts only"},
     kDesync | set_of({kReducedGradientMismatch, kWorkerOutlier})},
    {kModeMismatch,
     {"mode-mismatch", kWarning, "training or evaluation mode and dropout rates of all workers",
      "Call `model.train()` on every rank after validation, and build the model from one "
      "configuration.",
      "Some workers train with dropout or with moving batch statistics and others without.",
      "Behaviour that does not follow `training` or a dropout rate.",
      "if rank == 0:\n    model.eval()\n    evaluate(model)  # and no model.train() after it"},
     set_of({kBufferDesync, kWorkerOutlier, kPairTooSimilar, kLossEvent})},
    {kManifestMismatch,
     {"manifest-mismatch", kWarning, "length and contents of the data set of all workers",
      "Sort file lists before use and check that every host has the same files: a sampler splits "
      "positions, so lists that differ are read twice in part and not at all in part.",
      "The same index means other samples, or samples prepared otherwise: a sampler that splits "
      "indices reads some twice and others never, and the model learns from both.",
      "Differences that show in no hash: a data set that does not keep its samples, before an "
      "index was drawn by two ranks. Rows are compared as the model gets them, so augmentation on "
      "the way makes them others: of a rank whose rows differ now and then nothing is said.",
      "files = glob.glob(\"data/*.jsonl\")                # in the order of the file system\n"
      "train, val = random_split(data, [0.9, 0.1])      # without a seed in common",
      "pytorch/pytorch#70103"},
     kStatistics | set_of({kDuplicateData, kSamplerMismatch, kOverlappingData, kDataCoverage,
                           kTokenImbalance})},
    {kDuplicateData,
     {"duplicate-data", kCritical, "whether workers read the same samples at a step",
      "Shard the data by rank: a DistributedSampler (or split_dataset_by_node) with this job's "
      "rank and world size. Until then these workers do the work of one.",
      "Where they read the same these workers do the work of one: the batch is smaller than it is "
      "believed to be.",
      "Equal samples in other rows of other batches; that is overlapping-data.",
      "loader = DataLoader(data, batch_size=8, shuffle=True)  # and the same seed on every rank\n"
      "sampler = DistributedSampler(data, rank=0)              # not this rank",
      "huggingface/datasets#7868"},
     kStatistics |
         set_of({kEpochNotSet, kSamplerMismatch, kOverlappingData, kDataCoverage, kSharedRng})},
    {kEpochNotSet,
     {"epoch-not-set", kWarning, "whether the order of the samples changes from pass to pass",
      "Call `sampler.set_epoch(epoch)` before every pass over the data.",
      "Every pass over the data has the same order and the same batches.",
      "The first pass: it shows when the second begins.",
      "for epoch in range(epochs):\n    for batch in loader:  # no sampler.set_epoch(epoch)",
      "pytorch/pytorch#31771"},
     set_of({kOverlappingData})},
    {kSamplerMismatch,
     {"sampler-mismatch", kWarning, "seed, epoch, rank, replicas and settings of all samplers",
      "Give every rank's sampler the same seed, epoch and settings, and its own rank.",
      "The ranks' shares of the data overlap, and leave samples out.",
      "Samplers that do not say their seed, epoch or rank.",
      "sampler = DistributedSampler(data, seed=seed + rank)", "NVlabs/LongLive#71"},
     set_of({kDuplicateData, kEpochNotSet, kOverlappingData, kDataCoverage, kPairTooSimilar,
             kTooConsistent})},
    {kOverlappingData,
     {"overlapping-data", kWarning, "whether a sample is drawn twice in one pass over the data",
      "Give every rank's sampler the same seed and epoch, or split the data into disjoint shards, "
      "and feed each micro-batch once. Samples read twice take the place of others that are not "
      "read.",
      "Samples that are read again count again, and take the place of others.",
      "Steps in which a pass ends; samplers that draw with replacement or repeat by design.",
      "sampler = DistributedSampler(data, seed=int(time.time()))", "karpathy/llm.c#792"},
     set_of({kDataCoverage, kWorkerOutlier, kPairTooSimilar, kTooConsistent})},
    {kDataCoverage,
     {"data-coverage", kWarning, "samples drawn in a whole pass against the data set's length",
      "Divide the data once: hand Accelerate or the Trainer a loader without a DistributedSampler, "
      "and a data set that is not split by rank already. A sampler of your own has to deal every "
      "sample.",
      "Samples that are never drawn are never learned from, and an epoch is shorter than it is "
      "believed to be.",
      "Passes that the program breaks off, samplers that draw with replacement or repeat, data "
      "sets without a length; shards of each rank whose data sets look alike; where indices are "
      "unknown, samples that are left out because others are repeated. A pass is judged where its "
      "last batch was seen at the model: not where the program changes rows on their way "
      "(augmentation on a device). Batches that are cut before the model leave samples out, and "
      "are told as such.",
      "sampler = DistributedSampler(data)\n"
      "loader = accelerator.prepare(DataLoader(data, sampler=sampler))  # divides it again",
      "huggingface/accelerate#3520"}},
    {kReductionScale,
     {"reduction-scale", kCritical,
      "norm of the reduced gradient against the mean that it ought to be",
      "Divide by the world size exactly once: in the reduction, or in the loss, not in both and "
      "not in neither.",
      "The step is too long or too short by this factor: it acts as another learning rate.",
      "Factors within 10% of 1, and what a wrong reading of the gradient would show as well.",
      "dist.all_reduce(p.grad)  # a sum, without / world_size\n"
      "loss = loss / world_size  # and DDP divides again",
      "NeMo Automodel#3830"},
     kNonfinite | set_of({kReducedGradientMismatch, kReductionError, kLossEvent})},
    {kReducedGradientMismatch,
     {"reduced-gradient-mismatch", kCritical, "whether all workers hold the same reduced gradient",
      "Look at communication hooks, at parameters that only some ranks use, and at the "
      "communication library; exchange the hardware of the named ranks if it comes back.",
      "Workers that step along different gradients drift apart from here on.",
      "It is looked at in the first step and in every 25th.",
      "if rank in active:  # only some ranks reduce this parameter\n    dist.all_reduce(p.grad, "
      "group=active)",
      "pmodels/mpich#6538"},
     kNonfinite | kDesync | set_of({kReductionError, kClipNorm, kWorkerOutlier, kLossEvent})},
    {kReductionError,
     {"reduction-error", kCritical,
      "each element of an audited sum against what rounding can explain",
      "Look at the communication library and its version, at communication hooks, and at who "
      "writes to the buffer while it is reduced; `presum audit` on saved gradients shows what was "
      "done to them.",
      "The sum that trained the model is not the sum of the gradients.",
      "Steps that were not audited, and errors smaller than rounding.",
      "work = dist.all_reduce(bucket, async_op=True)\n"
      "bucket.mul_(scale)  # before work.wait()",
      "NVIDIA/nccl#1950"},
     kNonfinite | set_of({kLossEvent})},
    {kReductionDtype,
     {"reduction-dtype", kWarning, "the format in which an audited sum was accumulated",
      "Reduce in fp32 (`reduce_dtype`, no compressing hook, fp32 gradients), or let presum reduce "
      "with `reduction=\"exact\"`.",
      "Small gradients are lost in the sum, more of them the more workers there are.",
      "Steps that were not audited; where every format gives the same bits.",
      "ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)", "pytorch/pytorch#190626"}},
    {kReductionNondeterministic,
     {"reduction-nondeterministic", kWarning, "the same reduction of the same gradients, twice",
      "Fix the algorithm of the communication library, or let presum reduce with "
      "`reduction=\"exact\"`: its bits depend on no order.",
      "Two runs of this program end with other parameters.",
      "Steps whose reduction was not repeated.",
      "os.environ.pop(\"NCCL_ALGO\", None)  # the library picks another order as it likes",
      "NVIDIA/nccl#1497"}},
    {kLostGradients,
     {"lost-gradients", kWarning,
      "the micro-batches whose loss was computed with those that the optimiser's step is made of",
      "Call `zero_grad()` once for each optimiser step, after it; call `backward()` on the loss of "
      "every micro-batch; clip and unscale after the last of them.",
      "The optimiser's step is not made of the micro-batches that it is believed to be made of.",
      "Gradients that are dropped now and then, or beside the steps of another optimiser (a GAN); "
      "losses of models that return none, where no loader handed out the batch.",
      "for batch in micro_batches:\n"
      "    optimizer.zero_grad()  # belongs before the loop\n"
      "    loss = model(**batch).loss\n"
      "loss.backward()            # the last one only",
      "allenai/open-instruct#1498"},
     kStatistics | set_of({kClipNorm, kBufferDesync, kNoProgress, kTokenImbalance})},
    {kClipNorm,
     {"clip-norm", kWarning, "the norm that gradients are clipped by with the gradients' own",
      "Clip by the norm of the reduced gradient over all parameters, after the loss scaler's "
      "`unscale_`: the same number on every rank. Norms of parts add up as the root of the sum of "
      "their squares, each part once.",
      "Every step is shortened by another factor than `max_norm` promises, or by one of each rank.",
      "Norms of some of the parameters; a program's own clipping that it does not tell "
      "(`monitor.grad_norm(value)`); sharded gradients; norms of another type than L2 that torch's "
      "`get_total_norm` did not take.",
      "norm = get_total_norm([p.grad for p in my_shard])  # of this rank's part\n"
      "clip_grads_with_norm_(model.parameters(), 1.0, norm)\n"
      "clip_grad_norm_(model.parameters(), 1.0)            # before scaler.unscale_(optimizer)",
      "meta-pytorch/torchtune#2240"},
     kDesync},
    {kRecomputeMismatch,
     {"recompute-mismatch", kCritical,
      "the gradient of a micro-batch with that of the same one computed once more",
      "Take the named ranks' hardware out of the job and test it: memory, processor or accelerator "
      "gave another result for the same numbers. Where it differs each time, look for kernels "
      "that are not deterministic first.",
      "A processor or memory that is wrong now and then: every step after it holds the mistake.",
      "Steps and micro-batches that are not computed again; what was wrong before the forward "
      "pass; models whose forward cannot be repeated (FSDP2, collectives, compiled parts, hooks).",
      "presum.attach(model, optimizer=optimizer, record=presum.Record(verify_every=100))"},
     kStatistics | kNonfinite | kDesync | set_of({kReducedGradientMismatch, kReductionScale})},
    {kResumeMismatch,
     {"resume-mismatch", kCritical,
      "weights, optimiser state, generators and data of a run that continues with what it left",
      "Load model, optimiser, generators and the place in the data from one checkpoint.",
      "What is trained on is another model, or on other samples, than the record of before says.",
      "Runs whose optimiser begins at 0 steps (a warm start); optimisers without a count of steps, "
      "where the weights are none that were saved; checkpoints that were not made through "
      "`optimizer.state_dict()`, or not by this run; what loaders draw before the first step.",
      "model.load_state_dict(torch.load(\"last.pt\"), strict=False)   # names that do not match\n"
      "optimizer.load_state_dict(torch.load(\"best.pt\")[\"optimizer\"])  # of another step\n"
      "for batch in loader:                                       # from the pass's beginning",
      "NVIDIA/Megatron-LM#6858"},
     set_of({kOverlappingData, kDataCoverage})},
    {kStateDesync,
     {"state-desync", kCritical,
      "the optimiser's moments and counters, and what `monitor.watch` names",
      "Load one checkpoint of the optimiser on every rank, after it holds its parameters, and "
      "change its state on all ranks alike; broadcast what is watched from one rank.",
      "The next step differs between ranks although their gradients agree.",
      "State that is sharded (ZeRO, FSDP2) but between replicas of one shard; what only some of "
      "the ranks watch.",
      "if rank == 0: optimizer.load_state_dict(torch.load(\"optimizer.pt\"))\n"
      "monitor.watch(\"ema\", ema_model)  # must be equal everywhere"},
     kDesync | kStatistics},
    {kBufferDesync,
     {"buffer-desync", kWarning, "buffers (such as BatchNorm statistics) of all workers",
      "Leave `broadcast_buffers` on, use synchronised BatchNorm, or declare the buffers with "
      "`local_buffers=`. Otherwise evaluation and checkpoints depend on the rank.",
      "Evaluation and checkpoints depend on the rank that makes them.",
      "Buffers that `local_buffers=` declares, and what happens after the forward pass.",
      "ddp = DistributedDataParallel(model, broadcast_buffers=False)  # with BatchNorm",
      "mmdetection#2539"},
     set_of({kWorkerOutlier, kLossEvent})},
    {kParameterDesync,
     {"parameter-desync", kCritical, "parameters and optimiser-step counts of all workers",
      "Broadcast the parameters from one rank and take every decision to step or skip on all ranks "
      "alike. Initialise before the model is wrapped, and restart from a checkpoint of before.",
      "The workers' gradients are of different models, and their mean is the gradient of none.",
      "A difference is dated by the step of its hash, at most 25 steps late.",
      "model.apply(init_weights)       # after DDP had broadcast the parameters\n"
      "if loss.item() < 10:            # a decision of each rank alone\n"
      "    optimizer.step()",
      "pytorch/pytorch#69031"},
     kNonfinite | kStatistics | set_of({kBufferDesync})},
    {kZeroGradient,
     {"zero-gradient", kCritical, "gradients that are exactly zero",
      "Look for a detached loss, a frozen model or a batch without any target on the named ranks.",
      "Where the gradient is zero the worker contributes nothing, and the mean is too small by its "
      "share.",
      "Gradients that are only nearly zero; with a loss scaler, elements that underflowed from the "
      "run's first step on.",
      "loss = criterion(output.detach(), target)"},
     kStatistics | set_of({kFrozenGradient})},
    {kFrozenGradient,
     {"frozen-gradient", kCritical, "gradients that repeat the previous step's bit for bit",
      "Look for gradients that are not cleared and recomputed, a batch that is fed again, or a "
      "backward pass that the named ranks skip.",
      "The worker's share of the sum is of an old batch.",
      "A gradient that is stale by a step, but moves.",
      "batch = next(iter(loader))  # in every step: always the first"},
     kStatistics},
    {kNoProgress,
     {"no-progress", kCritical, "parameters with what they were before the optimizer's steps",
      "Look whether the optimizer holds the parameters of this model (build it after the model is "
      "copied, moved or sharded by `fully_shard`), in a group whose learning rate is above 0, "
      "whether gradients are still there at its step, and whether its updates are too small for "
      "their format: bf16 needs fp32 master weights.",
      "The training costs what it costs, and nothing is learned.",
      "Steps whose gradient or learning rate is zero; optimizers that are none of torch's, where "
      "nothing moves.",
      "optimizer = AdamW(model.parameters())\n"
      "fully_shard(model)            # new parameters: the optimizer holds the old ones\n"
      "model = copy.deepcopy(model)  # likewise"},
     set_of({kFrozenGradient})},
    {kTokenImbalance,
     {"token-imbalance", kWarning, "target tokens of every worker's batch",
      "Weight each worker's loss by its target tokens: divide the summed loss by the global token "
      "count, or batch by length on all ranks alike.",
      "A token in a short batch counts more than one in a long batch.",
      "Batches whose target tokens are not known.",
      "loss = F.cross_entropy(logits, labels, ignore_index=-100)  # a mean over other counts\n"
      "labels = input_ids.clone()  # the prompt is not masked on this rank",
      "huggingface/transformers#34242"},
     set_of({kWorkerOutlier, kLossEvent})},
    {kSharedRng,
     {"shared-rng", kInfo, "random generators of all workers, where they are in use",
      "Add the rank to the seed after the model is built, and seed loader workers by rank too.",
      "Ranks draw the same noise, so dropout or augmentation is less random than it looks.",
      "Generators that were not in use.",
      "torch.manual_seed(42)  # without the rank, after the model was built",
      "huggingface/transformers#31412"}},
    {kWorkerOutlier,
     {"worker-outlier", kWarning, "each worker's loss, norm and direction against the others'",
      "Compare data, code path and hardware of the named ranks with the others'. No harder check "
      "explains the difference.",
      "Something on this worker is not like on the others, and goes into every sum.",
      "Differences that come and go within the others' scatter; the smaller, the longer it takes.",
      "x = (x - mean) / std            # missing on this rank\n"
      "loss.backward()                 # not divided by the accumulation on this rank"},
     kStatistics},
    {kPairTooSimilar,
     {"pair-too-similar", kWarning, "cosines of all pairs of workers",
      "Look whether these workers read the same data; switch the data fingerprints on to see it "
      "directly.",
      "Two workers that compute nearly the same gradient do the work of one.",
      "Two workers alone: a pair is compared with other pairs.",
      "torch.manual_seed(0)  # and data drawn from that generator, alike on two ranks"},
     set_of({kTooConsistent, kWorkerOutlier})},
    {kTooConsistent,
     {"too-consistent", kWarning, "whether workers differ as much as their micro-batches do",
      "Look whether all workers read the same data: their average is no better than one of them.",
      "The mean over workers is no better than one of them.",
      "Runs with one micro-batch a step and without sketches.",
      "for batch in load_dataset(path, streaming=True):  # no split_dataset_by_node",
      "huggingface/datasets#5360"},
     set_of({kPairTooSimilar})},
    {kLossEvent,
     {"loss-event", kInfo, "single steps far outside everything seen",
      "Look at the named rank's batch of that step.",
      "One batch moved the sum of this step far out of its way.",
      "Events of all workers at once: they are no difference.",
      "text = record[\"text\"]  # one record of another length, language or encoding",
      "WeatherGenerator#2724"}},
    {kStall,
     {"stall", kCritical, "whether every rank goes on, by what each says of itself now and then",
      "Look at the lines that the evidence names. Ranks at different points of the program have "
      "taken different branches: a condition on the rank, another number of batches, an exception "
      "that one of them swallowed.",
      "The job stands still, and pays for every worker, until somebody ends it.",
      "Where nothing sends signs of life: programs in C++, and ranks that have not attached yet.",
      "if rank == 0:\n    dist.broadcast(stats, src=0)  # a collective that only one rank calls"},
     set_of({kMissingWorker})},
    {kSlowNode,
     {"slow-node", kWarning, "own time of all ranks of a host against that of other hosts",
      "Look at the host: clocks and power limits of its accelerators, other jobs, its disk and "
      "network. Exchange it if nothing of the program's tells it apart.",
      "All other hosts wait in every step for this one.",
      "A job on one host, or with one rank to a host: its ranks are slow workers then.",
      "nvidia-smi -q -d PERFORMANCE  # clocks that are held down on one host"},
     set_of({kSlowWorker, kDataStarved})},
    {kUnevenBatches,
     {"uneven-batches", kInfo, "whether own times follow the token counts of batches",
      "Deal batches by their tokens rather than by their number of samples: sort by length into "
      "global batches, or pack.",
      "In every step all workers wait for whoever has the longest batch.",
      "Work that does not follow target tokens; token counts that are not known.",
      "loader = DataLoader(data, batch_size=8, shuffle=True)  # of 20 to 2,000 tokens each"},
     set_of({kSlowWorker})},
    {kDataStarved,
     {"data-starved", kWarning, "time between the end of a step and its first forward pass",
      "Load ahead (`num_workers`, `prefetch_factor`, `pin_memory`), move work out of the loader, "
      "and see what the named rank reads from another disk than the others.",
      "Accelerators wait for data instead of computing.",
      "What a program does between two steps besides loading looks the same, but for evaluation.",
      "DataLoader(data, num_workers=0)  # tokenises in the training process"}},
    {kSlowWorker,
     {"slow-worker", kWarning, "each rank's own time against the others'",
      "Look at what the named phase does on this rank alone: work behind `if rank == 0`, logging, "
      "another device or clock, a processor that is shared.",
      "All workers are as slow as this one.",
      "A job in which all are equally slow; waits in collectives that no hook shows; FSDP on a "
      "device.",
      "if rank == 0:\n    writer.add_histogram(\"grad\", grad, step)  # in every step"}},
    {kPeriodicStall,
     {"periodic-stall", kInfo, "steps that take far longer than usual, at equal distances",
      "Nothing, where that is a checkpoint or an evaluation that is worth it. Else save "
      "asynchronously, evaluate less often, or call the garbage collector at times of your own on "
      "all ranks together.",
      "What is done now and then costs as if every step were a little slower.",
      "Stalls below twice the usual time of a step, and those at no regular distance.",
      "if step % 50 == 0:\n    torch.save(model.state_dict(), path)"}},
    {kGradualSlowing,
     {"gradual-slowing", kInfo, "for how long the fastest rank computes, over hundreds of steps",
      "Look for what grows: a list of losses with their graphs, a cache, a log that is written "
      "anew, memory that is swapped, a device that becomes hot.",
      "The rest of the run takes longer than it was planned to.",
      "Growth by less than 1.3 times, or over fewer than 400 recorded steps.",
      "losses.append(loss)  # with its graph, for ever"}},
}};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kChecks; ++i) {
    if (static_cast<std::size_t>(kCheckRows[i].check) != i) return false;
  }
  return true;
}
static_assert(in_order(), "a rule stands at the place of its check");

constexpr std::array<CheckInfo, kChecks> kCatalogue = [] {
  std::array<CheckInfo, kChecks> catalogue{};
  for (std::size_t i = 0; i < kChecks; ++i) catalogue[i] = kCheckRows[i].info;
  return catalogue;
}();

}  // namespace

const CheckInfo& info(Check check) { return kCatalogue[static_cast<std::size_t>(check)]; }

bool explains(Check cause, Check effect) {
  return cause == effect ||
         (kCheckRows[static_cast<std::size_t>(cause)].explains & bit(effect)) != 0;
}

bool sets_apart(Check check) {
  constexpr Checks kApart = set_of({kOptimizerMismatch, kEnvironmentMismatch, kModeMismatch,
                                    kReducedGradientMismatch, kBufferDesync, kParameterDesync});
  return (kApart & bit(check)) != 0;
}

bool is_statistic(Check check) { return ((kStatistics | kTimes) & bit(check)) != 0; }

bool is_numeric(Check check) { return (kStatistics & bit(check)) != 0; }

std::span<const CheckInfo> catalogue() { return kCatalogue; }

const CheckInfo* find_check(std::string_view id) {
  const auto found = std::ranges::find(kCatalogue, id, &CheckInfo::id);
  return found == kCatalogue.end() ? nullptr : &*found;
}

}  // namespace presum::diagnose
