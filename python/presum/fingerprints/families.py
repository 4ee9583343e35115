# SPDX-License-Identifier: Apache-2.0
"""Families of fingerprints: which are on. One that fails is switched off; the others continue."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Collection
from typing import ParamSpec, TypeVar

import torch

from presum._core import FingerprintKind, hash_bytes
from presum.options import FAMILIES

KIND = {kind.name.lower(): kind for kind in FingerprintKind}
WORD = (1 << 64) - 1
Values = list[tuple[FingerprintKind, int]]
LateValues = list[tuple[FingerprintKind, int | torch.Tensor]]  # some still on a device
log = logging.getLogger("presum")
P = ParamSpec("P")
R = TypeVar("R")


def chosen(fingerprints: Collection[str]) -> frozenset[str]:
    """Check the families of ``Record(fingerprints=)``.

    Raises:
        ValueError: not a collection of known names.
    """
    wrong = isinstance(fingerprints, str) or not isinstance(fingerprints, Collection)
    if wrong or any(one not in FAMILIES for one in fingerprints):
        raise ValueError(
            "presum.attach: fingerprints must be a collection of names among "
            f"{', '.join(FAMILIES)}, not {fingerprints!r}"
        )
    return frozenset(fingerprints)


def hash_text(text: str) -> int:
    """A 64-bit hash of a text, the same in every process."""
    return hash_bytes(text.encode("utf-8", "surrogatepass"))


def real_bits(value: float) -> int:
    """The representation of a real number in a fingerprint."""
    return int.from_bytes(struct.pack("<d", value), "little")


class Families:
    """The families that are on. When one fails, ``say`` gets one line, and only that family
    ends."""

    def __init__(self, on: Collection[str], say: Callable[[str], None]) -> None:
        self._on = set(on)
        self._say = say
        self._noted: set[str] = set()

    def __contains__(self, family: str) -> bool:
        return family in self._on

    def call(
        self, family: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R | None:
        """The result of ``function``; None if the family is off or fails now."""
        if family not in self._on:
            return None
        try:
            return function(*args, **kwargs)
        except Exception as error:
            self.fail(family, error)
            return None

    def note_once(self, text: str) -> None:
        """Add a line to the run log, the first time."""
        if text not in self._noted:
            self._noted.add(text)
            self._say(text)

    def fail(self, family: str, error: Exception) -> None:
        if family in self._on:
            self._on.discard(family)
            log.debug("presum: fingerprints of %s failed", family, exc_info=error)
            self._say(f"no fingerprints of {family} from here on ({type(error).__name__}: {error})")
