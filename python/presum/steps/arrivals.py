# SPDX-License-Identifier: Apache-2.0
"""This rank's own gradients if ``.grad`` is not empty: what a backward pass adds to it.

``.grad`` would contain the sum. The input of a parameter's AccumulateGrad node is the gradient of
this pass alone. A tensor hook would not work: it misses hooks that are registered later, and fires
for ``autograd.grad`` too.
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
    """Reports the gradients that arrive at a model's parameters, once ``listen`` is called."""

    def __init__(self, arrives: Arrives) -> None:
        """``arrives`` is a bound method, held weakly; it must not raise."""
        self._arrives = weakref.WeakMethod(arrives)
        self._handles: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._handles)

    def listen(self, parameters: Iterable[tuple[int, nn.Parameter]]) -> None:
        """Listen to parameters that are not frozen now. It can be called inside a backward pass,
        and more than once."""
        for place, parameter in parameters:
            if place not in self._handles and parameter.requires_grad:
                # DDP keeps the node alive. For a parameter that DDP does not reduce (frozen at
                # wrapping), it dies with its graph, and later gradients are not seen.
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
    """The largest absolute value in ``.grad`` of these parameters: 0 if there are none or all are
    zero, NaN if one cannot be read. In host memory, 1 for any nonzero value. On a device, a tensor
    there, without synchronization."""
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
    """The gradient in the parameter's memory layout, so that all ranks read it in the same order.
    It may arrive expanded or with other strides."""
    if gradient.layout != torch.strided or gradient.stride() == parameter.stride():
        return gradient
    with torch.no_grad():
        return torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient)
