# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

from presum.fingerprints.rest import RestingParameters
from presum.fingerprints.states import StateSchedule

CPU = torch.device("cpu")
Move = Callable[[nn.Module], None]


def add_noise(model: nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p))


def add_noise_through_data(model: nn.Module) -> None:
    for p in model.parameters():
        p.data.add_(torch.randn_like(p))


def put_other_memory(model: nn.Module) -> None:
    for p in model.parameters():
        p.data = p.data + torch.randn_like(p)


MOVES = [add_noise, add_noise_through_data, put_other_memory]


class Rank:
    """One whose program moves its parameters, each step, for the forward pass."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
        parameters = [weakref.ref(p) for p in self.model.parameters()]
        self.states = StateSchedule(parameters, [], every=1)
        self.rest = RestingParameters(self.states, CPU, sees_steps=True)

    def step(self, turn: int, move: Move | None) -> int | None:
        kept = [p.detach().clone() for p in self.model.parameters()]
        if move is not None:
            move(self.model)
        assert not self.rest.stands(turn)
        found = [int(value) for _, value in self.rest.values()]
        assert all(0 <= value < 1 << 64 for value in found)
        with torch.no_grad():
            for p, before in zip(self.model.parameters(), kept, strict=True):
                p.copy_(before - 0.1)  # noise back, a step of the optimizer
        self.states.stepped()
        self.rest.stepped(turn + 1, recorded=True)
        return found[0] if found else None


@pytest.mark.parametrize("move", MOVES)
def test_what_the_optimizer_left_is_told_where_parameters_were_moved(move: Move) -> None:
    a, b = Rank(), Rank()
    for turn in range(30):
        torch.manual_seed(turn)
        left = a.step(turn, move)
        assert left == b.step(turn, move), "each has noise of its own"
        assert (left is None) == (turn == 0)


def test_nothing_is_told_of_parameters_at_rest() -> None:
    rank = Rank()
    assert [rank.step(turn, None) for turn in range(30)] == [None] * 30


@pytest.mark.parametrize("move", [None, add_noise])
def test_only_steps_before_a_recorded_one_are_hashed(move: Move | None) -> None:
    """Every tenth is recorded; of a program that moves nothing none is hashed after the second."""
    rank, hashed, asked = Rank(), [], list[int]()
    due = rank.states.due
    rank.states.due = lambda kind, turn: asked.append(turn) or due(kind, turn)  # type: ignore[method-assign,func-returns-value]
    for turn in range(0, 100, 10):
        if move is not None:
            move(rank.model)
        assert not rank.rest.stands(turn)
        rank.rest.values()
        for after in range(turn + 1, turn + 11):
            recorded = after % 10 == 0
            rank.rest.stepped(after, recorded=recorded)
            hashed += asked
            asked.clear()
    assert hashed == ([10] if move is None else [*range(10, 101, 10)])


def test_ranks_that_differ_where_the_optimizer_left_them_are_told_apart() -> None:
    a, b = Rank(), Rank()
    for turn in range(3):
        a.step(turn, add_noise)
        b.step(turn, add_noise)
    with torch.no_grad():
        next(b.model.parameters()).add_(1)
    pairs = [(a.step(turn, add_noise), b.step(turn, add_noise)) for turn in range(3, 28)]
    assert any(x != y for x, y in pairs)


def test_parameters_that_shrink_are_read_as_far_as_they_go() -> None:
    rank = Rank()
    rank.step(0, None)
    for p in rank.model.parameters():
        p.data = p.data.flatten()[:1].half()
    assert rank.states.marks() != []
    for p in rank.model.parameters():
        p.data = p.data.expand(1 << 20)
    assert rank.states.marks() != []


@pytest.mark.parametrize("move", [add_noise, put_other_memory])
def test_what_was_hashed_before_a_second_forward_of_a_step_stands(move: Move) -> None:
    rank = Rank()
    for turn in range(3):
        assert not rank.rest.stands(turn)
        assert not rank.rest.stands(turn)  # a second forward pass, nothing moved
        move(rank.model)
        assert rank.rest.stands(turn)
        rank.states.stepped()
        rank.rest.stepped(turn + 1, recorded=True)
