# SPDX-License-Identifier: Apache-2.0
"""Attributes the time inside presum to its parts, by timing the functions that torch calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np

from presum._core import ParameterHook
from presum.fingerprints.families import Families
from presum.parallel.by_hand import ManualSource
from presum.steps.ended_steps import EndedSteps
from presum.steps.forwards import ForwardPasses
from presum.steps.step_recorder import StepRecorder
from presum.torch_events.hooks import Hook, OptimizerHook, OutputHook

CYCLE = 50  # recorded steps after which everything that is sampled has run once
# The first name applies until the thread has found the other ranks.
BACKGROUND_THREADS = ("presum", "presum-aggregator", "presum-sender")
GRADIENTS = "gradients"
LOSSES = "losses"


class _Stack(threading.local):
    def __init__(self) -> None:
        self.inner: list[float] = []


class Attribution:
    """While entered, adds up the seconds in each part, without the time of parts called from it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._stack = _Stack()
        self._patches = ExitStack()

    def __enter__(self) -> Attribution:
        self._time_calls(ParameterHook, "__call__", _gradients)
        for kind in (Hook, OutputHook, OptimizerHook):
            self._time_calls(kind, "__call__", _events)
        self._time_calls(ForwardPasses, "end", _losses)
        self._time_calls(StepRecorder, "output_reached", _losses)
        self._time_calls(StepRecorder, "read_all", _gradients)
        self._time_calls(Families, "call", lambda _self, family, *_, **__: family)
        self._time_calls(EndedSteps, "send", _packet)
        for name in ("before_reduction", "after_reduction"):
            self._time_calls(ManualSource, name, _gradients)
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def take(self) -> dict[str, float]:
        """The seconds by part since the last call."""
        found, self.seconds = self.seconds, {}
        return found

    def _time_calls(self, owner: Any, name: str, part_of: Callable[..., str]) -> None:
        call = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = self._begin()
            try:
                return call(*args, **kwargs)
            finally:
                self._end(part_of(*args, **kwargs), began)

        self._patches.enter_context(mock.patch.object(owner, name, timed))

    def _begin(self) -> float:
        self._stack.inner.append(0.0)
        return time.perf_counter()

    def _end(self, part: str, began: float) -> None:
        took = time.perf_counter() - began
        inner = self._stack.inner
        self.seconds[part] = self.seconds.get(part, 0.0) + took - inner.pop()
        if inner:
            inner[-1] += took


def _events(*_: object, **__: object) -> str:
    return "events"


def _losses(*_: object, **__: object) -> str:
    return LOSSES


def _packet(*_: object, **__: object) -> str:
    return "packet"


def _gradients(*_: object, reduced: bool = False, **__: object) -> str:
    return "reduced gradients, one step in 25" if reduced else GRADIENTS


class BackgroundClock:
    """Processor time of presum's background thread."""

    def __init__(self) -> None:
        (ours,) = (one for one in threading.enumerate() if one.name in BACKGROUND_THREADS)
        self._clock = time.pthread_getcpuclockid(ours.ident or threading.get_ident())

    def seconds(self) -> float:
        return time.clock_gettime(self._clock)


class Attributed:
    """The cost of steps, by part."""

    def __init__(
        self, steps: list[float], parts: list[dict[str, float]], background: float, cycle: int
    ) -> None:
        self.step = trimmed_mean(steps)
        self.background = background / len(steps)
        names = sorted({name for one in parts for name in one})
        self.parts = {
            name: over_cycles([one.get(name, 0.0) for one in parts], cycle) for name in names
        }
        totals = [sum(one.values()) for one in parts]
        self.hooks = over_cycles(totals, cycle)
        self.usual = float(np.median(totals))


def attribute(step: Callable[[], float], steps: int, cycle: int = CYCLE) -> Attributed:
    """Attribute the time of ``steps`` steps: one cycle or several."""
    background = BackgroundClock()
    began = background.seconds()
    took: list[float] = []
    parts: list[dict[str, float]] = []
    with Attribution() as attribution:
        for _ in range(steps):
            took.append(step())
            parts.append(attribution.take())
    return Attributed(took, parts, background.seconds() - began, min(cycle, steps))


def over_cycles(values: list[float], cycle: int) -> float:
    """The mean over the steps of a cycle, each the median over cycles. It includes work done in one
    step of 25, and excludes time slices of other programs."""
    whole = values[: len(values) // cycle * cycle]
    return float(np.median(np.reshape(whole, (-1, cycle)), axis=0).mean())


def trimmed_mean(values: list[float]) -> float:
    """The mean without the lowest and highest fifth, which excludes time slices of other
    programs."""
    cut = len(values) // 5
    return float(np.mean(sorted(values)[cut : len(values) - cut]))
