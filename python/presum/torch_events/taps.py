# SPDX-License-Identifier: Apache-2.0
"""What no hook tells: the tensors on which ``backward()`` was called, and the loss scaler in use.

Functions of torch are replaced while someone listens; they do what they did.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.autograd
from torch.amp.grad_scaler import GradScaler

from presum._core import Tap
from presum.torch_events.hooks import Handle
from presum.torch_events.losses import Scalar, kept_value


class ReplacedFunction:
    """A function of a module or class, and what stands in its place."""

    def __init__(self, owner: Any, name: str, stand_in: Callable[..., Any]) -> None:
        """``stand_in`` gets the original before the arguments, and may do something else."""
        self._owner, self._name, self._stand_in = owner, name, stand_in
        self._original: Any = None
        self._replacement: Any = None  # while it is in place
        self._active = False

    def apply(self) -> None:
        """A second call does nothing."""
        self._activate(True)
        if self._replacement is not None:
            return
        self._original = vars(self._owner)[self._name]
        self._replacement = functools.update_wrapper(self._made(self._original), self._original)
        self._activate(True)
        setattr(self._owner, self._name, self._replacement)

    def undo(self) -> None:
        """Where someone else has replaced it since, ours stays inside and does nothing."""
        self._activate(False)
        if vars(self._owner)[self._name] is self._replacement:
            setattr(self._owner, self._name, self._original)
            self._replacement = None

    def _made(self, original: Any) -> Any:
        def replacement(*args: Any, **kwargs: Any) -> Any:
            if not self._active:
                return original(*args, **kwargs)
            return self._stand_in(original, *args, **kwargs)

        return replacement

    def _activate(self, active: bool) -> None:
        self._active = active


class TappedFunction(ReplacedFunction):
    """A function that does what it did, while others are told of its calls. It leaves no frame, so
    warnings and tracebacks are the program's own."""

    def __init__(
        self,
        owner: Any,
        name: str,
        *,
        before: Callable[..., Any] | None = None,
        after: Callable[..., None] | None = None,
        always: Callable[[], None] | None = None,
    ) -> None:
        """``before`` gets the arguments, and may return others as a pair; ``after`` gets the result
        before them; ``always`` is called also where the function raised."""
        super().__init__(owner, name, lambda: None)
        self._told = {"before": before, "after": after, "always": always}

    def _made(self, original: Any) -> Any:
        return Tap(original, **self._told)

    def _activate(self, active: bool) -> None:
        if self._replacement is not None:
            self._replacement.active = active


class Taps:
    """Shared by all collectors of a process."""

    def __init__(self) -> None:
        self._listeners = 0
        self.backward_passes = 0  # begun so far
        self._roots: tuple[Any, Any] = (None, None)  # tensors and ``gradient=``
        # Where the Trainer of transformers trains: the tokens that losses are divided by, and the
        # factor on them (the world size, because DDP divides by it).
        self.items: float | torch.Tensor | None = None
        self.loss_factor = 1.0
        self.shifts_labels: bool | None = None
        self._outer: list[tuple[tuple[Any, Any], GradScaler | None]] = []  # of nested passes
        self._scaled: GradScaler | None = None  # has scaled a loss, for the next backward pass
        self._scaler: GradScaler | None = None
        self._replacements = [
            TappedFunction(
                torch.autograd, "backward", before=self._enter_backward, always=self._leave_backward
            ),
            TappedFunction(torch.autograd, "_engine_run_backward", before=self._run),
        ]
        self._scale_taps: dict[type, TappedFunction] = {}
        self._beginnings: list[weakref.WeakMethod[Callable[[], None]]] = []

    def at_beginnings(self, call: Callable[[], None]) -> Handle:
        """Have a bound method, which must not raise, called before each backward pass that
        accumulates, while someone listens."""
        weak = weakref.WeakMethod(call)
        self._beginnings.append(weak)
        return Handle(lambda: self._beginnings.remove(weak))

    def add(self) -> None:
        self._listeners += 1
        self._tap_scalers()
        for replacement in (*self._replacements, *self._scale_taps.values()):
            replacement.apply()

    def remove(self) -> None:
        self._listeners -= 1
        if self._listeners == 0:
            for replacement in (*self._replacements, *self._scale_taps.values()):
                replacement.undo()

    def root_loss(self) -> Scalar | None:
        """What the ``backward()`` under way differentiates: the sum of its one-element tensors,
        each times its ``gradient=``. None where these cannot be read, or have more elements."""
        try:
            return _sum_of(*self._roots)
        except Exception:  # of a class that is no tensor as others are
            return None

    def scaler(self) -> GradScaler | None:
        """The scaler that scaled the loss of the backward pass under way."""
        return self._scaler

    def _enter_backward(self, tensors: Any, grad_tensors: Any = None, *_: Any, **__: Any) -> None:
        self._outer.append((self._roots, self._scaler))
        self._roots = (tensors, grad_tensors)
        if torch._C._current_graph_task_id() == -1:  # not a pass within one
            self._scaler, self._scaled = self._scaled, None

    def _leave_backward(self) -> None:
        self._roots, self._scaler = self._outer.pop()

    def _run(self, *_: Any, **kwargs: Any) -> None:
        """Below ``backward``, which programs may have imported by its name before."""
        accumulates = kwargs.get("accumulate_grad", False)
        if not accumulates or torch._C._current_graph_task_id() != -1:
            return
        self.backward_passes += 1
        for weak in list(self._beginnings):
            call = weak()
            if call is not None:
                call()

    def _scale(self, scaler: GradScaler, *_: Any, **__: Any) -> None:
        self._scaled = scaler

    def _tap_scalers(self) -> None:
        """Every class of scalers that scales in a way of its own (ShardedGradScaler does)."""
        kinds: list[type] = [GradScaler, *_subclasses(GradScaler)]
        for kind in kinds:
            if "scale" in vars(kind) and kind not in self._scale_taps:
                self._scale_taps[kind] = TappedFunction(kind, "scale", before=self._scale)


def _sum_of(tensors: Any, gradients: Any) -> Scalar | None:
    roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors or ())
    if gradients is None or isinstance(gradients, torch.Tensor):
        gradients = [gradients] * len(roots)
    total: Scalar | None = None
    for root, gradient in zip(roots, gradients, strict=True):
        value = kept_value(root if gradient is None else root.detach() * gradient)
        if root.numel() != 1 or value is None:
            return None
        value = value.reshape(()) if isinstance(value, torch.Tensor) else value
        total = value if total is None else total + value
    return total


def _subclasses(kind: type[GradScaler]) -> Iterator[type[GradScaler]]:
    for found in kind.__subclasses__():
        yield found
        yield from _subclasses(found)


TAPS = Taps()
