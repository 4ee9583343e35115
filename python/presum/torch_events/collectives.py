# SPDX-License-Identifier: Apache-2.0
"""Marks results that the program reduces over the ranks in place, which autograd does not see."""

from __future__ import annotations

import contextlib
import sys
from pathlib import PurePath
from typing import Any, NamedTuple

from torch.distributed import ProcessGroup, ReduceOp

from presum.torch_events.taps import Listeners, TappedFunction

REDUCED = "presum_reduced"  # a node's metadata: the reduction of its result
OURS = ("torch.", "presum.", "accelerate.")  # not the program's code


class InPlaceReduction(NamedTuple):
    """An all-reduce of a tensor that has a gradient."""

    where: str  # file and line of the program
    averages: bool
    ranks: int


def reduction_of(node: Any) -> InPlaceReduction | None:
    """The in-place reduction of a node's result, if there was one."""
    found: InPlaceReduction | None = node.metadata.get(REDUCED)
    return found


def _mark(group: Any, tensors: Any, options: Any = None, *_: Any, **__: Any) -> None:
    with contextlib.suppress(Exception):  # of a group with other arguments
        if group.size() < 2:
            return
        for tensor in tensors if isinstance(tensors, (list, tuple)) else [tensors]:
            node = getattr(tensor, "grad_fn", None)
            if node is not None:
                averages = getattr(options, "reduceOp", None) == ReduceOp.AVG
                node.metadata[REDUCED] = InPlaceReduction(_where(), averages, group.size())


def _where() -> str:
    frame: Any = sys._getframe(1)
    while frame is not None:
        if not f"{frame.f_globals.get('__name__', '')}.".startswith(OURS):
            return f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown place"


# Below ``dist.all_reduce``, which torch.compile knows by identity.
IN_PLACE_REDUCTIONS: Listeners[object] = Listeners(
    TappedFunction(ProcessGroup, "allreduce", before=_mark)
)
