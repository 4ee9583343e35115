# SPDX-License-Identifier: Apache-2.0
"""Parameters, buffers and updates that diverge."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm

from faults.training import Batch, Training


def _gradients(parameters: Iterable[nn.Parameter]) -> list[Any]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


class OwnInitialization(Training):
    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        ddp = super().wrap(model)
        for module in model.modules():
            reset = getattr(module, "reset_parameters", None)
            if reset is not None:
                reset()
        return ddp


class OwnAdapter(Training):
    """Every rank initializes the adapter separately."""

    right_in = ("fsdp2",)  # each rank initializes its own part

    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        ddp = super().wrap(model)
        adapts = self.configuration.model == "adapter"
        part = "adapter.down.weight" if adapts else f"{self.part}.weight"
        nn.init.normal_(model.get_parameter(part), std=0.1)
        return ddp


class OwnBuffers(Training):
    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # newer torch has another name for it
            return DistributedDataParallel(model, broadcast_buffers=False)


class OwnStatistics(OwnBuffers):
    """Every rank restarts the running statistics from its own data, and keeps them."""

    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        ddp = super().wrap(model)
        for part in self._normal(model):
            part.momentum = 0.0
        return ddp

    def before_step(self) -> None:
        if self.step != self.case.begins:
            return
        for part in self._normal(self.model):
            part.running_mean.add_(0.01 * self.rank)

    def _normal(self, model: nn.Module) -> list[Any]:
        return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


class MissingGradient(Training):
    def update(self) -> None:
        if self.at_fault:
            self.model.get_submodule(self.part).zero_grad()
        super().update()


class SkippedUpdate(Training):
    def update(self) -> None:
        if self.step != self.case.begins or self.rank != 0:
            super().update()


class Desynchronized(Training):
    def before_step(self) -> None:
        if self.step == self.case.begins and self.is_culprit:
            for parameter in self.model.parameters():
                parameter.mul_(1.05)


class LoadedOnRankZero(Training):
    def before_step(self) -> None:
        if self.step == 1:
            self._saved = [p.detach().clone() for p in self.model.parameters()]
        if self.step == self.case.begins and self.rank == 0:
            for parameter, saved in zip(self.model.parameters(), self._saved, strict=True):
                parameter.copy_(saved)


class AverageNotTakenBack(Training):
    def before_step(self) -> None:
        if self.step == 0:
            self._average = [p.detach().clone() for p in self.model.parameters()]
        for parameter, average in zip(self.model.parameters(), self._average, strict=True):
            average.lerp_(parameter, 0.1)
            if self.step == self.case.begins and self.rank == 0:
                parameter.copy_(average)


class LostOptimizerState(Training):
    def before_step(self) -> None:
        if self.step == self.case.begins and self.is_culprit:
            self.optimizer.state.clear()


class OwnClip(Training):
    def update(self) -> None:
        limit = 0.05 if self.at_fault else 0.5
        for gradient in _gradients(self.model.parameters()):
            gradient.clamp_(-limit / 10, limit / 10)
        super().update()


class NormOfAPart(Training):
    def _norm_of_part(self) -> Tensor:
        """The norm to clip by."""
        return get_total_norm(_gradients([*self.model.parameters()][self.rank % 2 :: 2]))

    def update(self) -> None:
        clip_grads_with_norm_(self.model.parameters(), 0.1, self._norm_of_part())
        super().update()


class MeanOfNorms(NormOfAPart):
    def _norm_of_part(self) -> Tensor:
        norm = super()._norm_of_part()
        dist.all_reduce(norm)
        return norm / self.workers


class CountedTwice(NormOfAPart):
    def _norm_of_part(self) -> Tensor:
        return get_total_norm(2 * _gradients(self.model.parameters()))


class NormOfAShard(NormOfAPart):
    def _norm_of_part(self) -> Tensor:
        found = _gradients(self.model.parameters())
        return get_total_norm([gradient.to_local() for gradient in found])


class ClippedWhileScaled(Training):
    def begin(self) -> None:
        self.scaler = GradScaler("cpu")

    def backward(self, loss: Tensor) -> None:
        super().backward(self.scaler.scale(loss))

    def update(self) -> None:
        clip_grad_norm_(self.model.parameters(), 0.1)
        self.scaler.step(self.optimizer)
        self.scaler.update()


class NormToldInPart(Training):
    calls_presum = True

    def update(self) -> None:
        part = self.model.get_submodule(self.part)
        self.monitor.grad_norm(get_total_norm(_gradients(part.parameters())))
        super().update()


class OneNormOfItsOwn(NormOfAPart):
    def _norm_of_part(self) -> Tensor:
        of = self.model.get_submodule(self.part) if self.at_fault else self.model
        return get_total_norm(_gradients(of.parameters()))


class SpikeOfItsOwn(Training):
    """One rank skips every fifth update because of its own loss."""

    def update(self) -> None:
        if not (self.at_fault and self.step % 5 == 0):
            super().update()


class LateParameter(Training):
    right_in = ("by-hand",)

    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        ddp = super().wrap(model)
        head: Any = model.get_submodule("head")
        head.late = nn.Parameter(torch.zeros_like(head.bias))
        head.register_forward_hook(lambda part, _, output: output + part.late)
        return ddp


class OwnNoise(Training):
    def update(self) -> None:
        super().update()
        if self.begun:
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.add_(torch.randn_like(parameter), alpha=1e-4)


class FlippedBit(Training):
    def before_step(self) -> None:
        if self.step == self.case.begins and self.is_culprit:
            weight = self.model.get_parameter("head.weight").view(-1)
            weight[:1].view(torch.int32).bitwise_xor_(1 << 20)


class OneUpdateMore(Training):
    def update(self) -> None:
        super().update()
        if self.step == self.case.begins and self.is_culprit:
            super().update()


class PrunedOnOneRank(Training):
    def before_step(self) -> None:
        if self.step == self.case.begins and self.is_culprit:
            weight = self.model.get_parameter("head.weight")
            weight[weight.abs() < weight.abs().median()] = 0


class MaxNormOfItsOwn(Training):
    def update(self) -> None:
        limit = 0.05 if self.at_fault else 0.5
        clip_grad_norm_(self.model.parameters(), limit)
        super().update()


class FrozenBase(Training):
    right_in = ("fsdp2",)  # no other rank has this part

    def begin(self) -> None:
        for parameter in self.model.parameters():
            if self.is_culprit and not parameter.requires_grad:
                parameter.add_(0.01)


class AverageOfItsOwn(Training):
    calls_presum = True
    right_in = ("fsdp2",)  # no other rank has this part

    def begin(self) -> None:
        self._average = [p.detach().clone() for p in self.model.parameters()]
        self.monitor.watch("average", self._average)

    def update(self) -> None:
        super().update()
        if self.step == self.case.begins and self.is_culprit:
            return
        with torch.no_grad():
            for parameter, average in zip(self.model.parameters(), self._average, strict=True):
                average.lerp_(parameter, 0.1)


class StaleRollout(Training):
    """The weights for rollouts are one step behind, in one part of the model."""

    calls_presum = True

    def begin(self) -> None:
        self._rollout = {name: p.detach().clone() for name, p in self.ddp.named_parameters()}

    def before_step(self) -> None:
        for name, parameter in self.ddp.named_parameters():
            if not self.begun or self.part not in name:
                self._rollout[name] = parameter.detach().to(torch.bfloat16)
        self.monitor.compare("rollout", self._rollout)


class LayerLeftOut(Training):
    def optimizer_of(self, trained: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        left_out = {id(p) for p in self.model.get_submodule(self.part).parameters()}
        return super().optimizer_of(p for p in trained if id(p) not in left_out)


class RoundedAway(Training):
    def build(self) -> nn.Module:
        return super().build().to(torch.bfloat16)

    def prepare(self, batch: Batch, micro: int) -> Batch:
        batch = super().prepare(batch, micro)
        floats = {name: x for name, x in batch.items() if x.is_floating_point()}
        return batch | {name: x.to(torch.bfloat16) for name, x in floats.items()}

    def optimizer_of(self, trained: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(trained, lr=1e-5)


class TwoOptimizers(Training):
    """A part of the model is in a second optimizer too."""

    def begin(self) -> None:
        part = self.model.get_submodule(self.part)
        self._second = torch.optim.SGD(part.parameters(), lr=1e-3)

    def update(self) -> None:
        super().update()
        self._second.step()


class UntiedOnOneRank(Training):
    """Two parameters are one, except on one rank after the model is wrapped."""

    right_in = ("fsdp2", "hsdp", "by-hand")  # FSDP2 ties them again in the first forward

    def build(self) -> nn.Module:
        model = super().build()
        by_shape: dict[torch.Size, str] = {}
        for name, parameter in model.named_parameters():
            first = by_shape.setdefault(parameter.shape, name)
            if first != name:
                self._name = name
                self._set(model, model.get_parameter(first))
                return model
        raise AssertionError("no two parameters of equal shape")

    def _set(self, model: nn.Module, parameter: nn.Parameter) -> None:
        part, _, name = self._name.rpartition(".")
        setattr(model.get_submodule(part), name, parameter)

    def before_step(self) -> None:
        if self.step == self.case.begins and self.is_culprit:
            self._set(self.model, nn.Parameter(self.model.get_parameter(self._name).clone()))
