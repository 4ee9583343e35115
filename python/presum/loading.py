# SPDX-License-Identifier: Apache-2.0
"""presum.load: a run log as pandas frames."""

from __future__ import annotations

import functools
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pandas as pd

from presum import _core
from presum.errors import UserError
from presum.findings import Finding
from presum.text import one_line

FILE_NAME = "presum.db"
CHECK_STATES = ("found", "passed", "not-triggered", "not-possible")
_ULPS = ("ulps_p50", "ulps_p90", "ulps_p99", "ulps_max")
MATRIX_WORKERS = 256  # up to which every step keeps its matrix
TEXT_MAX = 200  # of what SQLite says, which may quote a whole statement
QUERY_SECONDS = 600.0  # a damaged file may be searched without end
T = TypeVar("T")


def _read(method: Callable[[Run], T]) -> cached_property[T]:
    """A property that is read once. Where the file holds what presum does not write, that is a
    UserError and nothing else."""

    @functools.wraps(method)
    def read(run: Run) -> T:
        with _damage_of(run.path):
            return method(run)

    return cached_property(read)


@contextmanager
def _damage_of(path: Path) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise UserError(
            f"{path} is damaged ({type(error).__name__}: {one_line(error)[:TEXT_MAX]})"
        ) from None


def load(run: str | os.PathLike[str]) -> Run:
    """Open a RUN (its folder or its presum.db). It may still be written; nothing is locked.

    Raises:
        UserError: there is no such run, it is damaged, or a newer presum wrote it.
    """
    return Run(Path(run))


class Run:
    """A run log. Frames are read at first use and then kept; ``load`` again for newer steps.

    Frames hold numbers and strings only, missing values as NaN, rows ascending by segment, module
    and step. Columns are described in docs/runlog_format.md.
    """

    def __init__(self, path: Path) -> None:
        self.path = path / FILE_NAME if path.is_dir() else path
        try:
            _core.check_run(path)
        except OSError as error:
            raise UserError(str(error)) from None

    @_read
    def segments(self) -> pd.DataFrame:
        """One row each time that the run was begun or continued: whether it was closed, why it is
        incomplete and after which step, and how many packets could not be used."""
        return self._frame("SELECT * FROM segment ORDER BY segment")

    @_read
    def steps(self) -> pd.DataFrame:
        """One row a step (and module): the metrics over all workers."""
        return self._frame("SELECT * FROM steps")

    @_read
    def workers(self) -> pd.DataFrame:
        """One row a step and worker."""
        return self._frame("SELECT * FROM workers")

    @_read
    def groups(self) -> pd.DataFrame:
        """One row a step, group (layer) and worker: its norm and largest |g| in that group."""
        rows = self._frame(
            'SELECT g.step, g.segment, g.module, g.shard, g."group", g.norms, g.maxima, '
            "(SELECT group_concat(rank) FROM (SELECT rank FROM worker_step w WHERE "
            "w.step_id = g.step_id ORDER BY w.replica)) AS ranks FROM group_values g"
        )
        ranks = [[int(r) for r in text.split(",")] for text in rows.pop("ranks")]
        norms = [np.frombuffer(b, np.float32).astype(float) for b in rows.pop("norms")]
        maxima = [np.frombuffer(b, np.float32).astype(float) for b in rows.pop("maxima")]
        rows = rows.assign(rank=ranks, grad_norm=norms, grad_max=maxima)
        rows = rows.explode(["rank", "grad_norm", "grad_max"], ignore_index=True)
        return rows.astype({"rank": int, "grad_norm": float, "grad_max": float})

    @_read
    def facts(self) -> pd.DataFrame:
        """What each rank said about itself: segment, module, rank, key, value."""
        return self._frame("SELECT * FROM fact ORDER BY segment, module, rank, key")

    @_read
    def findings(self) -> list[Finding]:
        """What presum found, worst first."""
        rows = self._frame(
            "SELECT * FROM findings ORDER BY severity = 'info', severity, first_step"
        )
        return [_finding(row) for row in rows.to_dict("records")]

    @_read
    def checks(self) -> pd.DataFrame:
        """Every check of every model: segment, module, shard, check, state, reason."""
        columns = "segment, module, shard, check_id AS 'check', state, reason"
        rows = self._frame(
            f"SELECT {columns} FROM check_state ORDER BY segment, module, shard, position"
        )
        return rows.assign(state=[CHECK_STATES[state] for state in rows["state"]])

    @_read
    def audits(self) -> pd.DataFrame:
        """One row an audit of the reduction (``attach(audit_every=)``): how its sum was made, and
        its error (docs/audit.md)."""
        try:
            columns, rows = _core.run_table(self.path, "audits")
        except OSError as error:
            raise UserError(str(error)) from None
        reals = dict.fromkeys(["relative_l2", "error_max", *_ULPS], float)
        return pd.DataFrame(rows, columns=columns).astype(reals)

    def cosines(
        self, step: int, segment: int = -1, module: int = 0, shard: int = 0
    ) -> npt.NDArray[np.float64]:
        """The W x W cosines of a step, in the order of its workers' replicas, 1 on the diagonal.

        NaN where a worker has no direction (zero or non-finite gradient, no sketch). ``segment`` -1
        is the last one. Above 256 workers the matrix is kept every 50 steps only.

        Raises:
            KeyError: the step is not recorded, or its matrix was not kept.
        """
        with _damage_of(self.path), self._open() as db:
            row = db.execute(
                "SELECT workers, cosines FROM step WHERE step = ? AND module = ? AND shard = ? AND "
                "segment = CASE WHEN ? < 0 THEN (SELECT max(segment) FROM step) ELSE ? END",
                (step, module, shard, segment, segment),
            ).fetchone()
            kept = row is not None and (row[1] is not None or row[0] <= MATRIX_WORKERS)
            matrix = _matrix(row[0], row[1]) if kept else None
        if row is None:
            raise KeyError(f"{self.path}: no step {step} of module {module}")
        if matrix is None:
            raise KeyError(f"{self.path}: step {step} has no cosine matrix (every 50th step has)")
        return matrix

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            db = sqlite3.connect(f"file:{quote(os.fsencode(self.path))}?mode=ro", uri=True)
            deadline = time.monotonic() + QUERY_SECONDS
            db.set_progress_handler(lambda: time.monotonic() > deadline, 100_000)
            db.execute("PRAGMA trusted_schema=OFF")
            try:
                yield db
            finally:
                db.close()
        except sqlite3.OperationalError as error:
            raise UserError(
                f"{self.path} cannot be read now: {one_line(error)[:TEXT_MAX]}"
            ) from None
        except sqlite3.DatabaseError as error:
            raise UserError(
                f"{self.path} is not a presum run log, or is damaged ({one_line(error)[:TEXT_MAX]})"
            ) from None

    def _frame(self, sql: str) -> Any:
        with self._open() as db:
            cursor = db.execute(sql)
            columns = [column[0] for column in cursor.description]
            frame = pd.DataFrame(cursor.fetchall(), columns=columns)
        # A column of NULLs alone would be of Python objects.
        empty = [c for c in columns if frame[c].isna().all()]
        return frame.astype(dict.fromkeys(empty, float)) if len(frame) else frame


def _matrix(workers: int, pairs: bytes | None) -> npt.NDArray[np.float64]:
    count = workers * (workers - 1) // 2
    values = None if pairs is None else np.frombuffer(pairs, np.float32)
    if values is not None and len(values) != count:
        raise ValueError(f"{len(values)} cosines of {workers} workers")
    matrix = np.eye(workers)
    upper = np.triu_indices(workers, 1)
    matrix[upper] = np.nan if values is None else values
    matrix.T[upper] = matrix[upper]
    return matrix


def _finding(row: dict[Any, Any]) -> Finding:
    lists = {name: json.loads(row.pop(name)) for name in ("also", "ranks", "hosts", "evidence")}
    return Finding(check=row.pop("check_id"), **lists, **row)
