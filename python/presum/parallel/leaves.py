# SPDX-License-Identifier: Apache-2.0
"""The micro-batches of a step on one worker, each parameter's gradients kept apart.

``.grad`` would add them up in its own precision, and so depend on how they are divided over
workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from presum.reduce import tensors

NO_PLACE = -1  # of a parameter that has no leaves


class Slice(NamedTuple):
    """A parameter's place in a flat buffer, which may have another order than the parameter."""

    parameter: int  # or NO_PLACE
    start: int
    shape: Sequence[int]
    strides: Sequence[int]

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """It, as a view of the buffer in the parameter's shape."""
        return flat.as_strided(self.shape, self.strides, self.start)


def slices(places: Iterable[int], views: Iterable[torch.Tensor], flat: torch.Tensor) -> list[Slice]:
    """Those of parameters whose views of a flat buffer are given."""
    start = int(flat.storage_offset())
    return [
        Slice(place, int(view.storage_offset()) - start, view.shape, view.stride())
        for place, view in zip(places, views, strict=True)
    ]


class Leaves:
    """What the backward passes left that were not reduced, by parameter."""

    def __init__(self) -> None:
        self.passes = 0
        self._held: dict[int, list[tuple[int, torch.Tensor]]] = {}  # with the pass

    def add(self, parameter: int, gradient: torch.Tensor) -> None:
        """One gradient of the pass under way, flat and ours to keep; a second one of the same
        parameter (tied, re-entrant checkpoint) is the rest of the same gradient."""
        held = self._held.setdefault(parameter, [])
        if held and held[-1][0] == self.passes:
            held[-1][1].add_(gradient)
        else:
            held.append((self.passes, gradient))

    def places(self) -> list[int]:
        return list(self._held)

    def discard(self, parameter: int) -> None:
        self._held.pop(parameter, None)

    def with_last(self, parameter: int, gradient: torch.Tensor, divisor: int) -> torch.Tensor:
        """The sum of a parameter's leaves and one more, which is flat; changes nothing."""
        out = torch.empty_like(gradient)
        tensors.exact([*self.of(parameter), gradient], divisor, out)
        return out

    def of(self, parameter: int) -> list[torch.Tensor]:
        return [leaf for _, leaf in self._held.get(parameter, [])]

    def take(
        self, layout: Sequence[Slice], last: torch.Tensor, *, retain: bool
    ) -> list[torch.Tensor]:
        """The leaves of a flat buffer in the order of passes, and ``last``; gives them away, or
        retains all."""
        flat = [torch.zeros_like(last) for _ in range(self.passes)]
        for place in layout:
            for of_pass, leaf in self._held.get(place.parameter, []):
                place.of(flat[of_pass]).copy_(leaf.view(place.shape))
            if not retain:
                self.discard(place.parameter)
        if retain:
            self._retain(layout, last)
        return [*flat, last]

    def _retain(self, layout: Sequence[Slice], last: torch.Tensor) -> None:
        """Make a flat buffer the leaves of the pass under way."""
        for place in layout:
            if place.parameter != NO_PLACE:
                leaf = place.of(last).clone(memory_format=torch.contiguous_format)
                self.add(place.parameter, leaf.view(-1))

    def clear(self) -> None:
        """Forget all, and begin to count passes again."""
        self.passes = 0
        self._held.clear()
