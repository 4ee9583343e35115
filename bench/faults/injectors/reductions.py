# SPDX-License-Identifier: Apache-2.0
"""Reductions that are missing, or compute something else."""

from __future__ import annotations

import contextlib
import math
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from faults.training import Batch, Training

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch.futures import Future


class ForwardThroughModule(Training):
    right_in = (
        "fsdp2",
        "hsdp",
        "by-hand",
        "lightning",
    )  # nothing is wrapped, or not by the program

    def forward(self, batch: Batch) -> Tensor:
        return self.model(**batch)["loss"]  # type: ignore[no-any-return]


class MovedModel(Training):
    """The parameters are moved and moved back, which makes autograd drop the reducer's hooks.

    On a single device, a change of dtype has the same effect as a change of device.
    """

    right_in = ("by-hand",)

    def before_step(self) -> None:
        if self.step == self.case.begins:
            self.ddp.double().float()


class LateUnfrozen(Training):
    """A part of the model is frozen while it is wrapped, but trained afterwards."""

    right_in = ("fsdp2", "hsdp", "by-hand")

    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        part = model.get_submodule(self.part).requires_grad_(False)
        ddp = super().wrap(model)
        part.requires_grad_(True)
        return ddp


class NoSyncOffByOne(Training):
    def synchronizes(self, micro: int) -> bool:
        return micro == 0


class Hooked(Training):
    """The reduction is a communication hook; without a fault, it computes the mean."""

    group: Any = None  # all ranks

    def begin(self) -> None:
        if self.configuration.way != "by-hand":
            self.ddp.register_comm_hook(None, lambda _, bucket: self.reduce(bucket.buffer()))

    def mean_of(self, gradients: Tensor) -> Tensor:
        return self.reduce(gradients).wait()

    def reduce(self, buffer: Tensor) -> Future[Tensor]:
        """The sum over the ranks, divided by their number."""
        work: Any = dist.all_reduce(buffer, group=self.group, async_op=True)
        members = dist.get_world_size(self.group)
        future: Future[Tensor] = work.get_future().then(
            lambda done: self.finish(done.value()[0].div_(members))
        )
        return future

    def finish(self, mean: Tensor) -> Tensor:
        """The mean as this rank uses it."""
        return mean


class ReductionMakesNan(Hooked):
    def finish(self, mean: Tensor) -> Tensor:
        if self.step == self.case.begins:
            mean[0] = math.nan
        return mean


class SumInsteadOfMean(Hooked):
    def finish(self, mean: Tensor) -> Tensor:
        return mean.mul_(self.workers)


class ReducedInDtype(Hooked):
    """Gradients are rounded to another dtype and added in it."""

    def reduce(self, buffer: Tensor) -> Future[Tensor]:
        whole = buffer.dtype
        reduced = super().reduce(buffer.to(getattr(torch, self.case.settings["dtype"])))
        return reduced.then(lambda done: done.value().to(whole))


class LostEnd(Hooked):
    def finish(self, mean: Tensor) -> Tensor:
        if self.begun:
            mean[-max(1, len(mean) // 8) :] = 0
        return mean


class ChangingSum(Training):
    """The same sum has different last bits each time, equal on all ranks."""

    def run(self, folder: Path, *, tick: Callable[[], None]) -> None:
        names = ("all_reduce", "reduce_scatter_single", "reduce_scatter_tensor")  # DDP's, FSDP2's
        self.calls = 0
        with contextlib.ExitStack() as undone:
            for name in names:
                if hasattr(dist, name):
                    changing = partial(self._changing, getattr(dist, name))
                    undone.enter_context(patch.object(dist, name, changing))
            super().run(folder, tick=tick)

    def _changing(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        work: Any = original(*args, **kwargs)
        if work is not None:
            work.wait()
        total = kwargs.get("output", args[0] if args and work is not None else None)
        if total is not None and total.is_floating_point():
            self.calls += 1
            total[self.calls % len(total) :: 7] *= 1 + 2.0**-22
        return work


class LossReducedInPlace(Training):
    def forward(self, batch: Batch) -> Tensor:
        loss = super().forward(batch)
        dist.all_reduce(loss)
        return loss / self.workers


class ReducedInTheLoss(Training):
    def forward(self, batch: Batch) -> Tensor:
        loss = super().forward(batch)
        total = loss * 1.0
        dist.all_reduce(total)
        return loss * loss / total * self.workers


class OwnSum(Hooked):
    def finish(self, mean: Tensor) -> Tensor:
        if self.at_fault:
            mean.copy_(torch.nextafter(mean, torch.tensor(math.inf)))
        return mean


class DividedTwice(Hooked):
    def finish(self, mean: Tensor) -> Tensor:
        return mean.div_(self.workers)


def _half_of(training: Training) -> Any:
    """The process group of this rank's half of the ranks."""
    half = training.workers // 2
    groups = [dist.new_group(range(half)), dist.new_group(range(half, training.workers))]
    return groups[training.rank // half]


class HalvesApart(Hooked):
    """Each half of the ranks computes its own sum, in the wrong process group."""

    def begin(self) -> None:
        self.group = _half_of(self)
        super().begin()


class HookThatKeeps(Hooked):
    """A communication hook returns every rank's own gradient, in one step or in all."""

    def reduce(self, buffer: Tensor) -> Future[Tensor]:
        over = self.case.settings.get("once") and self.step > self.case.begins
        if over or not self.begun:
            return super().reduce(buffer)
        future: Future[Tensor] = torch.futures.Future()
        future.set_result(buffer)
        return future


class WrittenDuringTheSum(Hooked):
    def reduce(self, buffer: Tensor) -> Future[Tensor]:
        if self.at_fault:
            buffer[: max(1, len(buffer) // 16)] *= 3
        return super().reduce(buffer)


class WeightedByRank(Hooked):
    def reduce(self, buffer: Tensor) -> Future[Tensor]:
        if self.begun:
            buffer.mul_(2 * (self.rank + 1) / (self.workers + 1))
        return super().reduce(buffer)


class NoSyncLeft(Training):
    def synchronizes(self, micro: int) -> bool:
        return not self.begun


class StaleSum(Hooked):
    def finish(self, mean: Tensor) -> Tensor:
        before, self._last_mean = getattr(self, "_last_mean", None), mean.clone()
        if self.at_fault and before is not None and before.shape == mean.shape:
            mean.copy_(before)
        return mean


class LastBucketKept(Hooked):
    def reduce(self, buffer: Tensor) -> Future[Tensor]:
        own = buffer[-len(buffer) // 4 :].clone()
        if not self.begun:
            return super().reduce(buffer)

        def keep(done: Future[Tensor]) -> Tensor:
            mean = done.value()
            mean[-len(own) :] = own
            return mean

        return super().reduce(buffer).then(keep)


class Scatter:
    """A reduce-scatter with FSDP2's interface."""

    def __init__(self, reduce: Callable[[Tensor, Tensor, Any, Any], None]) -> None:
        self._reduce = reduce

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        assert not async_op
        self._reduce(output_tensor, input_tensor, group, op)


class OneLayer(Training):
    """A communication hook (for FSDP2 a reduce-scatter) that computes the mean, and changes one
    layer."""

    def begin(self) -> None:
        layer: Any = self.model.get_submodule(self.part)
        if self.configuration.shards:
            layer.set_custom_reduce_scatter(Scatter(self._scatter))
        else:
            self._layer = {id(p) for p in layer.parameters()}
            self.ddp.register_comm_hook(None, lambda _, bucket: self._reduce(bucket))

    def _scatter(self, shard: Tensor, whole: Tensor, group: Any, op: Any) -> None:
        instead = self.before(whole) if self.begun else whole
        reduce = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)  # torch 2.13
        reduce(shard, whole, op, group)
        if self.begun:
            self.after(shard, instead.view(group.size(), -1)[group.rank()])

    def _reduce(self, bucket: Any) -> Future[Tensor]:
        pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
        layer = [gradient for p, gradient in pairs if self.begun and id(p) in self._layer]
        instead = [self.before(gradient) for gradient in layer]
        work: Any = dist.all_reduce(bucket.buffer(), async_op=True)

        def finish(done: Future[list[Tensor]]) -> Tensor:
            mean = done.value()[0].div_(self.workers)
            for gradient, other in zip(layer, instead, strict=True):
                self.after(gradient, other)
            return mean

        future: Future[Tensor] = work.get_future().then(finish)
        return future

    def before(self, own: Tensor) -> Tensor:
        """Takes a gradient of the layer, and may change it. The result is passed to ``after`` with
        the mean."""
        return own.clone()

    def after(self, mean: Tensor, other: Tensor) -> None:
        """Change the layer's mean in place."""


class LayerSummed(OneLayer):
    def after(self, mean: Tensor, other: Tensor) -> None:
        mean.mul_(self.workers)


class LayerScaled(OneLayer):
    """One rank's part is multiplied before the sum."""

    def before(self, own: Tensor) -> Tensor:
        return own.mul_(self.case.settings["factor"]) if self.is_culprit else own


class LayerKept(OneLayer):
    def after(self, mean: Tensor, other: Tensor) -> None:
        mean.copy_(other)


class LayerInHalves(OneLayer):
    def begin(self) -> None:
        self._half = _half_of(self)
        super().begin()

    def before(self, own: Tensor) -> Tensor:
        mean = own.clone()
        dist.all_reduce(mean, group=self._half)
        return mean.div_(self.workers // 2)

    def after(self, mean: Tensor, other: Tensor) -> None:
        mean.copy_(other)
