# SPDX-License-Identifier: Apache-2.0
"""The events that a recorder tells its observer, and the steps that end, as lines of text.

``src/step/traces/`` holds them for shapes of training that together have every succession of two
events that any shape has; C++ replays them without torch.
"""

from __future__ import annotations

import struct
from typing import Any, ClassVar

from packet_decoder import decode
from presum._core import EndedStep, Observer, Read

EVENTS = (
    "forward",
    "enter_wrapper",
    "enter_module",
    "reached",
    "forget_reached",
    "pass_begins",
    "pass_ends",
    "reduction",
    "shadow",
    "arrives",
    "zeroed",
    "optimizer_begins",
    "optimizer_fails",
    "optimizer_steps",
    "closed",
    "loss",
)
LINES_MAX = 65
STEP, MICRO_BATCHES = 1, 5


class TracedObserver(Observer):
    """Writes down what it is told, first events first; of several models each has its own."""

    made: ClassVar[list[TracedObserver]] = []

    def __init__(self, **options: Any) -> None:
        self.lines: list[str] = []
        given = (options[name] for name in ("every", "reduced_every", "knows_optimizer"))
        self.write("settings", *given)
        TracedObserver.made.append(self)

    def write(self, *words: Any) -> None:
        if len(self.lines) < LINES_MAX:
            self.lines.append(" ".join(map(_text, words)))

    def take_ended(self) -> EndedStep | None:
        ended = super().take_ended()
        if ended is not None:
            packet = decode(ended.packet())
            self.write("step", packet.header["step"], *_told(packet.sections))
        return ended


def _traced(event: str) -> Any:
    def tell(self: TracedObserver, *args: Any) -> Any:
        answer = getattr(super(TracedObserver, self), event)(*args)
        shown = (*args[:4], args[-1]) if event == "pass_ends" else args  # without token weights
        self.write(event, *shown, *(() if answer is None else (answer,)))
        return answer

    return tell


for event in EVENTS:
    setattr(TracedObserver, event, _traced(event))


def _text(word: Any) -> str:
    if isinstance(word, bool):
        return str(int(word))
    if isinstance(word, Read):
        return str(word.value)
    return "-" if word is None else repr(word) if isinstance(word, float) else str(word)


def _told(sections: dict[int, bytes]) -> list[Any]:
    """What identifies a step besides the reductions in the header, and its losses."""
    step = sections[STEP]
    optimizer_steps, passes = struct.unpack_from("<QI", step)
    unreduced, window, use = struct.unpack_from("<QII", step, 32)
    losses = [loss for loss, *_ in struct.iter_unpack("<ddQQdI", sections.get(MICRO_BATCHES, b""))]
    return [window, unreduced, use, optimizer_steps, passes, *losses]
