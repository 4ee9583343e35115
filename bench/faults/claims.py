# SPDX-License-Identifier: Apache-2.0
"""Does a sentence claim more than the evidence beside it?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

# Not those of names such as bf16, layers.3 or KEY_2.
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?")
ROUNDED = 0.006  # three digits


def numbers(value: Any) -> Iterator[float]:
    """Every number in a value, also in its texts and names."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from numbers(name)
            yield from numbers(item)
    elif isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, str):
        yield from map(float, NUMBER.findall(value))
    elif not isinstance(value, bool) and value is not None:
        yield abs(float(value))


def supported(number: float, known: Iterable[float]) -> bool:
    """As it is, rounded, or as a percentage."""
    return any(
        abs(value - number) <= ROUNDED * value or abs(100 * value - number) <= 0.51
        for value in known
    )


def unsupported(finding: dict[str, Any]) -> list[str]:
    """The sentences of a finding with a number that neither its ranks nor its values hold."""
    out = []
    for seen in finding["evidence"]:
        known = [len(seen["ranks"]), *numbers(seen["ranks"]), *numbers(seen["values"])]
        if not all(supported(number, known) for number in numbers(seen["sentence"])):
            out.append(seen["sentence"])
    return out
