# SPDX-License-Identifier: Apache-2.0
"""Reads catalog.ini: each fault on two or three models. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from configparser import ConfigParser
from dataclasses import replace
from pathlib import Path
from typing import Any

from faults.fault import Absent, Fault
from faults.plan import Configuration
from presum.errors import UserError

CRITICAL = (
    *("nonfinite-gradient", "nonfinite-loss", "no-reduction", "optimizer-mismatch"),
    *("duplicate-data", "reduction-scale", "reduced-gradient-mismatch", "reduction-error"),
    *("parameter-desync", "state-desync", "recompute-mismatch"),
    *("zero-gradient", "shared-parameters"),
    *("frozen-gradient", "no-progress"),
)
INFORMATION = ("shared-rng", "loss-event")
ROWS = 30  # public reports that presum set out to find
_KEYWORDS = ("finds", "injects", "trains", "row", "report")


def _facts(text: str) -> dict[str, Any]:
    """The facts in a text such as ``begins 10, ranks all``."""
    parts = [part.partition(" ") for part in text.split(", ") if part]
    return {name: _value(value) for name, _, value in parts}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _entry(text: str) -> tuple[str, dict[str, str]]:
    """A text of one or more lines, and what follows each keyword."""
    first, *others = text.split("\n")
    words, lines = [first], {}
    for line in others:
        keyword, _, rest = line.partition(" ")
        if keyword in _KEYWORDS:
            lines[keyword] = rest
        else:
            words.append(line)
    return " ".join(words), lines


def _report(lines: dict[str, str]) -> dict[str, Any]:
    row, _, thread = lines.get("row", "").partition(" ")
    return {"row": int(row) if row else None, "thread": thread or lines.get("report", "")}


def _faults(name: str, text: str) -> list[Fault]:
    """The fault on each of the models. The names of all but the first include the model."""
    what, lines = _entry(text)
    expects, _, facts = lines["finds"].partition(", ")
    injector, _, settings = lines.get("injects", _class_of(name)).partition(", ")
    trainings, _, changes = lines.get("trains", "lm cnn").partition(", ")
    usual = "critical" if expects in CRITICAL else "info" if expects in INFORMATION else "warning"
    first = Fault(
        name=name,
        injector=injector,
        settings=_facts(settings),
        expects=expects,
        what=what,
        configuration=Configuration(),
        **{"severity": usual} | _facts(facts) | _report(lines),
    )
    on = [replace(_TRAININGS[training], **_facts(changes)) for training in trainings.split()]
    others = [
        replace(
            first, name=f"{name}-{_difference(other, on[0])}", configuration=other, variant=True
        )
        for other in on[1:]
    ]
    return [replace(first, configuration=on[0]), *others]


def _class_of(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("-"))


def _difference(other: Configuration, first: Configuration) -> str:
    return other.way if other.way != first.way else other.model


def _absent(what: str, text: str) -> Absent:
    why, lines = _entry(text)
    return Absent(what=what, why=why, **_report(lines))


_TOLD = ConfigParser(delimiters="=", comment_prefixes="#", interpolation=None)
_TOLD.read(Path(__file__).with_name("catalog.ini"), encoding="utf-8")
_TRAININGS = {name: Configuration(**_facts(text)) for name, text in _TOLD["trainings"].items()}
_GROUPS = [group for group in _TOLD.sections() if group not in ("trainings", "not injected")]

FAULTS: tuple[Fault, ...] = tuple(
    fault for group in _GROUPS for one in _TOLD[group].items() for fault in _faults(*one)
)
ABSENT: tuple[Absent, ...] = tuple(_absent(*one) for one in _TOLD["not injected"].items())


def choose(names: Sequence[str]) -> tuple[Fault, ...]:
    """The faults with these names or rows, in the catalog's order; all if ``names`` is empty.

    Raises UserError for unknown names and for rows that are not injected.
    """
    chosen = {fault for name in names for fault in _find(name)}
    return tuple(fault for fault in FAULTS if not names or fault in chosen)


def _find(name: str) -> list[Fault]:
    found = [fault for fault in FAULTS if name in (fault.name, str(fault.row))]
    if found:
        return found
    for absent in ABSENT:
        if name == str(absent.row):
            raise UserError(f"--faults {name}: not injected ({absent.why})")
    raise UserError(f"--faults {name}: no such fault or row (--list shows them)")
