# SPDX-License-Identifier: Apache-2.0
"""This worker's own gradients where ``.grad`` holds something already: what a pass adds to it.

``.grad`` would be the sum of both. What arrives at a parameter's AccumulateGrad node is the pass's
own; a hook of the tensor would not do: it misses hooks that were registered later, and fires for
``autograd.grad`` as well.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from presum.devices.readable import readable
from presum.torch_events.losses import Scalar

Arrives = Callable[[int, torch.Tensor], None]


class Arrivals:
    """Tells of the gradients that arrive at a model's parameters, once it is asked to."""

    def __init__(self, arrives: Arrives) -> None:
        """``arrives`` is a bound method, held weakly, and must not raise."""
        self._arrives = weakref.WeakMethod(arrives)
        self._handles: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._handles)

    def listen(self, parameters: Iterable[tuple[int, nn.Parameter]]) -> None:
        """From now on, within a backward pass too, to those that are not frozen just now. It may be
        called again."""
        for place, parameter in parameters:
            if place not in self._handles and parameter.requires_grad:
                # DDP keeps it. Of a parameter that it does not reduce (frozen when it was wrapped)
                # it dies with its graph, and what comes there later is not known.
                node = get_gradient_edge(parameter).node
                tell = partial(_tell, self._arrives, place)
                self._handles[place] = node.register_prehook(tell)

    def remove(self) -> None:
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()


def _tell(
    listener: Callable[[], Arrives | None], place: int, gradients: tuple[torch.Tensor | None, ...]
) -> None:
    arrives = listener()
    if arrives is not None and gradients[0] is not None:
        arrives(place, gradients[0])


def held_by(parameters: Iterable[tuple[int, nn.Parameter]], *, on_host: bool) -> Scalar:
    """How large what their ``.grad`` holds is at most: 0 where that is nothing, or zeros; NaN where
    it cannot be read. In host memory 1 for whatever it holds. On a device a tensor there: nothing
    waits for it."""
    held, unread = [], False
    for _, parameter in parameters:
        if parameter.grad is None:
            continue
        values = _values(parameter.grad)
        if values is None:
            unread = True
        elif values.numel() > 0:
            if on_host and values.any():
                return 1.0
            held.append(values)
    if unread:
        return math.nan
    if on_host or not held:
        return 0.0
    with torch.no_grad():
        return torch.stack(torch._foreach_norm(held, float("inf"))).amax()


def _values(gradient: torch.Tensor) -> torch.Tensor | None:
    if gradient.is_sparse:
        return gradient._values()
    return gradient if type(gradient) is torch.Tensor else readable(gradient)


def as_parameter(gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Laid out as the parameter is, so that all workers read it in one order; it may come expanded,
    or with other strides."""
    if gradient.layout != torch.strided or gradient.stride() == parameter.stride():
        return gradient
    with torch.no_grad():
        return torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient)
