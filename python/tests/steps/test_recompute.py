# SPDX-License-Identifier: Apache-2.0
"""A micro-batch that is computed once more: one worker, its packets read back."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import presum
from helpers.packets import Packets
from presum.steps.held_state import held_state, written

pytestmark = pytest.mark.usefixtures("one_worker")
STEPS = 8


class Net(nn.Module):
    """Dropout, BatchNorm, a tied weight and draws of all generators."""

    calls = 0  # of all, those that are computed once more too

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.3)
        self.breaks: Callable[[torch.Tensor], torch.Tensor] = lambda x: x

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> dict[str, torch.Tensor]:
        Net.calls += 1
        x = self.drop(self.norm(self.inside(x))) + random.random() + np.random.rand()
        x = self.breaks(nn.functional.linear(x, self.inside.weight))
        return {"out": x * scale, "loss": x.square().mean()}


def train(model: DistributedDataParallel, optimizer: Any, steps: int = STEPS) -> None:
    generator = torch.Generator().manual_seed(3)
    for _ in range(steps):
        for micro in range(2):
            model.require_backward_grad_sync = micro == 1
            x = torch.randn(8, 6, generator=generator)
            found = model(x, scale=2.0)
            (found["loss"] + found["out"].abs().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


def model_and_optimizer(**ddp: Any) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    Net.calls = 0
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    model = DistributedDataParallel(Net(), **ddp)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def digest(model: nn.Module) -> list[bytes]:
    return [t.detach().numpy().tobytes() for t in model.state_dict().values()]


def answers(packets: Packets) -> list[int]:
    found = [step.values.get("recomputed") for step in packets.steps]
    return [x for x in found if x is not None]


def attach(
    model: DistributedDataParallel, optimizer: Any, run: Path, verify_every: int | None = 1
) -> presum.Monitor:
    record = presum.Record(verify_every=verify_every, quiet=True)
    return presum.attach(model, optimizer=optimizer, run=run, record=record)


def expect_refused(packets: Packets, says: str) -> None:
    assert answers(packets) == []
    assert any(says in note for note in packets.notes), packets.notes


def watch(tmp_path: Path, breaks: Any) -> None:
    model, optimizer = model_and_optimizer()
    model.module.breaks = breaks
    with attach(model, optimizer, tmp_path, verify_every=2):
        train(model, optimizer)


@pytest.mark.parametrize("ddp", [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}])
def test_the_same_gradient_comes_again_and_nothing_of_the_program_changes(
    ddp: dict[str, Any], packets: Packets, tmp_path: Path
) -> None:
    digests, states = [], []
    for verify in (None, 1, 2):
        model, optimizer = model_and_optimizer(**ddp)
        if ddp.get("static_graph"):  # its first pass must reduce
            model(torch.ones(8, 6))["loss"].backward()
            optimizer.zero_grad()
        packets.steps.clear()
        with attach(model, optimizer, tmp_path, verify):
            train(model, optimizer)
        digests.append(digest(model))
        states.append((random.random(), np.random.rand(), torch.rand(1).item()))
        expected = [] if verify is None else [0] * (STEPS // verify)
        assert answers(packets) == expected, packets.notes
    assert digests[0] == digests[1] == digests[2]
    assert len(set(states)) == 1


def test_a_wrong_activation_is_seen_and_its_parameters_are_named(
    packets: Packets, tmp_path: Path
) -> None:
    watch(tmp_path, lambda x: x + 4.0 * (torch.arange(6) == 3) if Net.calls == 6 else x)
    assert answers(packets) == [0, 2, 0, 0]
    assert "inside.weight" in packets.facts["recomputed_different"]


class Corrupting(torch.autograd.Function):
    """The gradient is wrong in one bit."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        wrong = gradient.clone()
        wrong.view(torch.int32).view(-1)[2] ^= 1 << 20
        return wrong


@pytest.mark.parametrize(("at", "answer"), [(6, 2), (8, 4)])
def test_a_flipped_bit_is_corruption_and_in_the_repetition_alone_told_apart(
    at: int, answer: int, packets: Packets, tmp_path: Path
) -> None:
    """In a gradient of the third step, or of its first repetition, after two micro-batches."""
    watch(tmp_path, lambda x: Corrupting.apply(x) if Net.calls == at else x)  # type: ignore[no-untyped-call]
    assert answers(packets) == [0, answer, 0, 0]
    assert "inside.weight" in packets.facts["recomputed_different"]


def test_noise_without_a_generator_is_not_deterministic(packets: Packets, tmp_path: Path) -> None:
    noise = iter(range(1, 1000))
    watch(tmp_path, lambda x: x * (1 + 1e-3 * next(noise)))
    assert answers(packets) == [1] * 4


def test_parameters_and_inputs_that_change_by_themselves(packets: Packets, tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    given: list[torch.Tensor] = []

    def flip(tensor: torch.Tensor) -> None:
        tensor.detach().numpy().view(np.uint8).reshape(-1)[1] ^= 64  # no version counts it

    with attach(model, optimizer, tmp_path):
        for step in range(4):
            given.append(torch.randn(8, 6))
            model(given[-1])["loss"].backward()
            if step == 1:
                flip(model.module.inside.bias)
            if step == 2:
                flip(given[-1])
            optimizer.step()
            optimizer.zero_grad()
    assert answers(packets) == [0, 3, 3, 0]


@pytest.mark.parametrize("what", ["parameter", "input"])
def test_what_a_program_writes_behind_torchs_back_is_no_fault(
    what: str, packets: Packets, tmp_path: Path
) -> None:
    model, optimizer = model_and_optimizer()
    buffer = np.ones((8, 6), np.float32)
    with attach(model, optimizer, tmp_path):
        for step in range(4):
            buffer[:] = step
            model(torch.from_numpy(buffer))["loss"].backward()
            if what == "parameter":
                model.module.inside.weight.data.mul_(0.99)
            else:
                buffer[:] = 7
            optimizer.step()
            optimizer.zero_grad()
    expect_refused(packets, "the program")


class Uneven(nn.Module):
    """Kernels whose order of additions depends on how memory lies."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(33, 17)
        self.norm = nn.LayerNorm(17)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x))  # type: ignore[no-any-return]


def test_memory_that_lies_otherwise_is_no_fault(packets: Packets, tmp_path: Path) -> None:
    model = DistributedDataParallel(Uneven())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with attach(model, optimizer, tmp_path):
        for step in range(60):
            rows, lead = 1 + step % 40, step % 4
            x = torch.randn(rows * 33 + lead)[lead:].view(rows, 33)
            out = model(x)
            (out.sum() / out.numel() + out.t()[::2].square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert answers(packets) == [0] * 60, packets.notes


class Queue(NamedTuple):
    """Nothing that is copied."""

    entries: deque[float]


class Writes(Net):
    """To what it holds."""

    def __init__(self, held: Any, write: Callable[[Any], object]) -> None:
        super().__init__()
        self.held, self.write = held, write

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> dict[str, torch.Tensor]:
        found = super().forward(x, scale=scale)
        self.write(self)
        return found


@pytest.mark.parametrize(
    ("held", "write"),
    [
        (torch.ones(()), lambda net: net.held.add_(1)),
        ([torch.ones(3)], lambda net: net.held[0].add_(1)),
        (np.ones(3), lambda net: np.add(net.held, 1, net.held)),
        (deque([1.0]), lambda net: net.held.append(1.0)),
        (Queue(deque([1.0])), lambda net: net.held.entries.append(1.0)),
        (SimpleNamespace(calls=0), lambda net: vars(net.held).update(calls=net.held.calls + 1)),
        ({}, lambda net: net.held.update({len(net.held): 1})),
        (3, lambda net: setattr(net, "held", net.held + 1)),
    ],
)
def test_a_forward_that_writes_to_what_it_holds_is_refused(
    held: Any, write: Any, packets: Packets, tmp_path: Path
) -> None:
    model = DistributedDataParallel(Writes(held, write))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with attach(model, optimizer, tmp_path):
        train(model, optimizer, 2)
    expect_refused(packets, "writes to held")


def test_an_attribute_that_is_nan_is_not_written_by_staying_so() -> None:
    model = torch.nn.Linear(2, 2)
    model.best = math.nan
    held = held_state(model)
    assert written(held) == ""
    model.best = 1.0
    assert written(held) == "best"


def test_an_error_in_it_does_not_reach_the_program(
    packets: Packets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise MemoryError("no memory")

    monkeypatch.setattr("presum.steps.recompute.tree_map", fails)
    watch(tmp_path, lambda x: x)
    assert len(packets.steps) == STEPS
    expect_refused(packets, "no memory")


def collective(x: torch.Tensor) -> torch.Tensor:
    total = x.detach().clone()
    dist.all_reduce(total)
    return x + total.mean()


def reentrant(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(torch.tanh, x, use_reentrant=True)  # type: ignore[no-any-return]


GENERATORS = [torch.Generator(), random.Random(), np.random.default_rng()]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda net: setattr(net, "breaks", collective), "collective"),
        (lambda net: setattr(net, "breaks", reentrant), "reentrant checkpoint"),
        *((lambda net, g=g: setattr(net, "own", g), "its own generator") for g in GENERATORS),
        (lambda net: net.norm.register_forward_hook(lambda *_: None), "norm has hooks"),
    ],
)
def test_what_cannot_be_repeated_is_refused(
    change: Callable[[Net], object], says: str, packets: Packets, tmp_path: Path
) -> None:
    model, optimizer = model_and_optimizer()
    change(model.module)
    with attach(model, optimizer, tmp_path):
        train(model, optimizer, 2)
    expect_refused(packets, says)


@pytest.mark.skipif(torch.__version__ < "2.9", reason="torch 2.8 cannot go back through this norm")
def test_several_forwards_in_one_pass_are_refused(packets: Packets, tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    with attach(model, optimizer, tmp_path):
        for _ in range(3):
            loss = model(torch.ones(8, 6))["loss"] + model(torch.zeros(8, 6))["loss"]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    expect_refused(packets, "several forward passes")
