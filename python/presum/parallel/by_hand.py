# SPDX-License-Identifier: Apache-2.0
"""Watching a loop that reduces gradients itself: Horovod's and Megatron's style, or by hand."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from presum.steps.collector import Collector, CollectorSetup
from presum.torch_events.hooks import Hook

NamedGradients = Iterable[tuple[str, torch.Tensor | None]]


class ManualCollector(Collector):
    """A step is what the user hands over before a reduction; several calls with parameters that
    were not handed over yet add to it."""

    def __init__(self, model: nn.Module, names: Iterable[str], setup: CollectorSetup) -> None:
        super().__init__(model, model, setup)
        self._places = {name: place for place, name in enumerate(names)}
        self._sizes = [parameter.numel() for _, parameter in self._alive()]
        self._reading_reduced = False

    def _hook_gradients(self) -> None:
        pass

    def _after_backward(self) -> None:
        self._end_queued = False
        self._micro_batches += 1
        self._synchronises = False  # before_reduction tells
        self._use_reached()

    def before_reduction(self, named_gradients: NamedGradients) -> None:
        """This worker's own gradients. Raises ValueError for a name that is not a parameter's."""
        found = self._checked(named_gradients)
        if not self.off:
            Hook(self, self._begin)(found)

    def after_reduction(self, named_gradients: NamedGradients) -> None:
        """The reduced ones. Raises ValueError likewise."""
        found = self._checked(named_gradients)
        if not self.off and self._reading_reduced:
            Hook(self, self._read)(found, reduced=True)

    def _begin(self, found: list[tuple[int, torch.Tensor]]) -> None:
        if not self._open or any(self._seen[place] for place, _ in found):
            self._next_step()
        if self._collected:
            self._read(found, reduced=False)

    def _next_step(self) -> None:
        self._end_step()
        self._micro_batches = max(1, self._micro_batches)
        self._synchronises = True
        self._begin_synchronised()
        self._seen = [False] * len(self._parameters)
        collected = self._take_reached()
        self._reading_reduced = collected and self._reduced_is_due()

    def _read(self, found: list[tuple[int, torch.Tensor]], *, reduced: bool) -> None:
        for place, gradient in found:
            self.read(place, gradient.detach(), reduced=reduced)

    def _checked(self, named_gradients: NamedGradients) -> list[tuple[int, torch.Tensor]]:
        found = [(name, x) for name, x in dict(named_gradients).items() if x is not None]
        model = self._inner()
        names = {name for name, _ in model.named_parameters()} if model is not None else set()
        known = names - set(self._places)
        found = [(name, x) for name, x in found if name not in known]  # frozen when attached
        for name, gradient in found:
            place = self._places.get(name)
            if place is None:
                raise ValueError(
                    f"presum: {name!r} is not a parameter of the attached module; "
                    "give names as module.named_parameters() does"
                )
            expected = self._sizes[place]
            if gradient.numel() != expected:
                raise ValueError(
                    f"presum: the gradient of {name!r} has {gradient.numel()} elements, "
                    f"its parameter {expected}"
                )
        return [(self._places[name], gradient) for name, gradient in found]
