# SPDX-License-Identifier: Apache-2.0
"""Kinds of models, and of what they return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from shapes.training import BACKEND, WIDTH, Shape, Training, network


def train(
    run: Training, model: nn.Module, loss_of: Callable[..., torch.Tensor], **ddp: Any
) -> None:
    """One pass a step, with ``loss_of(net, x)``."""
    model, optimizer = run.trained(model, **ddp)
    torch.manual_seed(run.rank)
    for x in run.batches():
        run.step(model, optimizer, lambda net, x=x: loss_of(net, x))


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
    "a-dataclass": (Output, lambda found: found.loss),
    "several": (
        lambda loss, out: {"nll": loss, "penalty": out.abs().mean()},
        lambda found: found["nll"] + 0.1 * found["penalty"],
    ),
}


def returning(put: Any, take: Any) -> Callable[[Training], None]:
    return lambda run: train(run, Returning(put), lambda net, x: take(net(x)))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(WIDTH, 16), nn.Linear(16, 1)
        self.middle = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.middle, self.first(x), use_reentrant=False)
        return self.last(x)


def checkpointed(run: Training) -> None:
    train(run, Checkpointed(), lambda net, x: net(x).square().mean())


def compiled_inside(run: Training) -> None:
    inside = network()
    inside[0].compile(backend=BACKEND)
    train(run, inside, lambda net, x: net(x).square().mean())


class Marked(torch.Tensor):
    """A class of the program's own."""


class TakesAny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.stack([part.mean(0) for part in x.unbind()]) if x.is_nested else x
        return self.inside(rows.as_subclass(torch.Tensor))


def nested(x: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor([x[: 1 + place] for place in range(len(x))])


def given(made: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Training], None]:
    """Inputs that presum does not read."""
    return lambda run: train(run, TakesAny(), lambda net, x: net(made(x)).square().mean())


SHAPES = [
    *(Shape(f"loss-in-{name}", returning(*how)) for name, how in RETURNED.items()),
    Shape("checkpointed", checkpointed),
    Shape("compiled-inside", compiled_inside),
    Shape("nested-inputs", given(nested)),
    Shape("inputs-of-another-class", given(lambda x: x.as_subclass(Marked))),
]
