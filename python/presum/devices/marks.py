# SPDX-License-Identifier: Apache-2.0
"""Times on a device, from events that no thread waits for."""

from __future__ import annotations

import torch

from presum._core import Mark

Marks = list[tuple[Mark, torch.Event]]
MARKS_MAX = 1024  # per step; a step with more has no times


class DeviceMarks:
    """The marks of one model's steps, on the stream that is current where it trains."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: Marks = []

    def add(self, mark: Mark) -> None:
        """Mark the current position of the stream. Takes a few microseconds on the host."""
        if len(self._marks) < MARKS_MAX:
            event = torch.Event(self._device, enable_timing=True)
            event.record(torch.accelerator.current_stream(self._device))
            self._marks.append((mark, event))

    def end_step(self) -> Marks:
        """The marks since the end of the previous step, including both ends. They can be read when
        the device has reached the last one."""
        self.add(Mark.STEP_ENDS)
        taken, self._marks = self._marks, self._marks[-1:]
        return taken


def seconds_of(marks: Marks) -> list[tuple[Mark, float]]:
    """Seconds in the device's time, from the first mark. Empty if unknown."""
    if not marks or marks[0][0] is not Mark.STEP_ENDS or marks[-1][0] is not Mark.STEP_ENDS:
        return []
    first = marks[0][1]
    try:
        return [(mark, first.elapsed_time(event) / 1e3) for mark, event in marks]
    except RuntimeError:  # the device has not reached one of them
        return []


def marks_of(device: torch.device) -> DeviceMarks | None:
    """The marks of a device; None if it has no timed events."""
    marks = DeviceMarks(device)
    try:
        marks.end_step()
    except (RuntimeError, TypeError, AttributeError):  # also if this torch has no such events
        return None
    return DeviceMarks(device)
