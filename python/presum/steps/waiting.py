# SPDX-License-Identifier: Apache-2.0
"""Measures when this rank waits for others outside Python calls: in DDP's broadcast of buffers
before a forward pass, and at the end of DDP's reductions."""

from __future__ import annotations

from presum._core import wait_begins, wait_ends


class Waiting:
    """One wait at a time, on the training thread. Nested waits, and waits that an exception leaves
    open, count once."""

    def __init__(self) -> None:
        self._open = False

    def begin(self) -> None:
        if not self._open:
            self._open = True
            wait_begins()

    def end(self) -> None:
        """Without ``begin`` it does nothing."""
        if self._open:
            self._open = False
            wait_ends()
