# SPDX-License-Identifier: Apache-2.0
"""What torch calls: bound methods of a collector that never raise."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch._compile import _disable_dynamo

if TYPE_CHECKING:
    from presum.collector import Collector, MicroBatch
    from presum.ddp import DdpCollector


class Hook:
    """A bound method that torch calls; it never raises, and copies and pickles as one of Python's
    own that does nothing, so that models still do, and load where presum is not installed."""

    __torch_unserializable__ = True  # on a tensor: saving it is no reason for a warning

    def __init__(
        self,
        collector: Collector | None = None,
        method: Callable[..., None] | None = None,
        *bound: object,
    ) -> None:
        self._collector = collector
        self._method = method
        self._bound = bound

    @_disable_dynamo  # a compiled wrapper calls it as it is
    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self._collector is None or self._collector.off:
            return
        try:
            assert self._method is not None
            self._method(*self._bound, *args, **kwargs)
        except Exception as error:
            self._collector.fail(error)

    def is_of_a_recording(self) -> bool:
        """Whether its collector has not ended."""
        return self._collector is not None and not self._collector.ended

    def __reduce__(self) -> tuple[Any, ...]:
        return (getattr, (contextlib.nullcontext(), "__exit__"))


class ParameterHook(Hook):
    """The hook of one parameter: as :class:`Hook`, with as few steps as possible."""

    def __init__(self, collector: DdpCollector | None = None, index: int = 0) -> None:
        super().__init__(collector)
        self._owner = collector
        self._index = index

    def __call__(self, *args: Any, **_kwargs: Any) -> None:
        collector = self._owner
        if collector is None or collector.off:
            return
        try:
            if not collector.in_backward:
                collector.before_backward()
            if collector.collecting:
                collector.read(self._index, args[0].grad, reduced=False)
        except Exception as error:
            collector.fail(error)


class OutputHook(Hook):
    """The hook on what a forward pass gave. A program may keep that, and its graph, longer than the
    model: it must not hold the collector, which holds the model."""

    def __init__(
        self, collector: Collector | None = None, micro_batch: MicroBatch | None = None
    ) -> None:
        super().__init__()
        self._weak = None if collector is None else weakref.ref(collector)
        self._micro_batch = micro_batch

    @_disable_dynamo
    def __call__(self, *_args: Any, **_kwargs: Any) -> None:
        collector = None if self._weak is None else self._weak()
        if collector is None or collector.off or self._micro_batch is None:
            return
        try:
            collector.output_reached(self._micro_batch)
        except Exception as error:
            collector.fail(error)


def is_of(hook: object, collector: Collector) -> bool:
    """Whether a hook on an output is a collector's."""
    return isinstance(hook, OutputHook) and hook._weak is not None and hook._weak() is collector


class OptimizerHook(Hook):
    """The hook after the optimiser's step: as :class:`Hook`, but steps count on when collecting has
    failed, so that a preflight still ends."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self._collector is not None and self._collector.failed:
            self._collector.count_optimizer_step()
        else:
            super().__call__(*args, **kwargs)
