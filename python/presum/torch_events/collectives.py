# SPDX-License-Identifier: Apache-2.0
"""Marks results that the program reduces over the ranks in place, which autograd does not see."""

from __future__ import annotations

import contextlib
import sys
from pathlib import PurePath
from types import CellType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from presum.torch_events.taps import Listeners, TappedFunction

REDUCED = "presum_reduced"  # a node's metadata: the reduction of its result
OURS = ("torch.", "presum.", "accelerate.")  # not the program's code


class InPlaceReduction(NamedTuple):
    """An all-reduce of a tensor that has a gradient."""

    where: str  # file and line of the program
    sums: bool
    ranks: int


def reduction_of(node: Any) -> InPlaceReduction | None:
    """The in-place reduction of a node's result, if there was one."""
    found: InPlaceReduction | None = node.metadata.get(REDUCED)
    return found


def _mark(tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, *_: Any, **__: Any) -> None:
    """Not in the forward of an autograd Function, which has its own backward."""
    node = getattr(tensor, "grad_fn", None)
    if node is None or not torch.is_grad_enabled():
        return
    with contextlib.suppress(Exception):  # of an unusual group
        ranks = dist.get_world_size(group)
        if ranks > 1:
            reduction = InPlaceReduction(_where(), op == dist.ReduceOp.SUM, ranks)
            node.metadata[REDUCED] = reduction


def _where() -> str:
    frame: Any = sys._getframe(1)
    while frame is not None:
        if not f"{frame.f_globals.get('__name__', '')}.".startswith(OURS):
            return f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown place"


class InsideOf(TappedFunction):
    """Taps the function that a decorator of torch's wraps. The decorated function stays the same
    object, by which torch.compile knows it. Does nothing if nothing is wrapped."""

    def __init__(self, decorated: Any, **told: Any) -> None:
        super().__init__(decorated, decorated.__name__, **told)
        self._cell = next(filter(self._wraps, getattr(decorated, "__closure__", None) or ()), None)

    def _wraps(self, cell: CellType) -> bool:
        return getattr(cell.cell_contents, "__name__", "") == self._name

    def apply(self) -> None:
        if self._cell is not None:
            super().apply()

    def undo(self) -> None:
        if self._cell is not None:
            super().undo()

    def _look(self) -> Any:
        assert self._cell is not None
        return self._cell.cell_contents

    def _put(self, function: Any) -> None:
        assert self._cell is not None
        self._cell.cell_contents = function


IN_PLACE_REDUCTIONS: Listeners[object] = Listeners(InsideOf(dist.all_reduce, before=_mark))
