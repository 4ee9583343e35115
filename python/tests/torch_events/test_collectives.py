# SPDX-License-Identifier: Apache-2.0
"""Tensors that a program reduces in place, although they have a gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import AllreduceOptions, ProcessGroup, ReduceOp

from presum.torch_events.collectives import IN_PLACE_REDUCTIONS, reduction_of


class Group(ProcessGroup):
    """Stands in for a group of two ranks."""

    def __init__(self) -> None:
        super().__init__(0, 2)

    def size(self) -> int:
        return 2


def reduce(tensor: torch.Tensor, **options: Any) -> None:
    given = AllreduceOptions()
    for name, value in options.items():
        setattr(given, name, value)
    try:
        ProcessGroup.allreduce(Group(), [tensor], given)
    except RuntimeError:  # the group has no backend
        return


def test_a_reduced_result_is_marked_with_the_program_s_line() -> None:
    handle = IN_PLACE_REDUCTIONS.add(object())
    try:
        some, mean = (torch.ones(2, requires_grad=True) * 2 for _ in range(2))
        reduce(some)
        reduce(mean, reduceOp=ReduceOp.AVG)
        found = reduction_of(some.grad_fn)
        assert found is not None and found.where.startswith("test_collectives.py:")
        assert (found.averages, found.ranks) == (False, 2)
        found = reduction_of(mean.grad_fn)
        assert found is not None and found.averages
        reduce(some.detach())  # nothing to mark
    finally:
        handle.remove()
    later = torch.ones(2, requires_grad=True) * 2
    reduce(later)
    assert reduction_of(later.grad_fn) is None
