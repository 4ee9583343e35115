# SPDX-License-Identifier: Apache-2.0
"""Fingerprints by their names."""

from __future__ import annotations

import struct

from presum.fingerprints.families import KIND, Values

NAMES = {number: name for name, number in KIND.items()}


def named(values: Values) -> dict[str, int]:
    return {NAMES[kind]: value for kind, value in values}


def real(word: int) -> float:
    return float(struct.unpack("<d", word.to_bytes(8, "little"))[0])
