# SPDX-License-Identifier: Apache-2.0
"""Runs that are damaged, or whose writer was killed: an answer, or one line on what is wrong."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import sys
import time
from pathlib import Path

import pytest

import presum
from helpers.recorded_runs import STEPS, observer, record
from presum import _core
from presum.errors import UserError
from programs_started import presum_command, run_command


def read_everything(run: Path) -> None:
    loaded = presum.load(run)
    for name in ("segments", "steps", "workers", "groups", "facts", "findings", "checks", "audits"):
        getattr(loaded, name)
    for step in range(STEPS):
        with contextlib.suppress(KeyError):
            loaded.cosines(step)


def test_a_whole_run_is_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has just begun, or was killed as it began"):
        presum.load(tmp_path)
    record(tmp_path)
    read_everything(tmp_path)
    loaded = presum.load(tmp_path)
    assert len(loaded.steps) == STEPS and loaded.findings[0].check == "nonfinite-gradient"
    with pytest.raises(KeyError, match="no step 99"):
        loaded.cosines(99)


@pytest.mark.parametrize(
    ("change", "read"),
    [
        ("UPDATE finding SET evidence = '" + "[" * 100_000 + "'", "findings"),
        ("UPDATE finding SET ranks = '3'", "findings"),
        ("UPDATE step SET workers = 'many'", "cosines"),
        ("UPDATE step SET workers = 100000000, cosines = NULL", "cosines"),
        ("UPDATE step SET workers = -3", "cosines"),
        ("UPDATE step SET cosines = x'00'", "cosines"),
        ("UPDATE check_state SET state = 9", "checks"),
        ("UPDATE check_state SET state = 'x'", "checks"),
        ("UPDATE group_step SET norms = x'0011'", "groups"),
        ("UPDATE group_step SET norms = 'text'", "groups"),
        ("UPDATE worker_step SET rank = 'none'", "groups"),
    ],
)
def test_values_that_presum_does_not_write_are_an_answer_or_one_line(
    change: str, read: str, tmp_path: Path
) -> None:
    record(tmp_path)
    with sqlite3.connect(tmp_path / "presum.db") as db:
        db.execute(change)
    db.close()
    try:
        loaded = presum.load(tmp_path)
        loaded.cosines(3) if read == "cosines" else getattr(loaded, read)
    except UserError as error:
        assert "\n" not in str(error) and "presum.db" in str(error)
    except KeyError:
        assert read == "cosines"


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    run = tmp_path / "r\udcff?un#%41"
    record(run)
    assert len(presum.load(run).steps) == STEPS


def test_what_lacks_is_told(tmp_path: Path) -> None:
    record(tmp_path, close=False)
    assert presum.load(tmp_path).segments.closed.tolist() == [0]
    aggregator = _core.Aggregator(tmp_path, 2)
    aggregator.abandon("planted")
    segments = presum.load(tmp_path).segments
    assert segments.closed.tolist() == [0, 0] and segments.incomplete.tolist() == ["", "planted"]


def test_columns_are_those_of_the_frames(tmp_path: Path) -> None:
    record(tmp_path)
    run = presum.load(tmp_path)
    told = run.columns
    for frame in ("segments", "steps", "workers", "groups", "facts", "checks", "audits"):
        assert told.column[told.frame == frame].tolist() == getattr(run, frame).columns.tolist()
    assert set(told.type) <= {"integer", "real", "text"} and (told.meaning != "").all()
    of_another_row = r"likewise|of them|over them|as in|upper end$|the largest$"
    assert not told.meaning.str.match(of_another_row).any()
    assert not told.unknown.str.match(of_another_row).any()
    norm = told[(told.frame == "workers") & (told.column == "grad_norm")]
    assert norm.unit.item() == "gradient" and norm.unknown.item()


ATTEMPTS = 20


def killed_while_recording(run: Path, delay: float, *, in_close: bool) -> None:
    """A process of its own, killed so many seconds after it has begun to record, or to close."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            record_and_close(run, writer, in_close=in_close)
            while not in_close:
                time.sleep(1)
        finally:
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 1)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)


def record_and_close(run: Path, told: int, *, in_close: bool) -> None:
    if not in_close:
        os.write(told, b"x")
    aggregator = _core.Aggregator(str(run), 1)
    packets = observer(0)
    aggregator.ingest(_core.stamp(packets.hello(), aggregator.run, aggregator.segment))
    for step in range(40):
        packets.begin_step(step)
        packets.loss(1.0, 1, 1)
        packet = packets.end_step(step, 1, 0, 1.0)
        aggregator.ingest(_core.stamp(packet, aggregator.run, aggregator.segment))
    if in_close:
        os.write(told, b"x")
    aggregator.close()


@pytest.mark.parametrize("in_close", [False, True])
def test_a_killed_writer_leaves_no_run_or_one_that_is_read(in_close: bool, tmp_path: Path) -> None:
    draw = random.Random(11)
    nothing = 0
    for attempt in range(ATTEMPTS):
        run = tmp_path / str(attempt)
        run.mkdir()
        killed_while_recording(run, draw.uniform(0, 0.1), in_close=in_close)
        if not (run / "presum.db").exists():
            nothing += 1
            with pytest.raises(UserError, match="has just begun, or was killed as it began"):
                presum.load(run)
            continue
        read_everything(run)
    assert nothing < ATTEMPTS and not (in_close and nothing)


def test_a_journal_that_is_left_is_rolled_back_or_said(tmp_path: Path) -> None:
    """As where the writer was killed while it turned its log off."""
    record(tmp_path, close=False)
    killed = run_command([sys.executable, "-c", KILLED_IN_A_TRANSACTION, tmp_path / "presum.db"])
    assert killed.returncode == -signal.SIGKILL and (tmp_path / "presum.db-journal").exists()
    assert presum_command("summary", tmp_path).returncode == 0
    assert not (tmp_path / "presum.db-journal").exists()
    read_everything(tmp_path)


KILLED_IN_A_TRANSACTION = """
import os, signal, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA journal_mode=DELETE")
db.execute("PRAGMA cache_size=1")
db.execute("BEGIN")
db.execute("UPDATE worker_step SET loss = loss + 1")
db.execute("CREATE TABLE big AS SELECT zeroblob(4000) AS x FROM step")
os.kill(os.getpid(), signal.SIGKILL)
"""
