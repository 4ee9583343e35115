# SPDX-License-Identifier: Apache-2.0
"""Checks whether a sentence claims more than its evidence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

# Excludes numbers in names such as bf16, layers.3 or KEY_2.
NUMBER = re.compile(r"(?<![\w.])(over )?(\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
ROUNDED = 0.006  # three digits


def numbers(value: Any) -> Iterator[float]:
    """Every number in a value, including those in texts and names."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from numbers(name)
            yield from numbers(item)
    elif isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, str):
        yield from (float(number) for _, number in NUMBER.findall(value))
    elif not isinstance(value, bool) and value is not None:
        yield abs(float(value))


def shares(value: Any) -> Iterator[float]:
    """The numbers that a sentence may give in percent."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from numbers(item) if name.endswith("share") else shares(item)


def holds(seen: dict[str, Any], over: str, claimed: float) -> bool:
    """Whether ranks or values include a number: exactly, rounded, in percent, or a larger one."""
    known = [len(seen["ranks"]), *numbers(seen["ranks"]), *numbers(seen["values"])]
    if over:
        return any(value > claimed for value in known)
    rounded = any(abs(value - claimed) <= ROUNDED * value for value in known)
    return rounded or any(abs(100 * share - claimed) <= 0.51 for share in shares(seen["values"]))


def unsupported(finding: dict[str, Any]) -> list[str]:
    """The sentences of a finding with a number that is neither in its ranks nor in its values."""
    return [
        seen["sentence"]
        for seen in finding["evidence"]
        if not all(holds(seen, over, float(n)) for over, n in NUMBER.findall(seen["sentence"]))
    ]
