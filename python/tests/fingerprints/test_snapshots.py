# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import struct
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from observers import make_observer
from packet_decoder import decode
from presum.fingerprints.snapshots import Snapshots, steps_of

HOST = torch.device("cpu")


OTHER = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)


def snapshots_of(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None, *, whole: bool = True
) -> Snapshots:
    names = [(name, p.numel(), "") for name, p in model.named_parameters()]
    observer = make_observer(names)
    optimizers = [] if optimizer is None else [weakref.ref(optimizer)]
    parameters = [weakref.ref(p) for p in model.parameters()]
    return Snapshots(observer, parameters, optimizers, HOST, tells_whole=whole)


def sections(packet: bytes | None) -> dict[int, bytes]:
    assert packet is not None
    return decode(packet).sections


def head(packet: bytes | None) -> tuple[Any, ...]:
    return struct.unpack("<IQdd", sections(packet)[21])


def groups(packet: bytes | None) -> list[tuple[Any, ...]]:
    body = sections(packet)[22]
    found, at = [], 0
    while at < len(body):
        group = struct.unpack_from("<QQdQQIHH", body, at)
        at += 48
        sketch = struct.unpack_from("<256f", body, at) if group[6] else ()
        at += 4 * len(sketch)
        found.append(group + sketch)
    return found


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        sum(p.sum() for p in model.parameters()).backward()  # type: ignore[union-attr]
        optimizer.step()


def test_it_begins_once() -> None:
    snapshots = snapshots_of(nn.Linear(2, 2))
    kind, step, counted, rate = head(snapshots.begins())
    assert (kind, step) == (1, 0) and math.isnan(counted) and math.isnan(rate)
    assert snapshots.begins() is None


def test_a_saved_snapshot_holds_counts_rates_sums_and_generators() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    stepped(model, optimizer, 3)
    snapshots = snapshots_of(model, optimizer)
    packet = snapshots.saved(3, OTHER)
    assert head(packet)[0] == 2 and head(packet)[2:] == (3.0, 0.25)
    both = groups(packet)
    assert sum(g[1] for g in both) == 6
    squares = sum(float(p.detach().double().square().sum()) for p in model.parameters())
    assert sum(g[2] for g in both) == pytest.approx(squares)
    assert all(g[4] != 0 and g[6] == 1 for g in both), "optimizer state, and a sketch"
    assert len(sections(packet)[6]) >= 24, "generators of torch and of Python"


def test_what_differs_is_what_changed() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    stepped(model, optimizer, 1)

    def now() -> list[tuple[Any, ...]]:
        return groups(snapshots_of(model, optimizer).saved(1, OTHER))

    before = now()
    assert now() == before
    optimizer.state[model.bias]["exp_avg"].add_(1)
    state = now()
    assert [a[:4] for a in state] == [b[:4] for b in before]
    assert sum(a[4] != b[4] for a, b in zip(state, before, strict=True)) == 1
    with torch.no_grad():
        model.weight.add_(0.5)
    assert sum(a[3] != b[3] for a, b in zip(now(), state, strict=True)) == 1


def test_of_states_that_are_taken_at_each_step_some_are_kept() -> None:
    snapshots = snapshots_of(nn.Linear(2, 2))
    taken = [steps for steps in range(100) if snapshots.saved(steps, OTHER) is not None]
    assert taken == [0, 1, 2, 3, *range(10, 100, 10)]


def test_of_several_optimizers_a_checkpoint_is_told_once() -> None:
    snapshots = snapshots_of(nn.Linear(2, 2))
    another = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    asked = [(100, OTHER), (100, another), (100, OTHER), (100, another), (200, another)]
    taken = [snapshots.saved(steps, optimizer) is not None for steps, optimizer in asked]
    assert taken == [True, False, True, False, True], "the second time it may be of other weights"


def test_checkpoints_that_come_close_are_kept() -> None:
    snapshots = snapshots_of(nn.Linear(2, 2))
    assert all(snapshots.saved(steps, OTHER) is not None for steps in (50, 100, 103, 105))


def test_what_others_have_as_well_is_left_to_them() -> None:
    snapshots = snapshots_of(nn.Linear(2, 2), whole=False)
    assert 22 not in sections(snapshots.saved(3, OTHER))


def test_no_random_generator_and_no_gradient_is_touched() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    stepped(model, optimizer, 1)
    snapshots = snapshots_of(model, optimizer)
    state, gradient = torch.get_rng_state(), model.weight.grad
    snapshots.begins()
    snapshots.saved(3, OTHER)
    assert torch.equal(torch.get_rng_state(), state) and model.weight.grad is gradient


@pytest.mark.parametrize(
    ("kind", "fresh", "after"),
    [
        (torch.optim.Adam, 0.0, 2.0),
        (torch.optim.RMSprop, 0.0, 2.0),
        (torch.optim.SGD, math.nan, math.nan),
    ],
)
def test_steps_are_those_that_the_optimizer_counts(kind: Any, fresh: float, after: float) -> None:
    model = nn.Linear(2, 2)
    optimizer = kind(model.parameters(), lr=0.1)
    assert steps_of([optimizer]) == pytest.approx(fresh, nan_ok=True)
    stepped(model, optimizer, 2)
    assert steps_of([optimizer]) == pytest.approx(after, nan_ok=True)
