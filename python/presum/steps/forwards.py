# SPDX-License-Identifier: Apache-2.0
"""Collects the facts of forward passes about their micro-batches."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import nn

from presum.fingerprints.step import MicroBatchSamples
from presum.steps.accumulation import AccumulationWindow, TrainingForward
from presum.steps.setup import RecorderSetup
from presum.torch_events.hooks import EventListener, OutputHook, belongs_to
from presum.torch_events.losses import (
    Scalar,
    count_tokens,
    find_loss,
    first_tensor,
    kept_value,
    share_of_tokens,
    shifts_labels,
)
from presum.torch_events.taps import TAPS


class ForwardFacts(NamedTuple):
    """What a forward pass of the wrapper showed of its micro-batch."""

    forward: int  # its number
    loss: Scalar | None
    tokens: Scalar
    share: Scalar | None  # of the tokens that the loss was divided by, unless it is all of them
    rows: MicroBatchSamples | None


class ForwardPasses:
    """The forward passes of one model: it hooks their outputs, to see where backward passes
    begin."""

    def __init__(
        self, setup: RecorderSetup, inner: nn.Module | None, window: AccumulationWindow
    ) -> None:
        self._setup = setup
        self._window = window
        self._inner = None if inner is None else weakref.ref(inner)
        self._shifts_labels = inner is not None and shifts_labels(inner)
        self._forwards = 0
        self._rows: MicroBatchSamples | None = None  # of the last forward, until a pass takes them

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A training forward of the wrapper begins."""
        recorded = self._setup.observer.next_is_recorded
        self._rows = self._setup.fingerprints.rows(args, kwargs, recorded=recorded)

    def end(
        self, listener: EventListener, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """A forward has ended. ``listener.output_reached`` is called when a backward pass reaches
        its output."""
        loss, recorded = find_loss(output), self._setup.observer.next_is_recorded
        other = first_tensor(output, but=loss)  # the program may derive another loss from it
        for given in (loss, other):
            if given is not None:
                self._setup.fingerprints.gives(given, is_loss=given is loss)
        self._forwards += 1
        facts = ForwardFacts(self._forwards, None, 0, None, None)
        if recorded and (loss is not None or other is not None):
            facts = self._facts_of(args, kwargs)
            if self._is_training():
                has_loss = loss is not None and loss is not output
                wanted = any(_is_differentiated(x) for x in (*args, *kwargs.values()))
                forward = TrainingForward(has_loss, wanted, facts.rows)
                self._window.forward(self._forwards, forward)
        # A framework that adds losses up may be about to train on a different one.
        is_known = TAPS.passes_added_up is None or facts.share is not None
        if loss is not None:
            value = kept_value(loss) if recorded and is_known else None
            _watch(listener, loss, facts._replace(loss=value))
        if other is not None:
            _watch(listener, other, facts)

    def _is_training(self) -> bool:
        inner = None if self._inner is None else self._inner()
        return inner is not None and inner.training

    def take_rows(self) -> MicroBatchSamples | None:
        """The rows of the last forward, unless a backward pass has taken them."""
        rows, self._rows = self._rows, None
        return rows

    def _facts_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ForwardFacts:
        """The facts of its micro-batch besides the loss."""
        rows = self.take_rows()
        shifted = self._shifts_labels if TAPS.shifts_labels is None else TAPS.shifts_labels
        given = {"labels": TAPS.labels, **kwargs}
        tokens = count_tokens(args, given, on_host=self._setup.on_host, shifted=shifted)
        share = share_of_tokens(kwargs, tokens, TAPS.items)
        return ForwardFacts(self._forwards, None, tokens, share, rows)


def _is_differentiated(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _watch(listener: EventListener, output: torch.Tensor, facts: ForwardFacts) -> None:
    hooks = output._backward_hooks or {}
    for key in [key for key, hook in hooks.items() if belongs_to(hook, listener)]:
        del hooks[key]  # of an output that the model returns again
    output.register_hook(OutputHook(listener, facts))  # type: ignore[no-untyped-call]
