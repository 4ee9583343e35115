# SPDX-License-Identifier: Apache-2.0
"""By which norm gradients are clipped: torch's function for it, however it was imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils import clip_grad

from presum.torch_events.hooks import Handle
from presum.torch_events.taps import TappedFunction

Listener = Callable[[list[torch.Tensor], Any, Any], None]


class Inside(TappedFunction):
    """The function that torch's ``_no_grad`` has wrapped, in the wrapper: it is called by everyone,
    ``clip_grad_norm_`` too, and programs may have imported the wrapper before."""

    @staticmethod
    def there() -> bool:
        wrapper = getattr(clip_grad, "_clip_grads_with_norm_", None)
        inside = [cell.cell_contents for cell in getattr(wrapper, "__closure__", None) or ()]
        return inside == [getattr(wrapper, "__wrapped__", None)]

    def _look(self) -> Any:
        return vars(self._owner)[self._name].__closure__[0].cell_contents

    def _put(self, function: Any) -> None:
        vars(self._owner)[self._name].__closure__[0].cell_contents = function


class ClipTaps:
    """Shared by all recorders of a process."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        tap = Inside(clip_grad, "_clip_grads_with_norm_", before=self._about_to_clip)
        self._taps = [tap] if Inside.there() else []

    def add(self, listener: Listener) -> Handle:
        """Have someone, who must not raise, told of parameters, their norm and its limit
        before their gradients are clipped."""
        self._listeners.append(listener)
        for tap in self._taps:
            tap.apply()
        return Handle(lambda: self._remove(listener))

    def _remove(self, listener: Listener) -> None:
        self._listeners.remove(listener)
        if not self._listeners:
            for tap in self._taps:
                tap.undo()

    def _about_to_clip(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Parameters may come from a generator: it is used up here, and a list is handed on."""
        names = ("parameters", "max_norm", "total_norm")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        parameters = given.get("parameters", ())
        one = isinstance(parameters, torch.Tensor)
        listed: list[torch.Tensor] = [parameters] if one else list(parameters)
        for listener in list(self._listeners):
            listener(listed, given.get("total_norm"), given.get("max_norm"))
        if args:
            return (listed, *args[1:]), kwargs
        return args, {**kwargs, "parameters": listed}


CLIPS = ClipTaps()
