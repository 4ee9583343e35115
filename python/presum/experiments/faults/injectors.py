# SPDX-License-Identifier: Apache-2.0
"""One class a fault: a clean run with one method changed."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from presum.experiments.faults import data, models
from presum.experiments.faults.training import Batch, Training

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch.futures import Future

# ---- data


class SamplerSeedTimesRank(Training):
    """Every rank shuffles with its own seed."""

    def sampler_seed(self) -> int:
        return self.seed * self.rank


class SamplerSeedPlusRank(Training):
    """Likewise, with neighbouring seeds."""

    def sampler_seed(self) -> int:
        return self.seed + self.rank


class SplitByNode(Training):
    """The stream is cut by node, and two ranks of a node read the same."""

    def dataset(self) -> Any:
        return data.Stream(self.records(), first=self.rank // 2, step=self.workers // 2)


class StreamOnEveryRank(Training):
    """The stream does not know of ranks."""

    def dataset(self) -> Any:
        return data.Stream(self.records(), first=0, step=1)


class RankZeroEverywhere(Training):
    """Every sampler believes that it is rank 0's."""

    def share(self) -> tuple[int, int]:
        return self.workers, 0


class ReplicatedData(Training):
    """Every rank reads all of the data in the same order."""

    def share(self) -> tuple[int, int]:
        return 1, 0


class DuplicatedPair(Training):
    """One rank reads another's share."""

    def share(self) -> tuple[int, int]:
        first, second = self.roles.pair
        return self.workers, first if self.rank == second else self.rank


class NoSetEpoch(Training):
    """Every epoch has the order of the first."""

    def begin_epoch(self, sampler: Any, epoch: int) -> None:
        pass


class OtherFileOrder(Training):
    """One rank lists the files in another order."""

    def dataset(self) -> Any:
        return data.Files(self.records(), reverse=self.is_culprit)


class RepeatedMicroBatch(Training):
    """One rank uses its first micro-batch of a step for all of them."""

    def prepare(self, batch: Batch, micro: int) -> Batch:
        if micro == 0:
            self._first = batch
        return self._first if self.begun and self.is_culprit else batch


# ---- random numbers


class SharedNumpySeed(Training):
    """NumPy is seeded alike on all ranks."""

    def generator_seed(self, generator: str) -> int:
        return self.seed if generator == "numpy" else super().generator_seed(generator)


class SharedTorchSeed(Training):
    """torch is seeded alike on all ranks."""

    def generator_seed(self, generator: str) -> int:
        return self.seed if generator == "torch" else super().generator_seed(generator)


class SharedPythonSeed(Training):
    """Python's random is seeded alike on all ranks."""

    def generator_seed(self, generator: str) -> int:
        return self.seed if generator == "python" else super().generator_seed(generator)


class RestoredOtherState(Training):
    """Half of the ranks restore one rank's generator state."""

    def before_step(self) -> None:
        if self.step == self.case.begins:
            state = torch.get_rng_state()
            dist.broadcast(state, src=self.roles.upper_half[0])
            if self.rank in self.roles.upper_half:
                torch.set_rng_state(state)


# ---- the reduction


class ForwardThroughModule(Training):
    """The forward pass goes around the wrapper."""

    def forward(self, batch: Batch) -> Tensor:
        return self.model(**batch)["loss"]  # type: ignore[no-any-return]


class MovedModel(Training):
    """The parameters are moved and moved back, which makes autograd drop the reducer's hooks.

    On one device a change of dtype does the same as one of device.
    """

    def before_step(self) -> None:
        if self.step == self.case.begins:
            self.ddp.double().float()


class LateUnfrozen(Training):
    """A part of the model is frozen while it is wrapped, and trained nevertheless."""

    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        part = model.get_submodule("mlp").requires_grad_(False)
        ddp = super().wrap(model)
        part.requires_grad_(True)
        return ddp


class NoSyncOffByOne(Training):
    """The first micro-batch reduces instead of the last."""

    def synchronises(self, micro: int) -> bool:
        return micro == 0


class Hooked(Training):
    """The reduction is a communication hook; without a fault, the mean."""

    def begin(self) -> None:
        self.ddp.register_comm_hook(None, lambda _, bucket: self.reduce(bucket.buffer()))

    def reduce(self, buffer: Tensor) -> Future[Tensor]:
        """The sum over the workers, divided."""
        work: Any = dist.all_reduce(buffer, async_op=True)
        future: Future[Tensor] = work.get_future().then(
            lambda done: self.finish(done.value()[0].div_(self.workers))
        )
        return future

    def finish(self, mean: Tensor) -> Tensor:
        """The mean as this worker uses it."""
        return mean


class ReductionMakesNan(Hooked):
    """The mean of finite gradients is NaN."""

    def finish(self, mean: Tensor) -> Tensor:
        if self.step == self.case.begins:
            mean[0] = math.nan
        return mean


class SumInsteadOfMean(Hooked):
    """Nobody divides."""

    def finish(self, mean: Tensor) -> Tensor:
        return mean.mul_(self.workers)


class LowPrecisionSum(Hooked):
    """Gradients are rounded to bf16, and added so."""

    def reduce(self, buffer: Tensor) -> Future[Tensor]:
        whole = buffer.dtype
        reduced = super().reduce(buffer.bfloat16())
        return reduced.then(lambda done: done.value().to(whole))


class LostEnd(Hooked):
    """The end of a sum comes out as zeros."""

    def finish(self, mean: Tensor) -> Tensor:
        if self.begun:
            mean[-max(1, len(mean) // 64) :] = 0
        return mean


class ChangingSum(Training):
    """The same sum has other last bits each time, the same on all ranks."""

    def run(self, folder: Path, *, tick: Callable[[], None]) -> None:
        original, self.calls = dist.all_reduce, 0

        def changing(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            work: Any = original(tensor, *args, **kwargs)
            if work is not None and tensor.is_floating_point():
                work.wait()
                self.calls += 1
                tensor[self.calls % len(tensor) :: 7] *= 1 + 2.0**-22
            return work

        dist.all_reduce = changing
        try:
            super().run(folder, tick=tick)
        finally:
            dist.all_reduce = original


class OwnSum(Hooked):
    """One rank's mean differs in the last bits."""

    def finish(self, mean: Tensor) -> Tensor:
        if self.begun and self.is_culprit:
            mean.copy_(torch.nextafter(mean, torch.tensor(math.inf)))
        return mean


class SkippedReduction(Hooked):
    """In one step every rank keeps its own gradient."""

    def reduce(self, buffer: Tensor) -> Future[Tensor]:
        if self.step != self.case.begins:
            return super().reduce(buffer)
        future: Future[Tensor] = torch.futures.Future()
        future.set_result(buffer)
        return future


# ---- parameters and buffers


class OwnInitialisation(Training):
    """Every rank initialises the model again after it was wrapped, with its own seed."""

    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        ddp = super().wrap(model)
        for module in model.modules():
            reset = getattr(module, "reset_parameters", None)
            if reset is not None:
                reset()
        return ddp


class OwnAdapter(Training):
    """Every rank initialises the adapter alone, likewise."""

    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        ddp = super().wrap(model)
        nn.init.normal_(model.get_parameter("adapter.down.weight"), std=0.1)
        return ddp


class OwnBuffers(Training):
    """Buffers are not broadcast."""

    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # newer torch calls it otherwise
            return DistributedDataParallel(model, broadcast_buffers=False)


class MissingGradient(Training):
    """On one rank the optimiser finds no gradient in one layer."""

    def update(self) -> None:
        if self.begun and self.is_culprit:
            self.model.get_submodule("attention").zero_grad()
        super().update()


class SkippedUpdate(Training):
    """Rank 0 alone skips an update, as if it saw a spike."""

    def update(self) -> None:
        if self.step != self.case.begins or self.rank != 0:
            super().update()


class Desynchronised(Training):
    """One rank's parameters are changed by a twentieth, once."""

    def before_step(self) -> None:
        if self.step == self.case.begins and self.is_culprit:
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.mul_(1.05)


# ---- one worker's gradient and loss


class ScaledLoss(Training):
    """One rank's loss is multiplied before its backward pass."""

    factor = 1.0

    def backward(self, loss: Tensor) -> None:
        super().backward(loss * self.factor if self.begun and self.is_culprit else loss)


class DoubledGradient(ScaledLoss):
    """By two."""

    factor = 2.0


class SignFlip(ScaledLoss):
    """By minus one."""

    factor = -1.0


class ZeroGradient(ScaledLoss):
    """By zero."""

    factor = 0.0


class NanGradient(ScaledLoss):
    """By NaN."""

    factor = math.nan


class FrozenGradient(Training):
    """One rank's gradient stays what it was when the fault began."""

    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        ddp = super().wrap(model)
        if self.is_culprit:
            for parameter in model.parameters():
                parameter.register_hook(self._keeper())  # type: ignore[no-untyped-call]
        return ddp

    def _keeper(self) -> Any:
        kept: list[Tensor] = []

        def keep(gradient: Tensor) -> Tensor:
            if self.begun and not kept:
                kept.append(gradient.clone())
            return kept[0] if kept else gradient

        return keep


class UnshiftedLabels(Training):
    """One rank predicts the token that it is given."""

    def prepare(self, batch: Batch, micro: int) -> Batch:
        if self.begun and self.is_culprit:
            batch["labels"] = batch["labels"].roll(1, dims=1)
        return super().prepare(batch, micro)


class PromptInLoss(Training):
    """On one rank the prompt's tokens count in the loss."""

    def prepare(self, batch: Batch, micro: int) -> Batch:
        if self.begun and self.is_culprit:
            padding = batch["attention_mask"] == 0
            batch["labels"] = batch["input_ids"].masked_fill(padding, models.IGNORED)
        return super().prepare(batch, micro)


class PaddingInMean(Training):
    """One rank divides its loss by all positions instead of the labelled ones."""

    def before_step(self) -> None:
        if self.begun and self.is_culprit:
            self.model.counts_padding = True  # type: ignore[assignment]


class MeanOfMeans(Training):
    """Every rank's mean counts the same, whatever its number of tokens."""

    def weigh(self, loss: Tensor, batch: Batch) -> Tensor:
        return loss


class EvaluationMode(Training):
    """One rank stays in evaluation mode."""

    def before_step(self) -> None:
        if self.begun and self.is_culprit:
            self.ddp.eval()
