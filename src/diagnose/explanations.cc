// SPDX-License-Identifier: Apache-2.0
#include "diagnose/explanations.h"

#include <algorithm>
#include <array>
#include <utility>

#include "diagnose/checks.h"

namespace presum::diagnose {
namespace {

constexpr std::array<std::pair<Check, Explanation>, kChecks> kExplanations{{
    {Check::kRankEnded,
     {"The other ranks cannot go on, and what they raise names the network rather than the cause.",
      "How a process of another host ended: of it only its last sign of life is known. A program "
      "that catches its exception and exits. The end of the process that records.",
      "if not torch.isfinite(loss):   # on one rank\n    raise RuntimeError(\"loss is not "
      "finite\")"}},
    {Check::kNonfiniteGradient,
     {"One NaN in one worker's gradient is a NaN in the sum, and in every parameter after the "
      "step.",
      "A gradient that was never read: one that the run says it could not look into.",
      "loss = (target * torch.log(p)).mean()  # p is 0 on one rank: -inf, then NaN"}},
    {Check::kNonfiniteLoss,
     {"A loss that is not finite makes a gradient that is not, and with it the sum.",
      "Losses that presum was not told and could not see.",
      "loss = total / targets.ne(-100).sum()  # a batch without targets: 0 / 0"}},
    {Check::kNoReduction,
     {"Every worker trains a model of its own; what is saved is the model of one of them, trained "
      "on "
      "its share of the data.",
      "A reduction by means that presum does not know is not seen either: name it with "
      "`monitor.before_reduction()`.",
      "loss = ddp.module(x).loss       # around the wrapper: nothing is reduced\n"
      "with ddp.no_sync():             # left on in the last micro-batch\n"
      "    loss.backward()\n"
      "optimizer.step()"}},
    {Check::kMissingWorker,
     {"Steps are judged without these workers: what is wrong on them is not seen.",
      "A worker whose packets are lost looks like one that died.",
      "if rank == 0:\n    os._exit(0)  # or a process that was killed for its memory"}},
    {Check::kOptimizerMismatch,
     {"Workers take different steps from the same gradient, so their parameters drift apart.",
      "Settings of an optimiser that are not in its parameter groups.",
      "scheduler = OneCycleLR(optimizer, 1e-3, total_steps=len(loader))  # lengths differ by "
      "rank"}},
    {Check::kEnvironmentMismatch,
     {"The same program may compute other numbers on some ranks.",
      "Libraries that are not on presum's list of facts; precision inside code that torch "
      "compiles.",
      "torch.set_float32_matmul_precision(\"high\")  # on some hosts only"}},
    {Check::kModeMismatch,
     {"Some workers train with dropout or with moving batch statistics and others without.",
      "Behaviour that does not follow `training` or a dropout rate.",
      "if rank == 0:\n    model.eval()\n    evaluate(model)  # and no model.train() after it"}},
    {Check::kManifestMismatch,
     {"The same index means other samples, or samples prepared otherwise: a sampler that splits "
      "indices reads some twice and others never, and the model learns from both.",
      "Differences that show in no hash: a data set that does not keep its samples, before an "
      "index "
      "was drawn by two ranks. Rows are compared as the model gets them, so augmentation on the "
      "way "
      "makes them others: of a rank whose rows differ now and then nothing is said.",
      "files = glob.glob(\"data/*.jsonl\")                # in the order of the file system\n"
      "train, val = random_split(data, [0.9, 0.1])      # without a seed in common"}},
    {Check::kDuplicateData,
     {"Where they read the same these workers do the work of one: the batch is smaller than it is "
      "believed to be.",
      "Equal samples in other rows of other batches; that is overlapping-data.",
      "loader = DataLoader(data, batch_size=8, shuffle=True)  # and the same seed on every rank\n"
      "sampler = DistributedSampler(data, rank=0)              # not this rank"}},
    {Check::kEpochNotSet,
     {"Every pass over the data has the same order and the same batches.",
      "The first pass: it shows when the second begins.",
      "for epoch in range(epochs):\n    for batch in loader:  # no sampler.set_epoch(epoch)"}},
    {Check::kSamplerMismatch,
     {"The ranks' shares of the data overlap, and leave samples out.",
      "Samplers that do not say their seed, epoch or rank.",
      "sampler = DistributedSampler(data, seed=seed + rank)"}},
    {Check::kOverlappingData,
     {"Samples that are read again count again, and take the place of others.",
      "Steps in which a pass ends; samplers that draw with replacement or repeat by design.",
      "sampler = DistributedSampler(data, seed=int(time.time()))"}},
    {Check::kDataCoverage,
     {"Samples that are never drawn are never learned from, and an epoch is shorter than it is "
      "believed to be.",
      "Passes that the program breaks off, samplers that draw with replacement or repeat, data "
      "sets "
      "without a length; shards of each rank whose data sets look alike; where indices are "
      "unknown, "
      "samples that are left out because others are repeated. A pass is judged where its last "
      "batch "
      "was seen at the model: not where the program changes rows on their way (augmentation on a "
      "device). Batches that are cut before the model leave samples out, and are told as such.",
      "sampler = DistributedSampler(data)\n"
      "loader = accelerator.prepare(DataLoader(data, sampler=sampler))  # divides it again"}},
    {Check::kReductionScale,
     {"The step is too long or too short by this factor: it acts as another learning rate.",
      "Factors within 10% of 1, and what a wrong reading of the gradient would show as well.",
      "dist.all_reduce(p.grad)  # a sum, without / world_size\n"
      "loss = loss / world_size  # and DDP divides again"}},
    {Check::kReducedGradientMismatch,
     {"Workers that step along different gradients drift apart from here on.",
      "It is looked at in the first step and in every 25th.",
      "if rank in active:  # only some ranks reduce this parameter\n    dist.all_reduce(p.grad, "
      "group=active)"}},
    {Check::kReductionError,
     {"The sum that trained the model is not the sum of the gradients.",
      "Steps that were not audited, and errors smaller than rounding.",
      "work = dist.all_reduce(bucket, async_op=True)\n"
      "bucket.mul_(scale)  # before work.wait()"}},
    {Check::kReductionDtype,
     {"Small gradients are lost in the sum, more of them the more workers there are.",
      "Steps that were not audited; where every format gives the same bits.",
      "ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)"}},
    {Check::kReductionNondeterministic,
     {"Two runs of this program end with other parameters.",
      "Steps whose reduction was not repeated.",
      "os.environ.pop(\"NCCL_ALGO\", None)  # the library picks another order as it likes"}},
    {Check::kLostGradients,
     {"The optimiser's step is not made of the micro-batches that it is believed to be made of.",
      "Gradients that are dropped now and then, or beside the steps of another optimiser (a GAN); "
      "losses of models that return none, where no loader handed out the batch.",
      "for batch in micro_batches:\n"
      "    optimizer.zero_grad()  # belongs before the loop\n"
      "    loss = model(**batch).loss\n"
      "loss.backward()            # the last one only"}},
    {Check::kClipNorm,
     {"Every step is shortened by another factor than `max_norm` promises, or by one of each rank.",
      "Norms of some of the parameters; a program's own clipping that it does not tell "
      "(`monitor.grad_norm(value)`); sharded gradients; norms of another type than L2 that torch's "
      "`get_total_norm` did not take.",
      "norm = get_total_norm([p.grad for p in my_shard])  # of this rank's part\n"
      "clip_grads_with_norm_(model.parameters(), 1.0, norm)\n"
      "clip_grad_norm_(model.parameters(), 1.0)            # before scaler.unscale_(optimizer)"}},
    {Check::kRecomputeMismatch,
     {"A processor or memory that is wrong now and then: every step after it holds the mistake.",
      "Steps and micro-batches that are not computed again; what was wrong before the forward "
      "pass; "
      "models whose forward cannot be repeated (FSDP2, collectives, compiled parts, hooks).",
      "presum.attach(model, optimizer=optimizer, record=presum.Record(verify_every=100))"}},
    {Check::kResumeMismatch,
     {"What is trained on is another model, or on other samples, than the record of before says.",
      "Runs whose optimiser begins at 0 steps (a warm start); optimisers without a count of steps, "
      "where the weights are none that were saved; checkpoints that were not made through "
      "`optimizer.state_dict()`, or not by this run; what loaders draw before the first step.",
      "model.load_state_dict(torch.load(\"last.pt\"), strict=False)   # names that do not match\n"
      "optimizer.load_state_dict(torch.load(\"best.pt\")[\"optimizer\"])  # of another step\n"
      "for batch in loader:                                       # from the pass's beginning"}},
    {Check::kStateDesync,
     {"The next step differs between ranks although their gradients agree.",
      "State that is sharded (ZeRO, FSDP2) but between replicas of one shard; what only some of "
      "the "
      "ranks watch.",
      "if rank == 0: optimizer.load_state_dict(torch.load(\"optimizer.pt\"))\n"
      "monitor.watch(\"ema\", ema_model)  # must be equal everywhere"}},
    {Check::kBufferDesync,
     {"Evaluation and checkpoints depend on the rank that makes them.",
      "Buffers that `local_buffers=` declares, and what happens after the forward pass.",
      "ddp = DistributedDataParallel(model, broadcast_buffers=False)  # with BatchNorm"}},
    {Check::kParameterDesync,
     {"The workers' gradients are of different models, and their mean is the gradient of none.",
      "A difference is dated by the step of its hash, at most 25 steps late.",
      "model.apply(init_weights)       # after DDP had broadcast the parameters\n"
      "if loss.item() < 10:            # a decision of each rank alone\n"
      "    optimizer.step()"}},
    {Check::kZeroGradient,
     {"Where the gradient is zero the worker contributes nothing, and the mean is too small by its "
      "share.",
      "Gradients that are only nearly zero; with a loss scaler, elements that underflowed from the "
      "run's first step on.",
      "loss = criterion(output.detach(), target)"}},
    {Check::kFrozenGradient,
     {"The worker's share of the sum is of an old batch.",
      "A gradient that is stale by a step, but moves.",
      "batch = next(iter(loader))  # in every step: always the first"}},
    {Check::kNoProgress,
     {"The training costs what it costs, and nothing is learned.",
      "Steps whose gradient or learning rate is zero; optimizers that are none of torch's, where "
      "nothing moves.",
      "optimizer = AdamW(model.parameters())\n"
      "fully_shard(model)            # new parameters: the optimizer holds the old ones\n"
      "model = copy.deepcopy(model)  # likewise"}},
    {Check::kTokenImbalance,
     {"A token in a short batch counts more than one in a long batch.",
      "Batches whose target tokens are not known.",
      "loss = F.cross_entropy(logits, labels, ignore_index=-100)  # a mean over other counts\n"
      "labels = input_ids.clone()  # the prompt is not masked on this rank"}},
    {Check::kSharedRng,
     {"Ranks draw the same noise, so dropout or augmentation is less random than it looks.",
      "Generators that were not in use.",
      "torch.manual_seed(42)  # without the rank, after the model was built"}},
    {Check::kWorkerOutlier,
     {"Something on this worker is not like on the others, and goes into every sum.",
      "Differences that come and go within the others' scatter; the smaller, the longer it takes.",
      "x = (x - mean) / std            # missing on this rank\n"
      "loss.backward()                 # not divided by the accumulation on this rank"}},
    {Check::kPairTooSimilar,
     {"Two workers that compute nearly the same gradient do the work of one.",
      "Two workers alone: a pair is compared with other pairs.",
      "torch.manual_seed(0)  # and data drawn from that generator, alike on two ranks"}},
    {Check::kTooConsistent,
     {"The mean over workers is no better than one of them.",
      "Runs with one micro-batch a step and without sketches.",
      "for batch in load_dataset(path, streaming=True):  # no split_dataset_by_node"}},
    {Check::kLossEvent,
     {"One batch moved the sum of this step far out of its way.",
      "Events of all workers at once: they are no difference.",
      "text = record[\"text\"]  # one record of another length, language or encoding"}},
    {Check::kStall,
     {"The job stands still, and pays for every worker, until somebody ends it.",
      "Where nothing sends signs of life: programs in C++, and ranks that have not attached yet.",
      "if rank == 0:\n    dist.broadcast(stats, src=0)  # a collective that only one rank calls"}},
    {Check::kSlowNode,
     {"All other hosts wait in every step for this one.",
      "A job on one host, or with one rank to a host: its ranks are slow workers then.",
      "nvidia-smi -q -d PERFORMANCE  # clocks that are held down on one host"}},
    {Check::kUnevenBatches,
     {"In every step all workers wait for whoever has the longest batch.",
      "Work that does not follow target tokens; token counts that are not known.",
      "loader = DataLoader(data, batch_size=8, shuffle=True)  # of 20 to 2,000 tokens each"}},
    {Check::kDataStarved,
     {"Accelerators wait for data instead of computing.",
      "What a program does between two steps besides loading looks the same, but for evaluation.",
      "DataLoader(data, num_workers=0)  # tokenises in the training process"}},
    {Check::kSlowWorker,
     {"All workers are as slow as this one.",
      "A job in which all are equally slow; waits in collectives that no hook shows; FSDP on a "
      "device.",
      "if rank == 0:\n    writer.add_histogram(\"grad\", grad, step)  # in every step"}},
    {Check::kPeriodicStall,
     {"What is done now and then costs as if every step were a little slower.",
      "Stalls below twice the usual time of a step, and those at no regular distance.",
      "if step % 50 == 0:\n    torch.save(model.state_dict(), path)"}},
    {Check::kGradualSlowing,
     {"The rest of the run takes longer than it was planned to.",
      "Growth by less than 1.3 times, or over fewer than 400 recorded steps.",
      "losses.append(loss)  # with its graph, for ever"}},
}};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kChecks; ++i) {
    if (static_cast<std::size_t>(kExplanations[i].first) != i) return false;
  }
  return true;
}
static_assert(in_order(), "an explanation stands at the place of its check");

}  // namespace

const Explanation* explanation(std::string_view check) {
  const auto found = std::ranges::find_if(
      kExplanations, [&](const auto& entry) { return info(entry.first).id == check; });
  return found == kExplanations.end() ? nullptr : &found->second;
}

}  // namespace presum::diagnose
