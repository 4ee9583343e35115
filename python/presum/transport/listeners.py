# SPDX-License-Identifier: Apache-2.0
"""Passes findings to the program's callbacks."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from presum.findings import Finding

log = logging.getLogger("presum")
Listener = Callable[[Finding], None]


class FindingListeners:
    """The callbacks for findings, by thread."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []  # so far, worst first
        self._listeners: list[Listener] = []
        self._training_listeners: list[Listener] = []
        self._untold: deque[Finding] = deque()  # to the training thread's listeners

    def listen(self, listener: Listener, *, on_training_thread: bool) -> None:
        """Call ``listener`` for every finding that is new or graver: on the background thread, or
        on the training thread after its next optimizer step."""
        (self._training_listeners if on_training_thread else self._listeners).append(listener)

    def tell(self, finding: Finding) -> None:
        """Called on the background thread for a finding that is new or graver."""
        for listener in self._listeners:
            try:
                _tell(listener, finding)
            except BaseException:  # only the training thread can end the process
                log.warning("presum: on_finding failed", exc_info=True)
        if self._training_listeners:
            self._untold.append(finding)

    def tell_training_thread(self) -> None:
        """Called on the training thread. SystemExit of a listener propagates."""
        while self._untold:
            finding = self._untold.popleft()
            for listener in self._training_listeners:
                _tell(listener, finding)


def _tell(listener: Listener, finding: Finding) -> None:
    try:
        listener(finding)
    except Exception:
        log.warning("presum: on_finding failed", exc_info=True)
