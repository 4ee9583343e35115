# SPDX-License-Identifier: Apache-2.0
"""Events that torch has no hooks for: the tensors on which ``backward()`` is called, the loss
scaler in use, and when this thread waits for others.

Functions of torch are replaced while there is a listener; they behave as before.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import torch
import torch.autograd
from torch._C._distributed_c10d import Work
from torch.amp.grad_scaler import GradScaler

from presum._core import Tap, wait_begins, wait_ends
from presum.torch_events.hooks import Handle
from presum.torch_events.losses import Scalar, kept_value
from presum.torch_events.token_weights import TokenWeights


class ReplacedFunction:
    """A function of a module or class, and its replacement."""

    def __init__(self, owner: Any, name: str, stand_in: Callable[..., Any]) -> None:
        """``stand_in`` gets the original before the arguments, and can do something else."""
        self._owner, self._name, self._stand_in = owner, name, stand_in
        self._original: Any = None
        self._replacement: Any = None  # while it is in place
        self._active = False

    def apply(self) -> None:
        """Put the replacement in place. A second call does nothing."""
        if self._replacement is None:
            self._original = self._look()
            self._replacement = functools.update_wrapper(self._made(self._original), self._original)
            self._put(self._replacement)
        self._activate(True)

    def undo(self) -> None:
        """Restore the original. If other code has replaced the function since, presum's replacement
        stays inside and does nothing."""
        self._activate(False)
        if self._look() is self._replacement:
            self._put(self._original)
            self._replacement = None

    def _look(self) -> Any:
        return vars(self._owner)[self._name]

    def _put(self, function: Any) -> None:
        setattr(self._owner, self._name, function)

    def _made(self, original: Any) -> Any:
        def replacement(*args: Any, **kwargs: Any) -> Any:
            if not self._active:
                return original(*args, **kwargs)
            return self._stand_in(original, *args, **kwargs)

        return replacement

    def _activate(self, active: bool) -> None:
        self._active = active


class TappedFunction(ReplacedFunction):
    """A function that behaves as before and reports its calls. It adds no frame, so warnings and
    tracebacks stay the program's own."""

    def __init__(
        self,
        owner: Any,
        name: str,
        *,
        before: Callable[..., Any] | None = None,
        after: Callable[..., None] | None = None,
        always: Callable[[], None] | None = None,
    ) -> None:
        """``before`` gets the arguments, and can return others as a pair. ``after`` gets the result
        before the arguments. ``always`` is called even if the function raises."""
        super().__init__(owner, name, lambda: None)
        self._told = {"before": before, "after": after, "always": always}

    def _made(self, original: Any) -> Any:
        return Tap(original, **self._told)

    def _activate(self, active: bool) -> None:
        if self._replacement is not None:
            self._replacement.active = active


L = TypeVar("L")


class Listeners(Generic[L]):
    """A list of listeners; functions are replaced as long as it is not empty."""

    def __init__(self, *replaced: ReplacedFunction) -> None:
        self._replaced = replaced
        self._listening: list[L] = []

    def __iter__(self) -> Iterator[L]:
        return iter(self._listening)

    def add(self, listener: L) -> Handle:
        self._listening = [*self._listening, listener]
        for function in self._replaced:
            function.apply()
        return Handle(lambda: self._remove(listener))

    def _remove(self, listener: L) -> None:
        self._listening = [one for one in self._listening if one is not listener]
        if not self._listening:
            for function in self._replaced:
                function.undo()


class EngineRun:
    """One outermost run of the autograd engine, with the arguments of its caller."""

    def __init__(
        self,
        roots: Any,
        gradients: Any = None,
        retain: bool = False,
        _create: bool = False,
        inputs: Any = (),
        *_: Any,
        accumulate_grad: bool = False,
        **__: Any,
    ) -> None:
        """Takes the arguments of torch's ``_engine_run_backward``."""
        self.accumulates = accumulate_grad
        self.over = False
        self._roots, self._gradients, self._inputs = roots, gradients, inputs
        self._kept = bool(retain or inputs)
        self.scaler: GradScaler | None = None
        self.token_weights: TokenWeights | None = None

    def root_loss(self) -> Scalar | None:
        """The sum of its one-element roots, each times its ``gradient=``. None if they cannot be
        read, or have more elements."""
        try:
            return _sum_of(self._roots, self._gradients)
        except Exception:  # of an unusual tensor class
            return None

    def roots(self) -> list[Any]:
        """The tensors to differentiate."""
        return _roots_of(self._roots)

    def weighs_tokens(self) -> None:
        """Before it begins: measure what arrives at the loss function, for all recorders."""
        compiled = sys.modules.get("torch._dynamo.compiled_autograd")
        if self.token_weights is None and not getattr(compiled, "compiled_autograd_enabled", False):
            self.token_weights = TokenWeights(self.roots(), kept=self._kept)

    def may_reach(self, parameters: Iterable[object]) -> bool:
        """Whether the run accumulates, and its caller has not limited it to other tensors than
        these."""
        limits = {id(one) for one in self._inputs or ()}
        return self.accumulates and (not limits or any(id(p) in limits for p in parameters))

    def end(self) -> None:
        self.over = True
        if self.token_weights is not None:
            self.token_weights.remove()
        self._roots = self._gradients = self._inputs = ()


class Nested(threading.local):
    """A thread's depth of engine runs inside others, and the calls that wait for their end."""

    def __init__(self) -> None:
        self.depth = 0
        self.waiting: list[Callable[[], None]] = []


class Taps:
    """Shared by all recorders of a process."""

    def __init__(self) -> None:
        self._listeners = 0
        self.backward_passes = 0  # begun so far
        self._runs: dict[int, EngineRun] = {}  # current runs, by the calling thread
        # Held while recorders examine gradients: a run that begins waits, because the engine writes
        # gradients without the GIL.
        self._looking = threading.RLock()
        self._nested = Nested()
        # Set while the Trainer of transformers trains: the tokens that losses are divided by, and
        # the factor on them (the world size, because DDP divides by it).
        self.items: float | torch.Tensor | None = None
        self.loss_factor = 1.0
        self.shifts_labels: bool | None = None
        self.labels: object = None  # of the batch, if the model may not get them
        # The number of passes that the Trainer adds up to the loss that it logs; None outside its
        # training step.
        self.passes_added_up: float | None = None
        self._replacements = [
            TappedFunction(
                torch.autograd,
                "_engine_run_backward",
                before=self._enter,
                after=self._nested_has_ended,
                always=self._leave,
            ),
            # Python waits for a collective here, its own or FSDP's.
            TappedFunction(Work, "wait", before=wait_begins, always=wait_ends),
        ]
        self._scale_taps: dict[type, TappedFunction] = {}
        self._scaled = False  # some scaler has scaled a loss
        self._beginnings: Listeners[weakref.WeakMethod[Callable[[], None]]] = Listeners()

    def at_beginnings(self, call: Callable[[], None]) -> Handle:
        """Call a bound method, which must not raise, before each backward pass that accumulates,
        while there is a listener."""
        return self._beginnings.add(weakref.WeakMethod(call))

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

    def run(self) -> EngineRun | None:
        """The current run of the engine in this thread, or, for the engine's own threads, the only
        one. None also if a program has called the engine itself."""
        mine = self._runs.get(threading.get_ident())
        if mine is not None or len(self._runs) != 1:
            return mine
        return next(iter(list(self._runs.values())), None)

    @property
    def others_run(self) -> bool:
        """Whether the engine is running for another thread."""
        return len(self._runs) > (threading.get_ident() in self._runs)

    @property
    def is_nested(self) -> bool:
        """Whether this thread is in a run inside another one (a reentrant checkpoint)."""
        return self._nested.depth > 0

    def in_outermost(self, call: Callable[[], None]) -> None:
        """Call at once, or, in a nested run, when the outermost run continues."""
        if self.is_nested:
            self._nested.waiting.append(call)
        else:
            call()

    def _enter(self, *args: Any, **kwargs: Any) -> None:
        """Taps below ``backward``, which programs may have imported by name earlier."""
        if torch._C._current_graph_task_id() != -1:
            self._nested.depth += 1
            return
        run = EngineRun(*args, **kwargs)
        run.scaler = _scaler_of(args[0]) if self._scaled else None
        with self._looking:
            self._runs[threading.get_ident()] = run
            if run.accumulates:
                self.backward_passes += 1
                for weak in self._beginnings:
                    call = weak()
                    if call is not None:
                        call()

    def _nested_has_ended(self, *_: Any, **__: Any) -> None:
        if self._nested.depth == 1:
            waiting, self._nested.waiting = self._nested.waiting, []
            for call in waiting:
                call()

    def _leave(self) -> None:
        if self.is_nested:
            self._nested.depth -= 1
            return
        self._nested.waiting.clear()
        run = self._runs.pop(threading.get_ident(), None)
        if run is not None:
            run.end()

    def _tap_scalers(self) -> None:
        """Tap every scaler class that overrides ``scale`` (such as ShardedGradScaler)."""
        kinds: list[type] = [GradScaler, *_subclasses(GradScaler)]
        for kind in kinds:
            if "scale" in vars(kind) and kind not in self._scale_taps:
                self._scale_taps[kind] = TappedFunction(kind, "scale", after=self._mark_scaled)

    def _mark_scaled(self, outputs: Any, scaler: GradScaler, *_: Any, **__: Any) -> None:
        self._scaled = True
        _mark_scaled(outputs, scaler)


SCALER = "presum_scaler"  # a node's metadata: the scaler, held weakly
NODES_MAX = 64


def _mark_scaled(outputs: Any, scaler: GradScaler) -> None:
    """Mark the node in the graph, because the differentiated tensor may be derived from it (a sum,
    a quotient)."""
    if isinstance(outputs, torch.Tensor):
        node: Any = outputs.grad_fn
        if node is not None:
            node.metadata[SCALER] = weakref.ref(scaler)
    elif isinstance(outputs, (list, tuple)):
        for output in outputs:
            _mark_scaled(output, scaler)


def _roots_of(tensors: Any) -> list[Any]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors or ())


def _scaler_of(roots: Any) -> GradScaler | None:
    """The scaler that scaled the roots, if it did so near the end of the graph."""
    nodes = deque(getattr(root, "grad_fn", None) for root in _roots_of(roots))
    for _ in range(NODES_MAX):
        node = nodes.popleft() if nodes else None
        if node is None:
            if not nodes:
                return None
            continue
        if SCALER in node.metadata:
            found: GradScaler | None = node.metadata[SCALER]()
            return found
        nodes.extend(following for following, _ in node.next_functions)
    return None


def _sum_of(tensors: Any, gradients: Any) -> Scalar | None:
    roots = _roots_of(tensors)
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
