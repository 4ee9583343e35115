# SPDX-License-Identifier: Apache-2.0
"""The program of docs/start.md, healthy and with its planted mistake, on two ranks."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from programs_started import Ended, presum_command, run_command

START = (Path(__file__).parents[1] / "docs" / "start.md").read_text(encoding="utf-8")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    text, *_ = re.findall(r"```python\n(.*?)```", START, re.DOTALL)
    path = tmp_path / "train.py"
    path.write_text(text, encoding="utf-8")
    return path


def train(program: Path, run: str, *arguments: str) -> Ended:
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    presum = [sys.executable, "-m", "presum", "run", "--run-folder", run, "--"]
    return run_command([*presum, *torchrun, program, *arguments], cwd=program.parent)


def test_the_program_is_consistent_and_the_planted_mistake_is_named(program: Path) -> None:
    healthy = train(program, "runs/start")
    assert "presum: consistent after 256 steps: no finding" in healthy.stdout + healthy.stderr
    assert presum_command("check", program.parent / "runs/start").returncode == 0
    broken = train(program, "runs/start--broken", "--broken")
    told = broken.stdout + broken.stderr
    assert re.search(r"presum: critical: .*read the same data.* \[duplicate-data\]", told), told
    assert presum_command("check", program.parent / "runs/start--broken").returncode == 1
    check_for_ci(program.parent / "runs")


def check_for_ci(runs: Path) -> None:
    """The folder of both runs as JUnit's XML, JSON and annotations, and with a baseline."""
    checked = presum_command("check", runs, "--format", "junit")
    assert checked.returncode == 1
    suites = ElementTree.fromstring(checked.stdout).findall("testsuite")
    assert [suite.get("name") for suite in suites] == ["start", "start--broken"]
    failures = [
        [case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None]
        for suite in suites
    ]
    assert failures == [[], ["duplicate-data"]]
    for suite in suites:
        assert suite.get("failures") == str(len(list(suite.iter("failure"))))
        assert suite.get("skipped") == str(len(list(suite.iter("skipped"))))
        assert suite.get("tests") == str(len(list(suite.iter("testcase"))))

    judged = json.loads(presum_command("check", runs, "--format", "json").stdout)
    assert [run["exit_code"] for run in judged["runs"]] == [0, 1]
    assert judged["runs"][1]["judgment"]["findings"][0]["check"] == "duplicate-data"

    annotated = presum_command("check", runs, "--format", "github").stdout
    errors = [line for line in annotated.splitlines() if line.startswith("::error ")]
    assert [line.split("::")[1] for line in errors] == ["error title=presum%3A duplicate-data"]

    entry, *_ = re.findall(r"```json\n(.*?)```", START, re.DOTALL)
    baseline = json.loads(entry)
    for ignored in baseline["ignore"]:
        ignored["check"] = "duplicate-data"
        ignored["expires"] = "2999-12-31"
    (runs / "baseline.json").write_text(json.dumps(baseline), encoding="utf-8")
    known = presum_command("check", runs, "--baseline", runs / "baseline.json")
    assert known.returncode == 0
    assert "start--broken: consistent but for 1 ignored finding; " in known.stdout
