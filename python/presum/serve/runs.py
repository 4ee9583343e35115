# SPDX-License-Identifier: Apache-2.0
"""The runs that are served: which there are, and what the page draws of one."""

from __future__ import annotations

import gzip
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import quote

from presum._core import RunLog
from presum.errors import UserError
from presum.findings import SEVERITIES
from presum.text import one_line, printable

FILE = "presum.db"
DEPTH = 4  # of runs below a folder
LISTED = 200
LOOK_SECONDS = 2.0  # between two looks for runs
SHARE = 0.1  # of the time, at most, in which one run is read again and again


class Written(NamedTuple):
    """Changes with each write to a run log, and if it is replaced."""

    time_ns: int
    identity: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, file: Path) -> Written:
        """Raises UserError if there is no run."""
        try:
            found = [file.stat()]
        except OSError:
            raise UserError("the run has been removed, or cannot be reached") from None
        with suppress(OSError):  # the run has ended
            found.append(file.with_name(f"{file.name}-wal").stat())
        identity = tuple((one.st_ino, one.st_ctime_ns, one.st_size) for one in found)
        return cls(max(one.st_mtime_ns for one in found), identity)

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
    link: str
    written: Written
    state: str
    steps: int
    verdict: str
    severity: str  # of the gravest finding; empty: none


T = TypeVar("T")


class Latest(Generic[T]):
    """What was read of a run last. Reads again if the run was written to, but spends at most
    ``SHARE`` of the time on that; after an error, half of it. Thread-safe; one at a time reads, of
    all runs."""

    _reading = threading.Lock()

    def __init__(self, read: Callable[[Written], T]) -> None:
        self._read = read
        self._written: Written | None = None
        self._value: T | None = None
        self._error: Exception | None = None
        self._again = 0.0  # not before

    def get(self, written: Written) -> T:
        with self._reading:
            is_known = written == self._written and self._error is None
            if not is_known and time.monotonic() >= self._again:
                self._look(written)
            if self._error is not None:
                raise self._error
            assert self._value is not None
            return self._value

    def _look(self, written: Written) -> None:
        began = time.monotonic()
        try:
            self._value, self._error = self._read(written), None
        except Exception as error:
            self._error = error.with_traceback(None)
        ended = time.monotonic()
        pause = (ended - began) / (SHARE if self._error is None else 1)
        self._written, self._again = written, ended + pause


class ServedRun:
    """One run log, which is open only while it is read: one that is held open keeps its ``-wal``
    file. Thread-safe.

    Args:
        name: for people.
        link: the end of its address.
        file: the run log.
    """

    _tags = count()
    _server = secrets.token_hex(4)  # tags of an earlier one are others

    def __init__(self, name: str, link: str, file: Path) -> None:
        self.name = name
        self.link = link
        self._file = file
        self._data = Latest(self._read_data)
        self._overview = Latest(self._read_overview)

    def written(self) -> Written:
        return Written.of(self._file)

    def data(self) -> Data:
        """Raises what reading a run raises."""
        return self._data.get(self.written())

    def overview(self, written: Written) -> Overview:
        """A run that cannot be read says why in place of a verdict."""
        try:
            return self._overview.get(written)
        except Exception as error:
            return Overview(self.name, self.link, written, "", 0, one_line(error), "")

    def _read_data(self, written: Written) -> Data:
        text = RunLog(self._file).page_data()
        tag = f"{self._server}-{next(self._tags)}"
        return Data(tag, gzip.compress(text.encode("utf-8"), 1), written)

    def _read_overview(self, written: Written) -> Overview:
        log = RunLog(self._file)
        line, found = log.judgment()
        judgment = json.loads(found)
        ended = [segment["closed"] for segment in judgment["segments"]]
        severities = [finding["severity"] for finding in judgment["findings"]]
        return Overview(
            self.name,
            self.link,
            written,
            "ended" if ended[-1:] == [True] else "not closed",
            log.steps_written(),
            line.partition("; ")[0],
            max(severities, key=SEVERITIES.index, default=""),
        )


class Runs:
    """The run of a path, or the runs below it. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, ServedRun] = {}  # by link
        self._again = 0.0  # not looked before

    def find(self, link: str) -> ServedRun | None:
        """A link is looked up, never made a path."""
        return self._look().get(link)

    def only(self) -> ServedRun | None:
        """The run, if the path is one."""
        runs = self._look()
        return next(iter(runs.values())) if self._is_one() and runs else None

    def newest(self) -> tuple[list[Overview], int]:
        """At most ``LISTED`` runs, the last written first, and the number of the others."""
        runs = []
        for run in self._look().values():
            with suppress(UserError):
                runs.append((run.written(), run))
        runs.sort(key=lambda row: row[0].time_ns, reverse=True)
        listed = [run.overview(written) for written, run in runs[:LISTED]]
        return listed, max(0, len(runs) - LISTED)

    def _look(self) -> dict[str, ServedRun]:
        with self._lock:
            if time.monotonic() >= self._again:
                known = self._known
                runs = [ServedRun(*place) for place in self._places()]
                self._known = {run.link: known.get(run.link, run) for run in runs}
                self._again = time.monotonic() + LOOK_SECONDS
            return self._known

    def _is_one(self) -> bool:
        return self._path.name == FILE or (self._path / FILE).is_file()

    def _places(self) -> Iterator[tuple[str, str, Path]]:
        if self._is_one():
            file = self._path if self._path.name == FILE else self._path / FILE
            name = file.absolute().parent.name
            yield printable(name) or FILE, quote(os.fsencode(name), safe="") or "run", file
            return
        for folder in self._folders():
            if (folder / FILE).is_file():
                relative = folder.relative_to(self._path)
                yield printable(str(relative)), quote(os.fsencode(relative), safe=""), folder / FILE

    def _folders(self) -> Iterator[Path]:
        """Those below the path, also behind links, each once."""
        seen: set[str] = set()
        for name, below, _ in os.walk(self._path, followlinks=True):
            folder = Path(name)
            real = os.path.realpath(folder)
            if real in seen or len(folder.relative_to(self._path).parts) >= DEPTH:
                below.clear()
            if real not in seen:
                yield folder
            seen.add(real)
