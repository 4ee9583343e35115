# SPDX-License-Identifier: Apache-2.0
"""When this worker waits for the others, of what no call of Python's shows: DDP's broadcast of
buffers before a forward pass, and the end of its reductions."""

from __future__ import annotations

from presum._core import wait_begins, wait_ends


class Waiting:
    """One wait at a time, of the training thread. What others see of it in between, and what is
    left open by an exception, counts once."""

    def __init__(self) -> None:
        self._open = False

    def begin(self) -> None:
        if not self._open:
            self._open = True
            wait_begins()

    def end(self) -> None:
        """Without a beginning it does nothing."""
        if self._open:
            self._open = False
            wait_ends()
