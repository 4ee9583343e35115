# SPDX-License-Identifier: Apache-2.0
"""CUDA events that are planted."""

from __future__ import annotations

import threading


class FakeEvent:
    """A CUDA event that tells who asks. It has happened once it is told so, or after it was asked
    as often as ``after`` says."""

    def __init__(self, after: int | None = None) -> None:
        self.happened = False
        self.asked: list[str] = []  # names of threads
        self._after = after

    def record(self, stream: object = None) -> None:
        pass

    def query(self) -> bool:
        self.asked.append(threading.current_thread().name)
        return self.happened or (self._after is not None and len(self.asked) > self._after)
