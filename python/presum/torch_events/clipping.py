# SPDX-License-Identifier: Apache-2.0
"""Observes the norm by which gradients are clipped, in torch's own functions, regardless of how
they were imported."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn.utils import clip_grad

from presum.torch_events.taps import Listeners, TappedFunction

Listener = Callable[[list[torch.Tensor], Any, Any, float | None], None]
NORMS_KEPT = 64  # norms that torch has computed since the last clipping


class Inside(TappedFunction):
    """The function inside the wrapper of torch's ``_no_grad``. All callers reach it, including
    ``clip_grad_norm_`` and programs that imported the wrapper earlier."""

    @staticmethod
    def there(name: str) -> bool:
        wrapper = getattr(clip_grad, name, None)
        inside = [cell.cell_contents for cell in getattr(wrapper, "__closure__", None) or ()]
        return inside == [getattr(wrapper, "__wrapped__", None)]

    def _look(self) -> Any:
        return vars(self._owner)[self._name].__closure__[0].cell_contents

    def _put(self, function: Any) -> None:
        vars(self._owner)[self._name].__closure__[0].cell_contents = function


class TakenNorm(NamedTuple):
    """A norm that torch has computed."""

    held: weakref.ref[torch.Tensor]
    kind: float  # 2: the Euclidean norm
    tensors: float  # the number of tensors; infinite if unknown


class ClipTaps(Listeners[Listener]):
    """Shared by all recorders of a process. Before gradients are clipped, each listener, which must
    not raise, gets the parameters, their norm, the limit, and the norm's type (None: unknown)."""

    def __init__(self) -> None:
        self._norms: deque[TakenNorm] = deque(maxlen=NORMS_KEPT)
        taps: dict[str, dict[str, Any]] = {
            "_clip_grads_with_norm_": {"before": self._about_to_clip},
            "_get_total_norm": {"after": self._has_taken_norm},
        }
        super().__init__(
            *(Inside(clip_grad, name, **told) for name, told in taps.items() if Inside.there(name))
        )

    def _about_to_clip(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Parameters may come from a generator, so it is consumed here and a list is passed on."""
        names = ("parameters", "max_norm", "total_norm")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        parameters = given.get("parameters", ())
        one = isinstance(parameters, torch.Tensor)
        listed: list[torch.Tensor] = [parameters] if one else list(parameters)
        norm = given.get("total_norm")
        kind = self._kind_of(norm, listed)
        self._norms.clear()
        for listener in self:
            listener(listed, norm, given.get("max_norm"), kind)
        if args:
            return (listed, *args[1:]), kwargs
        return args, {**kwargs, "parameters": listed}

    def _has_taken_norm(
        self, norm: torch.Tensor, tensors: Any = (), norm_type: Any = 2.0, *_: Any, **__: Any
    ) -> None:
        several = isinstance(tensors, (list, tuple))
        count = len(tensors) if several else math.inf
        self._norms.append(TakenNorm(weakref.ref(norm), float(norm_type), count))

    def _kind_of(self, norm: object, parameters: list[torch.Tensor]) -> float | None:
        """The type of a norm that torch computed. For a norm that was derived since torch computed
        norms of parts of the gradients, the type of these, if they share one."""
        kinds: set[float | None] = {taken.kind for taken in self._norms if taken.held() is norm}
        if not kinds and self._norms:
            gradients = sum(p.grad is not None for p in parameters)
            kinds = {taken.kind if taken.tensors < gradients else None for taken in self._norms}
        return kinds.pop() if len(kinds) == 1 else None


CLIPS = ClipTaps()
