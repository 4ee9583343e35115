# SPDX-License-Identifier: Apache-2.0
"""Steps that have ended, until their packets are sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch

from presum._core import EndedStep
from presum.devices.gradient_pass import DeviceStep, FetchedStep, poll_host_copies
from presum.devices.marks import Marks, seconds_of
from presum.devices.torch_pass import signed
from presum.fingerprints import TakenFingerprints
from presum.fingerprints.step import StepSamples
from presum.steps.late import LateNumbers
from presum.steps.setup import RecorderSetup
from presum.transport.outbox import LatePacket

LAST_NUMBERS_SECONDS = 1.0  # how long the end of a recording waits for a device


class EndedSteps:
    """Makes the packets of ended steps, and keeps the current window's values that are still on a
    device."""

    def __init__(self, setup: RecorderSetup) -> None:
        self._setup = setup
        self.late = LateNumbers()
        self.samples = StepSamples()
        self._windows = 0  # the windows left before the current one
        self._late_steps: set[int] = set()  # steps whose packets are not made yet

    def due(self) -> bool:
        """Whether the last event has left a window."""
        return self._setup.observer.windows != self._windows

    def send(
        self,
        device_step: Callable[[], DeviceStep],
        gram: torch.Tensor | None,
        marks: Marks,
    ) -> bool:
        """Send the step that the last event ended, with the previous window's late values. Returns
        whether that step is recorded."""
        observer, setup = self._setup.observer, self._setup
        self._windows = observer.windows
        late, self.late = self.late, LateNumbers()
        rows = self.samples.take()
        ended = observer.take_ended()
        if ended is None:
            return False
        extras = StepExtras(ended, setup.fingerprints.take(rows), gram, marks)
        if setup.on_host:
            setup.send(self._packet(extras))
            return True
        number = observer.windows
        fetch = device_step().fetch(late.tensors(), extras.words())
        self._late_steps.add(number)
        make = partial(self._late_packet, extras, number)
        setup.send(
            LatePacket(fetch.ready, lambda: make(fetch()), lambda: self._late_steps.discard(number))
        )
        return True

    def take_final_states(self) -> None:
        """Store the final state of the parameters for the final note."""
        final = self._setup.fingerprints.final_states(on_host=self._setup.on_host)
        if not final.states:
            return
        fetch = DeviceStep(self._setup.device, 0).fetch([], final.tensors())
        if _waited_for(fetch.ready):
            states = final.with_numbers(fetch().words).states
            self._setup.fingerprints.report_states(states, self._setup.observer)

    def _late_packet(self, extras: StepExtras, number: int, fetched: FetchedStep) -> bytes:
        """Runs on the background thread, once the numbers have left the device."""
        try:
            ended = extras.ended
            extras = extras.with_words(fetched.words)
            ended.numbers(fetched.extra)
            for gradient in fetched.gradients:
                ended.gradient_sums(*gradient)
            if fetched.repeated:
                ended.no_sketch()
            ended.add_sketch(fetched.sketch)
            if extras.marks:
                ended.times(seconds_of(extras.marks))
            return self._packet(extras)
        finally:
            self._late_steps.discard(number)

    def _packet(self, extras: StepExtras) -> bytes:
        ended = extras.ended
        if extras.gram is not None:
            ended.gram(extras.gram.to("cpu", torch.float64))
        self._setup.fingerprints.report(extras.prints, ended)
        return ended.packet()

    def await_numbers(self) -> None:
        """Wait for steps that are still on a device: after the end nothing looks for them."""
        _waited_for(lambda: not self._late_steps)


def _waited_for(done: Callable[[], bool]) -> bool:
    """Wait until ``done()``, at most as long as the end of a recording may wait. Returns whether it
    is done."""
    deadline = time.monotonic() + LAST_NUMBERS_SECONDS
    while not done() and time.monotonic() < deadline:
        poll_host_copies()
        time.sleep(0.001)
    return done()


class StepExtras(NamedTuple):
    """An ended step, and values to add to it; some of them may be on a device."""

    ended: EndedStep
    prints: TakenFingerprints
    gram: torch.Tensor | None
    marks: Marks  # in the device's time

    def words(self) -> list[torch.Tensor]:
        """The values that are on a device, as 64-bit words."""
        gram = [] if self.gram is None else [self.gram.view(torch.int64)]
        return [*self.prints.tensors(), *gram]

    def with_words(self, words: Sequence[Sequence[int]]) -> StepExtras:
        """The same, with the values of ``words()`` from the device."""
        gram = None if self.gram is None else _doubles(words[-1])
        prints = self.prints.with_numbers(words if gram is None else words[:-1])
        return StepExtras(self.ended, prints, gram, self.marks)


def _doubles(words: Sequence[int]) -> torch.Tensor:
    return torch.tensor([*map(signed, words)], dtype=torch.int64).view(torch.float64)
