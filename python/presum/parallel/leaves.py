# SPDX-License-Identifier: Apache-2.0
"""The micro-batches of a step on one worker, each parameter's gradients kept apart.

``.grad`` would add them up in its own precision, and so depend on how they are divided over
workers. ``SeparateLeaves`` holds every gradient, ``BinnedLeaves`` 17 bytes an element however many
there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from presum.reduce import tensors
from presum.reduce.methods import Method
from presum.reduce.tensors import Binned

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


class Leaves(ABC):
    """What the backward passes left that were not reduced, by parameter."""

    def __init__(self) -> None:
        self.passes = 0

    @abstractmethod
    def add(self, parameter: int, gradient: torch.Tensor) -> None:
        """One gradient of the pass under way, flat and ours to keep; a second one of the same
        parameter (tied, re-entrant checkpoint) is the rest of the same gradient."""

    @abstractmethod
    def with_last(self, parameter: int, gradient: torch.Tensor, divisor: int) -> torch.Tensor:
        """The sum of a parameter's leaves and one more, which is flat; changes nothing."""

    @abstractmethod
    def places(self) -> list[int]:
        """The parameters that have leaves."""

    @abstractmethod
    def discard(self, parameter: int) -> None:
        """Forget a parameter's leaves."""

    def retain(self, layout: Sequence[Slice], last: torch.Tensor) -> None:
        """Make a flat buffer the leaves of the pass under way."""
        for place in layout:
            if place.parameter != NO_PLACE:
                leaf = place.of(last).clone(memory_format=torch.contiguous_format)
                self.add(place.parameter, leaf.view(-1))

    @abstractmethod
    def clear(self) -> None:
        """Forget all, and begin to count passes again."""


class SeparateLeaves(Leaves):
    """Every leaf."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[int, list[tuple[int, torch.Tensor]]] = {}  # with the pass

    def add(self, parameter: int, gradient: torch.Tensor) -> None:
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
        out = torch.empty_like(gradient)
        tensors.exact([*self.of(parameter), gradient], divisor, out)
        return out

    def of(self, parameter: int) -> list[torch.Tensor]:
        """A parameter's leaves."""
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
            self.retain(layout, last)
        return [*flat, last]

    def clear(self) -> None:
        self.passes = 0
        self._held.clear()


class BinnedLeaves(Leaves):
    """The sum of leaves in bins."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[int, Binned] = {}
        self._latest: dict[int, tuple[int, torch.Tensor]] = {}  # not in its bins yet

    def add(self, parameter: int, gradient: torch.Tensor) -> None:
        of_pass, latest = self._latest.get(parameter, (self.passes, None))
        if latest is not None and of_pass == self.passes:
            latest.add_(gradient)
            return
        self._settle(parameter)
        self._latest[parameter] = (self.passes, gradient)

    def _settle(self, parameter: int) -> None:
        if parameter in self._latest:
            leaf = self._latest.pop(parameter)[1]
            if parameter not in self._held:
                self._held[parameter] = Binned.zeros(leaf.numel(), leaf.device)
            self._held[parameter].add(leaf)

    def places(self) -> list[int]:
        return list(self._held.keys() | self._latest.keys())

    def discard(self, parameter: int) -> None:
        self._held.pop(parameter, None)
        self._latest.pop(parameter, None)

    def with_last(self, parameter: int, gradient: torch.Tensor, divisor: int) -> torch.Tensor:
        total = Binned.zeros(gradient.numel(), gradient.device)
        held = self.of(parameter)
        if held is not None:
            total.merge(held)
        total.add(gradient)
        out = torch.empty_like(gradient)
        total.decode(divisor, out)
        return out

    def of(self, parameter: int) -> Binned | None:
        """The sum of a parameter's leaves; None where there are none."""
        self._settle(parameter)
        return self._held.get(parameter)

    def take(self, layout: Sequence[Slice], last: torch.Tensor, *, retain: bool) -> Binned:
        """The sum of the leaves of a flat buffer and of ``last``; gives them away, or retains
        all."""
        total = Binned.zeros(last.numel(), last.device)
        for place in layout:
            held = self.of(place.parameter)
            if held is not None:
                place.of(total.top).copy_(held.top.view(place.shape))
                place.of(total.high).copy_(held.high.view(place.shape))
                place.of(total.low).copy_(held.low.view(place.shape))
            if not retain:
                self.discard(place.parameter)
        if retain:
            self.retain(layout, last)
        total.add(last)
        return total

    def clear(self) -> None:
        self.passes = 0
        self._held.clear()
        self._latest.clear()


def leaves_for(method: Method) -> SeparateLeaves | BinnedLeaves:
    """What a method of summing needs."""
    return BinnedLeaves() if method == "binned" else SeparateLeaves()
