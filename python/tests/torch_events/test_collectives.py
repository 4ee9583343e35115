# SPDX-License-Identifier: Apache-2.0
"""Tensors that a program reduces in place, although they have a gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from presum.torch_events.collectives import IN_PLACE_REDUCTIONS, reduction_of


@pytest.fixture
def two_ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)  # type: ignore[no-untyped-call]
    handle = IN_PLACE_REDUCTIONS.add(object())
    yield
    handle.remove()
    dist.destroy_process_group()


def some() -> torch.Tensor:
    return torch.ones(2, requires_grad=True) * 2


@pytest.mark.usefixtures("two_ranks")
def test_a_reduced_result_is_marked_with_the_program_s_line() -> None:
    total, most = some(), some()
    dist.all_reduce(total)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    found = reduction_of(total.grad_fn)
    assert found is not None and found.where.startswith("test_collectives.py:")
    assert (found.sums, found.ranks) == (True, 2)
    found = reduction_of(most.grad_fn)
    assert found is not None and not found.sums
    dist.all_reduce(some().detach())  # nothing to mark


class Known(torch.autograd.Function):
    """A program's own all-reduce with its own backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


@pytest.mark.usefixtures("two_ranks")
def test_what_autograd_knows_is_not_marked() -> None:
    given = some()
    total: Any = Known.apply(given)  # type: ignore[no-untyped-call]
    assert reduction_of(given.grad_fn) is None and reduction_of(total.grad_fn) is None


def test_torch_s_function_stays_the_same_object_and_is_restored() -> None:
    function, cells = dist.all_reduce, dist.all_reduce.__closure__
    before = [cell.cell_contents for cell in cells or ()]
    handle = IN_PLACE_REDUCTIONS.add(object())
    assert dist.all_reduce is function
    assert [cell.cell_contents for cell in cells or ()] != before
    handle.remove()
    assert [cell.cell_contents for cell in cells or ()] == before
