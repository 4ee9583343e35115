# SPDX-License-Identifier: Apache-2.0
"""The runs that are served: which there are, and what the page draws of one."""

from __future__ import annotations

import gzip
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from presum._core import RunLog
from presum.findings import SEVERITIES
from presum.text import one_line, printable

FILE = "presum.db"
DEPTH = 4  # of runs below a folder
LISTED = 200
SHARE = 0.1  # of a processor, at most, that reads a run again and again


class Written(NamedTuple):
    """Changes with each write to a run log."""

    time_ns: int
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, file: Path) -> Written:
        """Raises OSError if there is no run."""
        found = [file.stat()]
        with suppress(OSError):  # the run has ended
            found.append(file.with_name(f"{file.name}-wal").stat())
        return cls(max(one.st_mtime_ns for one in found), tuple(one.st_size for one in found))

    @property
    def seconds(self) -> float:
        return self.time_ns / 1e9


class Data(NamedTuple):
    """What the page draws, as compressed JSON. Equal tags: equal data."""

    tag: str
    body: bytes
    written: Written


class Overview(NamedTuple):
    """A run in the list of runs."""

    name: str
    written: Written
    state: str
    steps: int
    verdict: str
    severity: str  # of the gravest finding; empty: none


T = TypeVar("T")


class Latest(Generic[T]):
    """What was read of a run last. Reads again if the run was written to, but spends at most
    ``SHARE`` of the time on that."""

    def __init__(self, read: Callable[[Written], T]) -> None:
        self._read = read
        self._value: tuple[Written, T] | None = None
        self._again = 0.0  # not before

    def get(self, written: Written) -> T:
        began = time.monotonic()
        old = self._value
        if old is not None and (old[0] == written or began < self._again):
            return old[1]
        value = self._read(written)
        ended = time.monotonic()
        self._value, self._again = (written, value), ended + (ended - began) / SHARE
        return value


class ServedRun:
    """One run log, which is open only while it is read: one that is held open keeps its ``-wal``
    file. Thread-safe."""

    _tags = count()

    def __init__(self, name: str, file: Path) -> None:
        self.name = name
        self._file = file
        self._lock = threading.Lock()
        self._data = Latest(self._read_data)
        self._overview = Latest(self._read_overview)

    def written(self) -> Written:
        return Written.of(self._file)

    def data(self) -> Data:
        """Raises what reading a run raises."""
        with self._lock:
            return self._data.get(self.written())

    def overview(self) -> Overview:
        """A run that cannot be read says why in place of a verdict."""
        with self._lock:
            return self._overview.get(self.written())

    def _read_data(self, written: Written) -> Data:
        text = RunLog(self._file).page_data()
        return Data(str(next(self._tags)), gzip.compress(text.encode("utf-8"), 1), written)

    def _read_overview(self, written: Written) -> Overview:
        try:
            log = RunLog(self._file)
            segments = {name: values for name, values, _ in log.frame("segments")}
            severities = [found["severity"] for found in log.findings()]
            return Overview(
                self.name,
                written,
                "ended" if segments["closed"][-1] else "not closed",
                log.steps_written(),
                log.judgment()[0].partition("; ")[0],
                max(severities, key=SEVERITIES.index, default=""),
            )
        except Exception as error:
            return Overview(self.name, written, "", 0, one_line(error), "")


class Runs:
    """The run of a path, or the runs below it. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, ServedRun] = {}
        self.is_one = path.name == FILE or (path / FILE).exists()

    def find(self, name: str) -> ServedRun | None:
        """A name is looked up, never made a path."""
        return self._known.get(name) or self._look().get(name)

    def newest(self) -> tuple[list[Overview], int]:
        """At most ``LISTED`` runs, the last written first, and the number of the others."""
        runs = []
        for run in self._look().values():
            try:
                runs.append((run.written(), run))
            except OSError:
                continue  # it has been removed
        runs.sort(key=lambda row: row[0], reverse=True)
        return [run.overview() for _, run in runs[:LISTED]], max(0, len(runs) - LISTED)

    def _look(self) -> dict[str, ServedRun]:
        self._known = {
            name: self._known.get(name) or ServedRun(name, file) for name, file in self._files()
        }
        return self._known

    def _files(self) -> Iterator[tuple[str, Path]]:
        if self.is_one:
            file = self._path if self._path.name == FILE else self._path / FILE
            yield printable(file.resolve().parent.name) or FILE, file
            return
        for folder, below, files in os.walk(self._path):
            relative = Path(folder).relative_to(self._path)
            if len(relative.parts) >= DEPTH:
                below.clear()
            if FILE in files:
                yield printable(str(relative)), Path(folder) / FILE
