# SPDX-License-Identifier: Apache-2.0
"""Kinds of models, and of what they return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from shapes.training import BACKEND, WIDTH, Shape, Training, network, sgd


def train(
    run: Training, model: nn.Module, loss_of: Callable[..., torch.Tensor], **ddp: Any
) -> None:
    """One pass a step, with ``loss_of(net, x)``."""
    model = run.wrap(model, **ddp)
    optimizer = sgd(model)
    run.watch(model, optimizer)
    torch.manual_seed(run.rank)
    for x in run.batches():
        run.expect(model, [lambda net, x=x: loss_of(net, x)])
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()


class Returning(nn.Module):
    """Its loss, in something."""

    def __init__(self, put: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.inside = network(out=2)
        self.put = put

    def forward(self, x: torch.Tensor) -> Any:
        out = self.inside(x)
        return self.put(out.square().mean(), out)


@dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor


RETURNED: dict[str, tuple[Any, Any]] = {
    "a-dict": (lambda loss, out: {"logits": out, "loss": loss}, lambda found: found["loss"]),
    "a-tuple": (lambda loss, out: (loss, out), lambda found: found[0]),
    "a-list": (lambda loss, out: [out, loss], lambda found: found[1]),
    "a-dataclass": (Output, lambda found: found.loss),
    "several": (
        lambda loss, out: {"nll": loss, "penalty": out.abs().mean()},
        lambda found: found["nll"] + 0.1 * found["penalty"],
    ),
}


def returning(put: Any, take: Any) -> Callable[[Training], None]:
    return lambda run: train(run, Returning(put), lambda net, x: take(net(x)))


def batch_norm(run: Training) -> None:
    inside = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    torch.manual_seed(0)
    train(run, inside, lambda net, x: net(x).square().mean())


def frozen(run: Training) -> None:
    inside = network()
    inside[0].requires_grad_(False)
    train(run, inside, lambda net, x: net(x).square().mean())


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter, as LoRA begins: one half is zero."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down = nn.Linear(WIDTH, 2, bias=False)
        self.up = nn.Linear(2, WIDTH, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def low_rank(run: Training) -> None:
    train(run, Adapted(), lambda net, x: net(x).square().mean())


class Experts(nn.Module):
    """Each batch goes through one of them; the others have no gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.gate(x).mean(0).softmax(0)
        chosen = int(weights.argmax())
        return weights[chosen] * self.experts[chosen](x)


def experts(run: Training) -> None:
    train(run, Experts(), lambda net, x: net(x).square().mean(), find_unused_parameters=True)


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(WIDTH, 16), nn.Linear(16, 1)
        self.middle = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.Tanh())
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.middle, self.first(x), use_reentrant=self.reentrant)
        return self.last(x)


def checkpointed(*, reentrant: bool) -> Callable[[Training], None]:
    return lambda run: train(
        run, Checkpointed(reentrant=reentrant), lambda net, x: net(x).square().mean()
    )


def compiled_inside(run: Training) -> None:
    inside = network()
    inside[0].compile(backend=BACKEND)
    train(run, inside, lambda net, x: net(x).square().mean())


class ReturnsParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = network()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inside(x) * self.temperature, self.temperature


def returns_parameter(run: Training) -> None:
    train(run, ReturnsParameter(), lambda net, x: net(x)[0].square().mean())


class MixedDtypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wide = nn.Linear(WIDTH, 8, dtype=torch.float64)
        self.narrow = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(self.wide(x.double()).float())


def mixed_dtypes(run: Training) -> None:
    train(run, MixedDtypes(), lambda net, x: net(x).square().mean())


def distillation(run: Training) -> None:
    """A teacher that is a moving average of the student, in another module."""
    teacher = network(out=3).requires_grad_(False)

    def loss_of(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = teacher(x).softmax(-1)
        return functional.cross_entropy(net(x), wanted)

    train(run, network(out=3), loss_of)


SHAPES = [
    *(Shape(f"loss-in-{name}", returning(*how)) for name, how in RETURNED.items()),
    Shape("batch-norm", batch_norm),
    Shape("frozen", frozen),
    Shape("low-rank", low_rank),
    Shape("experts", experts),
    Shape("checkpointed", checkpointed(reentrant=False)),
    Shape("checkpointed-reentrant", checkpointed(reentrant=True)),
    Shape("compiled-inside", compiled_inside),
    Shape("returns-parameter", returns_parameter),
    Shape("mixed-dtypes", mixed_dtypes),
    Shape("distillation", distillation),
]
