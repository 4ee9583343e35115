# SPDX-License-Identifier: Apache-2.0
"""Attaching to what a program makes, without a line of its code: ``python -m presum.run``.

Constructors of torch are replaced by ones that also remember what they made. A model is attached at
its first training forward, when its optimiser is there as well.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from presum.callbacks import TRAINER_TAP
from presum.monitor import Monitor
from presum.taps import Replacement
from presum.targets import is_watched

log = logging.getLogger("presum")


class Made:
    """DDP models and optimisers that this process has made since ``watch``."""

    def __init__(self) -> None:
        self.models: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        self.optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.new_model: Callable[[DistributedDataParallel], None] = lambda model: None
        self._watching = False

    def watch(self) -> None:
        """A second call does nothing."""
        if not self._watching:
            self._watching = True
            Replacement(DistributedDataParallel, "__init__", self._model).apply()
            Replacement(Optimizer, "__init__", self._optimizer).apply()

    def wrapper_of(self, module: nn.Module) -> nn.Module:
        """The DDP model around a module, or the module itself."""
        around = (model for model in self.models if model.module is module)
        return next(around, module)

    def optimizer_of(self, parameters: Iterable[nn.Parameter]) -> Optimizer | None:
        """The optimiser that holds most of these parameters."""
        wanted = {id(parameter) for parameter in parameters}

        def shared(optimizer: Optimizer) -> int:
            held = (p for group in optimizer.param_groups for p in group["params"])
            return sum(id(p) in wanted for p in held)

        best = max(self.optimizers, key=shared, default=None)
        return best if best is not None and shared(best) > 0 else None

    def _model(self, original: Any, model: DistributedDataParallel, *args: Any, **kw: Any) -> None:
        original(model, *args, **kw)
        self.models.add(model)
        self.new_model(model)

    def _optimizer(self, original: Any, optimizer: Optimizer, *args: Any, **kw: Any) -> None:
        original(optimizer, *args, **kw)
        self.optimizers.add(optimizer)


MADE = Made()


class FirstForward:
    """A model's forward pre-hook until its first training forward; copies as nothing."""

    def __init__(self, attach: Callable[..., None]) -> None:
        self._attach = attach
        self.handle: Any = None

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.is_grad_enabled():
            self.handle.remove()
            self._attach(module, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return (getattr, (contextlib.nullcontext(), "__exit__"))


class Auto:
    """Attaches every data-parallel model of this process with the same options."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._monitors: list[Monitor] = []
        self._fsdp: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._optimizer_steps = 0
        self._pid = os.getpid()
        self._said: set[str] = set()

    def start(self) -> None:
        from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

        MADE.watch()
        MADE.new_model = self._made
        Replacement(FSDPState, "_root_pre_forward", self._root_forward).apply()
        register_optimizer_step_post_hook(self._stepped)
        atexit.register(self._at_end)

    def _made(self, model: DistributedDataParallel) -> None:
        hook = FirstForward(self._attach)
        hook.handle = model.register_forward_pre_hook(hook, with_kwargs=True)
        self._look_at_frameworks()

    def _root_forward(self, original: Any, state: Any, module: Any, args: Any, kwargs: Any) -> Any:
        found = original(state, module, args, kwargs)
        if state._is_root and module not in self._fsdp and torch.is_grad_enabled():
            self._fsdp.add(module)
            self._attach(module, *found)
        return found

    def _attach(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        from presum.attach import attach

        if is_watched(module) or os.getpid() != self._pid:
            return
        optimizer = MADE.optimizer_of(module.parameters())
        self._look_at_frameworks()
        try:
            monitor = attach(module, optimizer=optimizer, **self._options)
        except Exception as error:
            self._say(str(error) if isinstance(error, ValueError) else f"presum: {error!r}")
            return
        self._monitors.append(monitor)
        assert monitor._collector is not None
        monitor._collector.begin(module, args, kwargs)

    def _look_at_frameworks(self) -> None:
        if "transformers.trainer" in sys.modules:
            TRAINER_TAP.apply()

    def _stepped(self, *_args: Any) -> None:
        self._optimizer_steps += 1

    def _at_end(self) -> None:
        """What a person would otherwise wonder about."""
        if self._monitors or os.getpid() != self._pid or os.environ.get("RANK", "0") != "0":
            return
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if self._optimizer_steps and world > 1:
            self._say(
                f"presum: {world} ranks were started, and this one made {self._optimizer_steps} "
                "optimiser steps, but no DistributedDataParallel or FSDP2 model was trained: each "
                'rank trains on its own, or reduces by hand (then attach with mode="manual")'
            )
        else:
            self._say(
                "presum: nothing was recorded: no DistributedDataParallel or FSDP2 model was "
                "trained in this process"
            )

    def _say(self, text: str) -> None:
        if not self._options.get("quiet") and text not in self._said:
            self._said.add(text)
            print(text, file=sys.stderr, flush=True)


_auto: Auto | None = None


def start(options: dict[str, Any]) -> None:
    """Attach to everything from here on. Only the first call counts."""
    global _auto
    if _auto is None:
        _auto = Auto(options)
        _auto.start()
