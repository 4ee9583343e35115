# SPDX-License-Identifier: Apache-2.0
"""Attach to whatever a program constructs, without a change of its code: ``python -m presum.run``.

The constructors of DDP models and optimizers also record the new object. A model is attached at its
first training forward, when its optimizer exists as well. Processes that
``torch.multiprocessing.spawn`` starts do the same.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import multiprocessing
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import distributed, nn
from torch._compile import _disable_dynamo
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from presum.fingerprints.loaders import LOADER_EVENTS
from presum.frameworks.callbacks import TRAINER_TAP
from presum.frameworks.closing import Seen, closing_line, why_unwatched
from presum.options import PROCESS, arguments_of
from presum.parallel.replicated import MODULE as REPLICATE
from presum.parallel.targets import is_watched
from presum.steps.gradient_source import in_backward
from presum.steps.recording import watched_parameters
from presum.steps.step_recorder import StepRecorder
from presum.torch_events.hooks import pickled_as_nothing
from presum.torch_events.optimizers import parameters_of
from presum.torch_events.taps import TappedFunction
from presum.transport.rendezvous import is_recorded

# The attribute of torch.multiprocessing with this name is the function.
SPAWN: Any = import_module("torch.multiprocessing.spawn")
SPAWNED = "PRESUM_SPAWNED"  # options for the processes that this one spawns
log = logging.getLogger("presum")
T = TypeVar("T")


class Constructions:
    """DDP models and optimizers that this process has constructed since ``watch``, in order."""

    def __init__(self) -> None:
        self._models: list[weakref.ref[DistributedDataParallel]] = []
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self.new_model: Callable[[DistributedDataParallel], None] = lambda model: None
        self._replacements = [
            TappedFunction(DistributedDataParallel, "__init__", after=self._model),
            TappedFunction(Optimizer, "__init__", after=self._optimizer),
        ]

    def watch(self) -> None:
        """Start to record constructions. A second call does nothing."""
        for replacement in self._replacements:
            replacement.apply()

    def wrapper_of(self, module: nn.Module) -> nn.Module:
        """The newest DDP model around a module, or the module itself."""
        return next((one for one in reversed(self.models()) if one.module is module), module)

    def models(self) -> list[DistributedDataParallel]:
        """The DDP models that are still alive."""
        return _alive(self._models)

    def optimizer_of(self, parameters: Iterable[nn.Parameter]) -> Optimizer | None:
        """The optimizer that holds most of these parameters; of several, the newest."""
        wanted = {id(parameter) for parameter in parameters}

        def shared(optimizer: Optimizer) -> int:
            return sum(id(p) in wanted for p in parameters_of(optimizer))

        best = max(reversed(_alive(self._optimizers)), key=shared, default=None)
        return best if best is not None and shared(best) > 0 else None

    def _model(self, _result: None, model: DistributedDataParallel, *_: Any, **__: Any) -> None:
        with _errors_logged():
            LOADER_EVENTS.forget_recent()
            self._models = [*map(weakref.ref, self.models()), weakref.ref(model)]
            self.new_model(model)

    def _optimizer(self, _result: None, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        with _errors_logged():
            LOADER_EVENTS.forget_recent()
            self._optimizers = [*map(weakref.ref, _alive(self._optimizers)), weakref.ref(optimizer)]


def _trains(optimizer: Optimizer) -> bool:
    """Whether the optimizer's step can have changed a parameter."""
    groups = optimizer.param_groups
    return any(g.get("lr") != 0 and any(p.grad is not None for p in g["params"]) for g in groups)


def _alive(references: Iterable[weakref.ref[T]]) -> list[T]:
    return [thing for reference in references if (thing := reference()) is not None]


@contextlib.contextmanager
def _errors_logged() -> Iterator[None]:
    """An error of presum must not surface in a program that does not use presum itself."""
    try:
        yield
    except Exception:
        log.warning("presum: cannot watch what was made here", exc_info=True)


CONSTRUCTIONS = Constructions()


class FirstForward:
    """A forward pre-hook on a model and its wrapper that fires once, at the first training forward.
    Copies and pickles of it do nothing."""

    def __init__(self, model: DistributedDataParallel, attach: AttachCall) -> None:
        self._model = weakref.ref(model)
        self._attach = attach
        self._handles = [
            model.register_forward_pre_hook(self, with_kwargs=True),
            model.module.register_forward_pre_hook(self, with_kwargs=True),
        ]

    @_disable_dynamo
    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        model = self._model()
        if model is None or not torch.is_grad_enabled() or in_backward():
            return
        # Without the wrapper, a module may also run before its training begins.
        if module is model or CONSTRUCTIONS.optimizer_of(model.parameters()) is not None:
            self.remove()
            self._attach(model, module, args, kwargs)

    def attach(self, model: DistributedDataParallel) -> None:
        """Attach without a forward pass: a program that calls only parts of the model never makes
        one."""
        self.remove()
        self._attach(model, None, (), {})

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def __reduce__(self) -> tuple[Any, ...]:
        return pickled_as_nothing()


# Called with a model and the module whose forward pass begins: the wrapper, the module inside, or
# None.
AttachCall = Callable[[nn.Module, nn.Module | None, tuple[Any, ...], dict[str, Any]], None]


class AutoAttach:
    """Attaches every data-parallel model of this process with the same options."""

    def __init__(self, options: dict[str, Any], words: Sequence[str] | None) -> None:
        self._options = options
        self._words = words
        self._fsdp: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        # Models that have not trained yet.
        self._waiting: weakref.WeakKeyDictionary[DistributedDataParallel, FirstForward] = (
            weakref.WeakKeyDictionary()
        )
        self._stepped_once: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._looked_at: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # already checked
        self._watched = False  # some model is recorded, whichever code attached it
        self._spawned = False
        run = options.get("run")
        self._run = None if run is None else Path(run).absolute()
        PROCESS.run = self._run
        self._recorded = False  # by some rank, as far as known
        # Models whose first forward pass was inside a backward pass.
        self._late: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._fsdp1: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._unwatched: dict[str, str] = {}  # not recorded, with the reason
        self._optimizer_steps = 0
        self._pid = os.getpid()
        self._said: set[str] = set()

    def start(self) -> None:
        CONSTRUCTIONS.watch()
        CONSTRUCTIONS.new_model = self._made
        with _errors_logged():
            from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

            TappedFunction(FSDPState, "_root_pre_forward", after=self._root_forward).apply()
        with _errors_logged():
            state = import_module(REPLICATE)._ReplicateState
            TappedFunction(state, "forward_pre_hook", after=self._replicated_forward).apply()
        TappedFunction(FullyShardedDataParallel, "__init__", after=self._fsdp1_made).apply()
        with _errors_logged():
            os.environ[SPAWNED] = json.dumps(self._options)
            SPAWN._wrap = spawned
            TappedFunction(SPAWN, "start_processes", before=self._start_processes).apply()
        TappedFunction(
            distributed, "destroy_process_group", before=self._ask_whether_recorded
        ).apply()
        TappedFunction(subprocess.Popen, "__init__", before=self._start_process).apply()
        LOADER_EVENTS.watch_ahead()
        register_optimizer_step_post_hook(self._stepped)
        atexit.register(self._at_end)

    def _start_processes(self, *_: Any, **__: Any) -> None:
        self._spawned = True

    def _start_process(self, process: Any, *args: Any, **kwargs: Any) -> Any:
        """Also record a rank that the program starts itself, as Lightning does."""
        with _errors_logged():
            args, kwargs = self._as_watched(args, kwargs)
        return (process, *args), kwargs

    def _as_watched(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Arguments of Popen, with presum.run inserted if they start this program as another
        rank."""
        command = args[0] if args else kwargs.get("args", ())
        if not isinstance(command, (list, tuple)):
            return args, kwargs  # not a list, or an iterator, which must not be consumed
        command = list(command)
        program = os.path.abspath(sys.argv[0])  # noqa: PTH100
        environment = kwargs.get("env") or {}
        place = len(command) - len(sys.argv)
        same = command[:place] == [sys.executable] and command[place:] == [program, *sys.argv[1:]]
        module = command == [sys.executable, "-m", _module_name(), *sys.argv[1:]]
        if self._words is None or not (same or module) or "LOCAL_RANK" not in environment:
            return args, kwargs
        watched = [sys.executable, "-m", "presum.run", *self._words, *command[place:]]
        return ((watched, *args[1:]), kwargs) if args else ((), kwargs | {"args": watched})

    def _made(self, model: DistributedDataParallel) -> None:
        self._waiting[model] = FirstForward(model, self._attach)
        self._look_at_frameworks()

    def _fsdp1_made(
        self, _result: None, model: FullyShardedDataParallel, *_: Any, **__: Any
    ) -> None:
        self._fsdp1.add(model)

    def _root_forward(self, found: Any, state: Any, module: Any, *_: Any) -> None:
        if not state._is_root or module in self._fsdp or not torch.is_grad_enabled():
            return
        if in_backward():
            self._late.add(module)
            return
        self._fsdp.add(module)
        self._attach(module, module, *found)

    def _replicated_forward(self, found: Any, state: Any, module: nn.Module, *_: Any) -> None:
        """The forward of a module begins that the composable ``replicate`` was applied to."""
        first = self._waiting.get(state._ddp)
        if first is not None and torch.is_grad_enabled() and not in_backward():
            del self._waiting[state._ddp]
            first.remove()
            self._attach(module, module, *found)

    def _attach(
        self,
        model: nn.Module,
        entered: nn.Module | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """``entered``: the module whose forward pass is about to begin, or None."""
        if os.getpid() != self._pid:
            return
        if isinstance(model, DistributedDataParallel):
            self._waiting.pop(model, None)
        if is_watched(model):
            self._watched = True
            return
        try:
            recorder = self._attach_now(model)
            self._watched = True
            if entered is not None:
                recorder.begin(entered, args, kwargs)
        except Exception as error:
            if "reduction" in self._options:
                raise  # never replace a requested reduction silently
            text = str(error) if isinstance(error, ValueError) else f"presum: {error!r}"
            name = type(getattr(model, "module", model)).__name__
            self._say(text)
            self._unwatched[name] = text.removeprefix("presum.attach: ").removeprefix("presum: ")

    def _attach_now(self, model: nn.Module) -> StepRecorder:
        from presum.attaching import attach

        self._look_at_frameworks()
        optimizer = CONSTRUCTIONS.optimizer_of(model.parameters())
        recorder = attach(model, optimizer=optimizer, **arguments_of(self._options))._recorder
        assert recorder is not None
        return recorder

    def _look_at_frameworks(self) -> None:
        if "transformers.trainer" in sys.modules:
            TRAINER_TAP.apply()

    def _stepped(self, optimizer: Optimizer, *_args: Any) -> None:
        self._optimizer_steps += 1
        if optimizer in self._looked_at:
            return
        if optimizer not in self._stepped_once:
            self._stepped_once.add(optimizer)
            self._attach_trained(optimizer)
        with _errors_logged():
            if _trains(optimizer):  # a first step may only initialize the optimizer's state
                self._looked_at.add(optimizer)
                self._look_at(optimizer)

    def _attach_trained(self, optimizer: Optimizer) -> None:
        """Attach models whose parameters are trained although presum saw no forward pass outside a
        backward pass."""
        trained: list[nn.Module] = []
        with _errors_logged():
            for model in [*self._waiting, *self._late]:
                if CONSTRUCTIONS.optimizer_of(model.parameters()) is optimizer:
                    trained.append(model)
        for model in trained:
            self._late.discard(model)
            first = self._waiting.get(model)  # type: ignore[call-overload]
            if first is not None:
                first.attach(model)
            elif model not in self._fsdp:
                self._fsdp.add(model)
                self._attach(model, None, (), {})

    def _look_at(self, optimizer: Optimizer) -> None:
        """Note if no recorded model holds the optimizer's parameters."""
        held = {id(p) for p in parameters_of(optimizer)}
        refused = [one for one in CONSTRUCTIONS.models() if not is_watched(one)]
        watched = {id(p) for p in watched_parameters()}
        if held & watched or any(id(p) in held for one in refused for p in one.parameters()):
            return
        name, why = why_unwatched(optimizer, self._fsdp1)
        self._unwatched[name] = why

    def _ask_whether_recorded(self, *_: Any, **__: Any) -> None:
        """Ask whether another rank records, while a process group still exists."""
        if not (self._watched or PROCESS.attached or self._recorded):
            self._recorded = is_recorded(self._run)

    def _at_end(self) -> None:
        """Print the closing line, if there is one."""
        if os.getpid() != self._pid:
            return
        if multiprocessing.parent_process() is not None and not self._optimizer_steps:
            return  # a helper process
        self._ask_whether_recorded()
        line = closing_line(
            Seen(
                rank=int(os.environ.get("RANK", "0")),
                world_size=int(os.environ.get("WORLD_SIZE", "1")),
                watched=self._watched or PROCESS.attached,
                unwatched=self._unwatched,
                optimizer_steps=self._optimizer_steps,
                starts_ranks=self._spawned,
                recorded_elsewhere=self._recorded,
            )
        )
        if line is not None:
            self._say(line)

    def _say(self, text: str) -> None:
        first = os.environ.get("RANK", "0") == "0"
        if first and not self._options.get("quiet") and text not in self._said:
            self._said.add(text)
            print(text, file=sys.stderr, flush=True)


def _module_name() -> str | None:
    """Of a program that runs as ``python -m``."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return None if spec is None else str(spec.name).removesuffix(".__main__")


_auto: AutoAttach | None = None
_wrap = SPAWN._wrap


def start(options: dict[str, Any], words: Sequence[str] | None = None) -> None:
    """Attach to every model that is constructed from now on. Only the first call has an effect.
    Raises ValueError if the options are invalid.

    ``words`` are the words of presum.run's command line before the program, for ranks that the
    program starts itself; None if presum was started in another way.
    """
    from presum.attaching import check_options

    global _auto
    check_options(**arguments_of(options))
    if _auto is None:
        _auto = AutoAttach(options, words)
        _auto.start()


def spawned(*args: Any) -> None:
    """The function that a process started by ``torch.multiprocessing.spawn`` runs."""
    with _errors_logged():
        start(json.loads(os.environ[SPAWNED]))
    _wrap(*args)
