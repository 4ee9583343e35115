# SPDX-License-Identifier: Apache-2.0
"""Recording of a loop that reduces gradients itself: in the style of Horovod or Megatron, or by
hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from presum.steps.gradient_source import GradientSource, in_backward
from presum.steps.value_sample import Tensors
from presum.torch_events.hooks import Hook

NamedGradients = Iterable[tuple[str, torch.Tensor | None]]


class ManualSource(GradientSource):
    """The gradients that the user passes before a reduction. Several calls with new parameters add
    to the same reduction."""

    reads_grad = False
    sees_zeroing = False  # true while ``.grad`` holds the gradients that were passed last

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
        super().__init__(model, model)
        self._places = {name: place for place, name in enumerate(parameters)}
        self._sizes = [parameter.numel() for parameter in parameters.values()]
        self._reading_reduced = False

    def hook(self) -> list[Any]:
        return []

    def accumulated(self) -> Tensors:
        """Unknown if gradients may be kept outside ``.grad``."""
        return super().accumulated() if self.sees_zeroing else []

    def pass_is_over(self) -> None:
        """A pass goes through an output of the model. Whether it accumulated into all parameters is
        unknown."""
        recorder = self.recorder
        if not recorder.in_backward:
            if not self.accumulates():
                return
            recorder.pass_begins(reduces=False, more_follow=True, readable=False)
        recorder.pass_ends()

    def before_reduction(self, named_gradients: NamedGradients) -> None:
        """Read this rank's own gradients. Raises ValueError for a name that is not a
        parameter's."""
        with self.recorder:
            found = self._checked(named_gradients)
        if not self.recorder.off:
            Hook(self.recorder, self._begin)(found)
            if not in_backward():
                self.recorder.waiting.begin()

    def _is_grad(self, place: int, gradient: torch.Tensor) -> bool:
        """Programs that keep gradients elsewhere (``main_grad``) clear ``.grad`` after a pass."""
        parameter = self.recorder.setup.parameters[place]()
        return parameter is not None and parameter.grad is gradient

    def after_reduction(self, named_gradients: NamedGradients) -> None:
        """Read the reduced gradients. Raises ValueError as ``before_reduction`` does."""
        self.recorder.waiting.end()
        with self.recorder:
            found = self._checked(named_gradients)
        if not self.recorder.off and self._reading_reduced:
            Hook(self.recorder, self.recorder.read_all)(found, reduced=True)

    def _begin(self, found: list[tuple[int, torch.Tensor]]) -> None:
        self.sees_zeroing = all(self._is_grad(place, gradient) for place, gradient in found)
        observer = self.recorder.observer
        if not observer.open or any(observer.seen(place) for place, _ in found):
            self.recorder.reduction()
            self._reading_reduced = observer.reduced_is_due()
        if observer.records:
            self.recorder.read_all(found, reduced=False)

    def _checked(self, named_gradients: NamedGradients) -> list[tuple[int, torch.Tensor]]:
        named = {name: x for name, x in dict(named_gradients).items() if x is not None}
        unknown = named.keys() - self._places.keys()
        model = self.inner()
        if unknown and model is not None:
            frozen = unknown & {name for name, _ in model.named_parameters()}  # when attached
            named = {name: x for name, x in named.items() if name not in frozen}
        for name, gradient in named.items():
            if name not in self._places:
                raise ValueError(
                    f"presum: {name!r} is not a parameter of the attached module; "
                    "use the names of module.named_parameters()"
                )
            expected = self._sizes[self._places[name]]
            if gradient.numel() != expected:
                raise ValueError(
                    f"presum: the gradient of {name!r} has {gradient.numel()} elements, "
                    f"its parameter {expected}"
                )
        return [(self._places[name], gradient) for name, gradient in named.items()]
