# SPDX-License-Identifier: Apache-2.0
"""What is injected, and what presum must then say. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from presum.errors import UserError
from presum.experiments.faults.plan import Case, Configuration

HASH_INTERVAL = 25  # steps until every parameter was hashed, and between reduced gradients
_BLOCKS = Configuration()


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault and the finding that it must lead to."""

    name: str
    row: int | None = None  # of the catalogue of public reports; None: not among them
    thread: str = ""
    what: str
    injector: str  # a class of injectors.py
    expects: str  # the check id
    severity: str
    ranks: str = "culprit"  # Roles.named
    begins: int = 0  # the first step that is wrong
    target: int | None = None  # steps from there to the finding, at most; None: none is set
    configuration: Configuration = _BLOCKS

    @property
    def case(self) -> Case:
        """The run with the fault."""
        return Case(
            folder=self.name,
            configuration=self.configuration,
            injector=self.injector,
            begins=self.begins,
        )

    @property
    def twin(self) -> Case:
        """The run without it."""
        return Case(folder=f"clean-{self.configuration.name}", configuration=self.configuration)


@dataclass(frozen=True)
class Absent:
    """A fault that is not injected, and why."""

    row: int | None
    thread: str
    what: str
    why: str


_LONGER = replace(_BLOCKS, steps=60)
_INSTRUCTIONS = replace(_BLOCKS, data="instructions", steps=110)
_STREAM = replace(_BLOCKS, data="stream")
_DROPOUT = replace(_BLOCKS, dropout=0.1)
_EPOCHS = replace(_BLOCKS, epoch_steps=20)
_PAIRS = replace(_BLOCKS, micro_batches=2, steps=60)
_AUDITED = replace(_BLOCKS, audit_every=5)
_PAIRS_UNSEEN = replace(_PAIRS, fingerprints=False)

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="sampler-seed-times-rank",
        row=1,
        thread="NVlabs/LongLive#71",
        what="the sampler's seed is the seed times the rank",
        injector="SamplerSeedTimesRank",
        expects="sampler-mismatch",
        severity="warning",
        ranks="all",
        target=1,
    ),
    Fault(
        name="sampler-seed-plus-rank",
        row=2,
        thread="karpathy/llm.c#792",
        what="the sampler's seed is the seed plus the rank",
        injector="SamplerSeedPlusRank",
        expects="sampler-mismatch",
        severity="warning",
        ranks="all",
        target=1,
    ),
    Fault(
        name="split-by-node",
        row=3,
        thread="huggingface/datasets#7868",
        what="a stream is split by node: two ranks each read the same",
        injector="SplitByNode",
        expects="duplicate-data",
        severity="critical",
        ranks="all",
        target=1,
        configuration=_STREAM,
    ),
    Fault(
        name="stream-on-every-rank",
        row=4,
        thread="huggingface/datasets#5360",
        what="a stream is not split: all ranks read the same",
        injector="StreamOnEveryRank",
        expects="duplicate-data",
        severity="critical",
        ranks="all",
        target=1,
        configuration=_STREAM,
    ),
    Fault(
        name="rank-zero-everywhere",
        row=5,
        thread="k2-fsa/icefall#1616",
        what="every sampler believes that it is rank 0's",
        injector="RankZeroEverywhere",
        expects="duplicate-data",
        severity="critical",
        ranks="all",
        target=1,
    ),
    Fault(
        name="no-set-epoch",
        row=6,
        thread="pytorch/pytorch#31771",
        what="set_epoch is never called; the second epoch begins at step 20",
        injector="NoSetEpoch",
        expects="epoch-not-set",
        severity="warning",
        ranks="all",
        begins=20,
        target=10,
        configuration=_EPOCHS,
    ),
    Fault(
        name="file-order",
        row=7,
        thread="pytorch/pytorch#70103",
        what="one rank lists the data's files in another order",
        injector="OtherFileOrder",
        expects="manifest-mismatch",
        severity="warning",
        target=1,
    ),
    Fault(
        name="numpy-seed",
        row=8,
        thread="pytorch/pytorch#5059",
        what="augmentation by NumPy, seeded alike on all ranks",
        injector="SharedNumpySeed",
        expects="shared-rng",
        severity="info",
        ranks="all",
        configuration=replace(_BLOCKS, augmentation="numpy"),
    ),
    Fault(
        name="dropout-seed",
        row=9,
        thread="huggingface/transformers#31412",
        what="dropout, torch seeded alike on all ranks",
        injector="SharedTorchSeed",
        expects="shared-rng",
        severity="info",
        ranks="all",
        configuration=_DROPOUT,
    ),
    Fault(
        name="restored-rng",
        row=10,
        thread="NVIDIA/Megatron-LM#6858",
        what="half of the ranks restore one rank's generator state",
        injector="RestoredOtherState",
        expects="shared-rng",
        severity="info",
        ranks="upper half",
        begins=10,
        configuration=_DROPOUT,
    ),
    Fault(
        name="python-seed",
        row=11,
        thread="huggingface/trl#2824",
        what="sampling by Python's random, seeded alike on all ranks",
        injector="SharedPythonSeed",
        expects="shared-rng",
        severity="info",
        ranks="all",
        configuration=replace(_BLOCKS, augmentation="python"),
    ),
    Fault(
        name="forward-through-module",
        row=12,
        thread="minimind#853, openvla-oft#160, OpenTSLM#49",
        what="the forward pass goes through .module: nothing is reduced",
        injector="ForwardThroughModule",
        expects="no-reduction",
        severity="critical",
        ranks="all",
        target=HASH_INTERVAL,
    ),
    Fault(
        name="moved-model",
        row=13,
        thread="pytorch/pytorch#104336",
        what="the model is moved and moved back, and the reducer's hooks are gone",
        injector="MovedModel",
        expects="no-reduction",
        severity="critical",
        ranks="all",
        begins=10,
        target=HASH_INTERVAL,
    ),
    Fault(
        name="late-unfrozen",
        row=14,
        thread="pytorch/pytorch#69031",
        what="a part that was frozen while it was wrapped is trained, and never synchronised",
        injector="LateUnfrozen",
        expects="reduced-gradient-mismatch",
        severity="critical",
        ranks="all",
        target=HASH_INTERVAL,
    ),
    Fault(
        name="missing-gradient",
        row=15,
        thread="pytorch/pytorch#128949",
        what="on one rank the optimiser finds no gradient in one layer",
        injector="MissingGradient",
        expects="parameter-desync",
        severity="critical",
        begins=10,
        target=HASH_INTERVAL,
    ),
    Fault(
        name="no-sync-off-by-one",
        row=16,
        thread="FunASR#3472",
        what="of two micro-batches the first one reduces instead of the last",
        injector="NoSyncOffByOne",
        expects="no-reduction",
        severity="critical",
        ranks="all",
        target=HASH_INTERVAL,
        configuration=_PAIRS,
    ),
    Fault(
        name="own-initialisation",
        row=17,
        thread="pytorch/torchtitan#166",
        what="every rank initialises the wrapped model again, with its own seed",
        injector="OwnInitialisation",
        expects="parameter-desync",
        severity="critical",
        ranks="all",
        target=1,
    ),
    Fault(
        name="own-adapter",
        row=18,
        thread="OneTrainer#803",
        what="every rank initialises the low-rank adapter with its own seed",
        injector="OwnAdapter",
        expects="parameter-desync",
        severity="critical",
        ranks="all",
        target=1,
        configuration=replace(_BLOCKS, model="adapter"),
    ),
    Fault(
        name="own-buffers",
        row=19,
        thread="mmdetection#2539",
        what="batch normalisation with broadcast_buffers=False",
        injector="OwnBuffers",
        expects="buffer-desync",
        severity="warning",
        ranks="all",
        target=HASH_INTERVAL,
        configuration=replace(_BLOCKS, model="batch-norm"),
    ),
    Fault(
        name="reduction-makes-nan",
        row=20,
        thread="deepspeedai/DeepSpeed#8061",
        what="the reduction of finite gradients yields a NaN, once",
        injector="ReductionMakesNan",
        expects="nonfinite-gradient",
        severity="critical",
        ranks="all",
        begins=10,
        target=1,
    ),
    Fault(
        name="mean-of-means",
        row=21,
        thread="huggingface/transformers#34242, pytorch/torchtitan#2206",
        what="uneven token counts, and the mean of the ranks' means is minimised",
        injector="MeanOfMeans",
        expects="token-imbalance",
        severity="info",
        ranks="all",
        configuration=replace(_INSTRUCTIONS, steps=40, token_weighted=True),
    ),
    Fault(
        name="sum-instead-of-mean",
        row=22,
        thread="NeMo Automodel#3830",
        what="the reduction sums and does not divide",
        injector="SumInsteadOfMean",
        expects="reduction-scale",
        severity="critical",
        ranks="all",
        target=1,
    ),
    Fault(
        name="bf16-reduction",
        row=25,
        thread="pytorch/pytorch#106395",
        what="fp32 gradients are reduced in bf16",
        injector="LowPrecisionSum",
        expects="reduction-dtype",
        severity="warning",
        ranks="all",
        target=1,
        configuration=_AUDITED,
    ),
    Fault(
        name="changing-sum",
        row=27,
        thread="NVIDIA/nccl#1497",
        what="the sum differs between calls, alike on all ranks",
        injector="ChangingSum",
        expects="reduction-nondeterministic",
        severity="warning",
        ranks="all",
        target=1,
        configuration=_AUDITED,
    ),
    Fault(
        name="lost-end",
        row=28,
        thread="NVIDIA/nccl#1950",
        what="the end of the sum is zero",
        injector="LostEnd",
        expects="reduction-error",
        severity="critical",
        ranks="all",
        begins=10,
        target=5,
        configuration=_AUDITED,
    ),
    Fault(
        name="skipped-update",
        row=24,
        thread="WeatherGenerator#2724",
        what="rank 0 alone skips its update, as if it saw a spike",
        injector="SkippedUpdate",
        expects="parameter-desync",
        severity="critical",
        ranks="rank 0",
        begins=10,
        target=HASH_INTERVAL,
    ),
    Fault(
        name="own-sum",
        row=30,
        thread="pmodels/mpich#6538",
        what="one rank's reduced gradient differs in its last bits",
        injector="OwnSum",
        expects="reduced-gradient-mismatch",
        severity="critical",
        begins=10,
        target=HASH_INTERVAL,
    ),
    Fault(
        name="nan-gradient",
        what="one rank's gradient is NaN",
        injector="NanGradient",
        expects="nonfinite-gradient",
        severity="critical",
        begins=10,
        target=1,
    ),
    Fault(
        name="zero-gradient",
        what="one rank's gradient is zero",
        injector="ZeroGradient",
        expects="zero-gradient",
        severity="critical",
        begins=10,
        target=1,
    ),
    Fault(
        name="frozen-gradient",
        what="one rank's gradient stays the same, bit for bit",
        injector="FrozenGradient",
        expects="frozen-gradient",
        severity="critical",
        begins=10,
        target=2,
    ),
    Fault(
        name="evaluation-mode",
        what="one rank is in evaluation mode",
        injector="EvaluationMode",
        expects="mode-mismatch",
        severity="warning",
        begins=10,
        target=1,
        configuration=_DROPOUT,
    ),
    Fault(
        name="duplicated-pair",
        what="one rank reads another's share of the data",
        injector="DuplicatedPair",
        expects="duplicate-data",
        severity="critical",
        ranks="pair",
        target=10,
    ),
    Fault(
        name="replicated-data",
        what="all ranks read all of the data in the same order",
        injector="ReplicatedData",
        expects="duplicate-data",
        severity="critical",
        ranks="all",
        target=1,
    ),
    Fault(
        name="replicated-data-unseen",
        what="likewise with fingerprints=False: gradients are equal, bit for bit",
        injector="ReplicatedData",
        expects="duplicate-data",
        severity="critical",
        ranks="all",
        target=12,
        configuration=replace(_BLOCKS, fingerprints=False),
    ),
    Fault(
        name="replicated-data-dropout",
        what="likewise with dropout that differs: only the spread of the losses shows it",
        injector="ReplicatedData",
        expects="too-consistent",
        severity="warning",
        ranks="all",
        target=12,
        configuration=replace(_PAIRS_UNSEEN, dropout=0.1),
    ),
    Fault(
        name="repeated-micro-batch",
        what="one rank uses its first micro-batch twice in every step",
        injector="RepeatedMicroBatch",
        expects="overlapping-data",
        severity="warning",
        begins=10,
        target=20,
        configuration=_PAIRS,
    ),
    Fault(
        name="repeated-micro-batch-unseen",
        what="likewise with fingerprints=False",
        injector="RepeatedMicroBatch",
        expects="worker-outlier",
        severity="warning",
        begins=10,
        target=20,
        configuration=_PAIRS_UNSEEN,
    ),
    Fault(
        name="doubled-gradient",
        what="one rank's gradient is multiplied by two",
        injector="DoubledGradient",
        expects="worker-outlier",
        severity="warning",
        begins=20,
        target=25,
        configuration=_LONGER,
    ),
    Fault(
        name="sign-flip",
        what="one rank's gradient has the wrong sign",
        injector="SignFlip",
        expects="worker-outlier",
        severity="warning",
        begins=20,
        configuration=replace(_BLOCKS, steps=120),
    ),
    Fault(
        name="unshifted-labels",
        what="one rank predicts the token that it is given",
        injector="UnshiftedLabels",
        expects="worker-outlier",
        severity="warning",
        begins=40,
        target=12,
        configuration=_LONGER,
    ),
    Fault(
        name="padding-in-mean",
        what="one rank divides its loss by all positions instead of the labelled ones",
        injector="PaddingInMean",
        expects="worker-outlier",
        severity="warning",
        begins=20,
        target=12,
        configuration=_INSTRUCTIONS,
    ),
    Fault(
        name="prompt-in-loss",
        what="on one rank the prompt's tokens count in the loss",
        injector="PromptInLoss",
        expects="token-imbalance",
        severity="warning",
        begins=20,
        target=80,
        configuration=_INSTRUCTIONS,
    ),
    Fault(
        name="desynchronised",
        what="one rank's parameters are changed by a twentieth, once",
        injector="Desynchronised",
        expects="parameter-desync",
        severity="critical",
        begins=10,
        target=HASH_INTERVAL,
    ),
    Fault(
        name="skipped-reduction",
        what="in one step every rank keeps its own gradient",
        injector="SkippedReduction",
        expects="parameter-desync",
        severity="critical",
        ranks="all",
        begins=10,
        target=HASH_INTERVAL,
    ),
)

_UNSEEN = "no signal: what a worker contributes is as likely as any other"

ABSENT: tuple[Absent, ...] = (
    Absent(
        23,
        "twinkle#290",
        "a norm of 0.8 is logged as 1.13 and clipped by it",
        "needs the norm that the training script logs, which presum is not told",
    ),
    Absent(
        26,
        "pytorch/pytorch#190626",
        "fp32 reduce_dtype ignored",
        "as row 25, in FSDP2, whose reduce-scatter is audited; the benchmark trains with DDP",
    ),
    Absent(
        29,
        "marin#4903, marin#4755",
        "device order changes the sum",
        "no fault within a run: `presum audit` tells the order, `presum compare` that only the "
        "reduction differs",
    ),
    Absent(None, "", "one rank's gradient is stale by one step", _UNSEEN),
    Absent(None, "", "one rank's gradient is rounded to bf16, or loses its lowest bits", _UNSEEN),
)

ROWS = 30


def choose(names: Sequence[str]) -> tuple[Fault, ...]:
    """Faults by name or row, in the catalogue's order; all where ``names`` is empty.

    Raises UserError for what is not there, and for a row that is not injected.
    """
    chosen = {fault for name in names for fault in _find(name)}
    return tuple(fault for fault in FAULTS if not names or fault in chosen)


def _find(name: str) -> list[Fault]:
    found = [fault for fault in FAULTS if name in (fault.name, str(fault.row))]
    if found:
        return found
    for absent in ABSENT:
        if name == str(absent.row):
            raise UserError(f"--faults {name}: not injected ({absent.why})")
    raise UserError(f"--faults {name}: no such fault or row (presum faults --list shows them)")
