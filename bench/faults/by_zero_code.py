# SPDX-License-Identifier: Apache-2.0
"""Trainings that presum attaches to without a line of code, as under ``presum run``."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from presum.frameworks.auto import start
from presum.options import Record
from presum.transport.session import open_sessions

# presum.run starts once in a process: the next training's options replace those of the last one.
_OPTIONS: dict[str, Any] = {}


def watch_next(folder: Path, *, audit: int | None, record: Record, mode: str) -> None:
    """Attach to the next model that is wrapped, with this RUN folder."""
    plain = Record()
    changed = {one.name: getattr(record, one.name) for one in fields(Record)}
    changed = {name: value for name, value in changed.items() if value != getattr(plain, name)}
    _OPTIONS.clear()
    _OPTIONS.update(changed, run=str(folder), **({"audit": audit} if audit else {}))
    start(_OPTIONS)


def end() -> None:
    """End the recording, as the end of the process does."""
    for session in open_sessions():
        session.end()
