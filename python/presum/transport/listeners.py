# SPDX-License-Identifier: Apache-2.0
"""Telling a program what was found, as it is found."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from presum.findings import Finding

log = logging.getLogger("presum")
Listener = Callable[[Finding], None]


class FindingListeners:
    """Who is told of findings, on which thread."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []  # so far, worst first
        self._listeners: list[Listener] = []
        self._training_listeners: list[Listener] = []
        self._untold: deque[Finding] = deque()  # of the training thread's listeners

    def listen(self, listener: Listener, *, on_training_thread: bool) -> None:
        """Call it for every new finding: on the background thread, or on the training thread after
        its next optimizer step."""
        (self._training_listeners if on_training_thread else self._listeners).append(listener)

    def tell(self, finding: Finding) -> None:
        """On the background thread: a finding is new."""
        for listener in self._listeners:
            try:
                _tell(listener, finding)
            except BaseException:  # to end the process takes the training thread
                log.warning("presum: on_finding failed", exc_info=True)
        if self._training_listeners:
            self._untold.append(finding)

    def tell_training_thread(self) -> None:
        """On the training thread. What a listener raises to end the process passes through."""
        while self._untold:
            finding = self._untold.popleft()
            for listener in self._training_listeners:
                _tell(listener, finding)


def _tell(listener: Listener, finding: Finding) -> None:
    try:
        listener(finding)
    except Exception:
        log.warning("presum: on_finding failed", exc_info=True)
