# SPDX-License-Identifier: Apache-2.0
"""What no hook tells: the tensor on which ``backward()`` was called, and the loss scaler in use.

Functions of torch are replaced while someone listens; they do what they did.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.autograd
from torch.amp.grad_scaler import GradScaler


class Replacement:
    """A function of a module or class, and what stands in its place."""

    def __init__(self, owner: Any, name: str, stand_in: Callable[..., Any]) -> None:
        """``stand_in`` gets the original before the arguments."""
        self._owner, self._name, self._stand_in = owner, name, stand_in
        self._original: Any = None
        self._replacement: Any = None  # while it is in place
        self._active = False

    def apply(self) -> None:
        """A second call does nothing."""
        self._active = True
        if self._replacement is not None:
            return
        original = self._original = vars(self._owner)[self._name]

        @functools.wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            if not self._active:
                return original(*args, **kwargs)
            return self._stand_in(original, *args, **kwargs)

        self._replacement = replacement
        setattr(self._owner, self._name, replacement)

    def undo(self) -> None:
        """Where someone else has replaced it since, ours stays inside and does nothing."""
        self._active = False
        if vars(self._owner)[self._name] is self._replacement:
            setattr(self._owner, self._name, self._original)
            self._replacement = None


class Taps:
    """Shared by all collectors of a process."""

    def __init__(self) -> None:
        self._listeners = 0
        self.backward_passes = 0  # begun so far
        self._root: torch.Tensor | None = None
        # Where the Trainer of transformers trains: the tokens that losses are divided by, and the
        # factor on them (the world size, because DDP divides by it).
        self.items: float | torch.Tensor | None = None
        self.loss_factor = 1.0
        self.shifts_labels: bool | None = None
        self._scaled: GradScaler | None = None  # has scaled a loss, for the next backward pass
        self._scaler: GradScaler | None = None
        self._replacements = [
            Replacement(torch.autograd, "backward", self._backward),
            Replacement(torch.autograd, "_engine_run_backward", self._run),
            Replacement(GradScaler, "scale", self._scale),
        ]

    def add(self) -> None:
        self._listeners += 1
        if self._listeners == 1:
            for replacement in self._replacements:
                replacement.apply()

    def remove(self) -> None:
        self._listeners -= 1
        if self._listeners == 0:
            for replacement in self._replacements:
                replacement.undo()

    def root(self) -> torch.Tensor | None:
        """The one-element tensor whose ``backward()`` is under way."""
        return self._root

    def scaler(self) -> GradScaler | None:
        """The scaler that scaled the loss of the backward pass under way."""
        return self._scaler

    def _backward(
        self, original: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any
    ) -> Any:
        before = self._root, self._scaler
        one = isinstance(tensors, torch.Tensor) and tensors.numel() == 1
        self._root = tensors if one else None
        if torch._C._current_graph_task_id() == -1:  # not a pass within one
            self._scaler, self._scaled = self._scaled, None
        try:
            return original(tensors, *args, **kwargs)
        finally:
            self._root, self._scaler = before

    def _run(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Below ``backward``, which programs may have imported by its name before."""
        accumulates = kwargs.get("accumulate_grad", False)
        self.backward_passes += accumulates and torch._C._current_graph_task_id() == -1
        return original(*args, **kwargs)

    def _scale(self, original: Callable[..., Any], scaler: GradScaler, outputs: Any) -> Any:
        self._scaled = scaler
        return original(scaler, outputs)


TAPS = Taps()
