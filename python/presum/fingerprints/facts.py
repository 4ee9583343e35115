# SPDX-License-Identifier: Apache-2.0
"""Facts about a rank as text, reported only when they change."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from presum.text import printable

TEXTS_MAX = 4
MORE = "and others: each step has their hashes"


class ChangingFacts:
    """Facts that can change from step to step. A fact with several values (two loaders in turn) is
    reported with all of them, up to four; further changes are only in the steps' fingerprints."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        self._tell = tell
        self._texts: dict[str, list[str]] = {}

    def say(self, facts: Mapping[str, str]) -> bool:
        """Returns whether any of them was new."""
        new = [self._is_new(key, text) for key, text in facts.items()]
        return any(new)

    def _is_new(self, key: str, text: str) -> bool:
        texts = self._texts.setdefault(key, [])
        if text in texts or len(texts) > TEXTS_MAX:
            return False
        texts.append(text if len(texts) < TEXTS_MAX else MORE)
        self._tell(key, printable("; ".join(texts)))
        return True
