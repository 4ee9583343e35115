# SPDX-License-Identifier: Apache-2.0
"""When things happen on a device, by events that nobody waits for."""

from __future__ import annotations

import torch

from presum._core import Mark

Marks = list[tuple[Mark, torch.Event]]
MARKS_MAX = 1024  # of one step: of one with more nothing is known


class DeviceMarks:
    """Those of the steps of one model, on the stream that is current where it trains."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: Marks = []

    def add(self, mark: Mark) -> None:
        """It happens where the stream is now. A few microseconds of host time."""
        if len(self._marks) < MARKS_MAX:
            event = torch.Event(self._device, enable_timing=True)
            event.record(torch.accelerator.current_stream(self._device))
            self._marks.append((mark, event))

    def end_step(self) -> Marks:
        """Those since the end of the step before, with both ends. They may be read once the
        device has got to the last."""
        self.add(Mark.STEP_ENDS)
        taken, self._marks = self._marks, self._marks[-1:]
        return taken


def seconds_of(marks: Marks) -> list[tuple[Mark, float]]:
    """By the device's clock, from the first. Empty where that does not tell."""
    if not marks or marks[0][0] is not Mark.STEP_ENDS or marks[-1][0] is not Mark.STEP_ENDS:
        return []
    first = marks[0][1]
    try:
        return [(mark, first.elapsed_time(event) / 1e3) for mark, event in marks]
    except RuntimeError:  # one is on a stream that the device has not got to
        return []


def marks_of(device: torch.device) -> DeviceMarks | None:
    """None where the device has no events that are timed."""
    marks = DeviceMarks(device)
    try:
        marks.end_step()
    except (RuntimeError, TypeError, AttributeError):  # of a torch that has no such events, too
        return None
    return DeviceMarks(device)
