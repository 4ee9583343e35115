# SPDX-License-Identifier: Apache-2.0
"""A recording that breaks says so, at once and last, and no surface calls the run consistent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from programs_started import presum_command
from workers.broken import CASES, STEPS


@pytest.fixture(scope="module")
def out(launch: Any) -> Path:
    return launch("broken", 2).out


def said(out: Path, case: str) -> list[str]:
    return (out / f"{case}.txt").read_text().splitlines()


@pytest.mark.parametrize("case", CASES)
def test_training_goes_on_to_its_end(out: Path, case: str) -> None:
    assert "trained to the end" in said(out, case)


def test_a_healthy_recording_is_whole(out: Path) -> None:
    assert said(out, "healthy")[1].startswith(f"presum: consistent after {STEPS} steps: ")
    assert presum_command("check", out / "healthy").returncode == 0


@pytest.mark.parametrize("case", [case for case in CASES if case != "healthy"])
def test_it_is_said_at_once_and_on_the_last_line(out: Path, case: str) -> None:
    lines = said(out, case)
    at_once = [line for line in lines[: lines.index("trained to the end")] if "presum" in line]
    assert len(at_once) == 1 and "nothing more is recorded here" in at_once[0]
    assert lines[-1].startswith(f"presum: the record in {out / case} is incomplete: ")
    assert "(after step " in lines[-1]
    assert not any("consistent after" in line for line in lines if "insufficient" not in line)


@pytest.mark.parametrize("case", ["deleted", "replaced"])
def test_a_record_that_is_gone_is_called_lost(out: Path, case: str) -> None:
    assert "the record is lost" in said(out, case)[-1]
    checked = presum_command("check", out / case)
    assert checked.returncode == 2 and len(checked.stderr.splitlines()) == 1


def test_what_was_put_in_its_place_is_left_alone(out: Path) -> None:
    assert (out / "replaced" / "presum.db").read_bytes() == b"something else"


def test_a_recording_that_failed_is_not_closed_and_every_surface_says_since_when(
    out: Path, tmp_path: Path
) -> None:
    run = out / "thread"
    checked = presum_command("check", run)
    assert checked.returncode == 2
    assert "insufficient evidence: the record is incomplete after step " in checked.stdout
    assert "\nincomplete after step " in presum_command("findings", run).stdout
    page = tmp_path / "page.html"
    presum_command("report", run, "-o", page)
    assert "incomplete after step " in page.read_text()


def test_on_a_full_disk_it_is_said_as_far_as_the_file_takes_it(out: Path) -> None:
    assert "disk I/O error" in said(out, "full")[-1]
    checked = presum_command("check", out / "full").stdout
    noted = "incomplete after step " in checked
    assert noted or "not closed (still running, or died): judged on the " in checked
