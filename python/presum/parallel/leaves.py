# SPDX-License-Identifier: Apache-2.0
"""The micro-batches of a step on one rank, with separate gradients for each.

``.grad`` would add them in its own precision, so the result would depend on how they are
distributed over ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from presum.reduce import tensors

NO_PLACE = -1  # of a parameter without leaves


class Slice(NamedTuple):
    """A parameter's place in a flat buffer, which can have a different memory order than the
    parameter."""

    parameter: int  # or NO_PLACE
    start: int
    shape: Sequence[int]
    strides: Sequence[int]

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """The parameter's view of the buffer, in the parameter's shape."""
        return flat.as_strided(self.shape, self.strides, self.start)


def slices(places: Iterable[int], views: Iterable[torch.Tensor], flat: torch.Tensor) -> list[Slice]:
    """The slices of parameters, given their views of a flat buffer."""
    start = int(flat.storage_offset())
    return [
        Slice(place, int(view.storage_offset()) - start, view.shape, view.stride())
        for place, view in zip(places, views, strict=True)
    ]


class Leaves:
    """The gradients of backward passes that did not reduce, by parameter."""

    def __init__(self) -> None:
        self.passes = 0
        self._held: dict[int, list[tuple[int, torch.Tensor]]] = {}  # with the number of the pass

    def add(self, parameter: int, gradient: torch.Tensor) -> None:
        """Add a gradient of the current pass, flat and owned by presum. A second one of the same
        parameter (tied weights, reentrant checkpoint) is the rest of the same gradient."""
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
        """The sum of a parameter's leaves and one more, flat gradient. Changes nothing."""
        out = torch.empty_like(gradient)
        tensors.exact([*self.of(parameter), gradient], divisor, out)
        return out

    def of(self, parameter: int) -> list[torch.Tensor]:
        return [leaf for _, leaf in self._held.get(parameter, [])]

    def take(
        self, layout: Sequence[Slice], last: torch.Tensor, *, retain: bool
    ) -> list[torch.Tensor]:
        """The leaves of a flat buffer in the order of passes, and ``last``. Removes them, or with
        ``retain`` keeps all."""
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
        """Store a flat buffer as the leaves of the current pass."""
        for place in layout:
            if place.parameter != NO_PLACE:
                leaf = place.of(last).clone(memory_format=torch.contiguous_format)
                self.add(place.parameter, leaf.view(-1))

    def clear(self) -> None:
        """Remove all leaves, and restart the count of passes."""
        self.passes = 0
        self._held.clear()
