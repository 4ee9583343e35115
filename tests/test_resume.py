# SPDX-License-Identifier: Apache-2.0
"""Runs that go on after a restart, on real workers, are held against what they left."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from verdicts import found_of_training

import presum
from programs_started import presum_command
from workers import resume_shards
from workers.resume import BATCH, CASES, PASS, SAMPLES, SAVED, WORKERS

QUIET = ["as-it-was", "killed", "warm-start"]
FOUND = {  # severity, ranks, of the title
    "other-weights": (
        "critical",
        [0, 1],
        f"different weights than were saved after {SAVED} optimizer",
    ),
    "other-state": ("critical", [0, 1], "a different optimizer state than was saved"),
    "other-generator": ("warning", [1], "different random generators"),
    "another-order": ("warning", [0, 1], "did not continue where the pass"),
    "pass-anew": ("info", [0, 1], "restarted the interrupted pass over the data"),
}
SHARDS_QUIET = ("shards-as-they-were", "shards-attached-first")
# Severity, ranks and layers.
SHARDS_FOUND = {
    "shards-other-weights": ("critical", [1], {"0"}),
    "shards-other-state": ("critical", [0, 1, 2, 3], {"0", "2"}),
}


@pytest.fixture(scope="module")
def runs(launch: Any, tmp_path_factory: Any) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("resume")
    launch("resume", WORKERS, "killed", out=out, code=128 + signal.SIGKILL)
    launch("resume", WORKERS, "all", out=out, silent=True)
    return {name: presum.load(out / name) for name in CASES}


def of_resume(run: Any) -> list[Any]:
    return [finding for finding in run.findings if finding.check == "resume-mismatch"]


def state_of(run: Any) -> str:
    """Of the check, in the segment that goes on."""
    checks = run.checks
    (state,) = checks[(checks.check == "resume-mismatch") & (checks.segment == 2)].state
    return str(state)


@pytest.mark.parametrize("name", QUIET)
def test_what_goes_on_as_it_should_is_quiet(runs: dict[str, Any], name: str) -> None:
    assert [f for f in runs[name].findings if f.severity != "info"] == []
    assert of_resume(runs[name]) == []


@pytest.mark.parametrize(
    ("name", "state"),
    [("as-it-was", "passed"), ("killed", "passed"), ("warm-start", "not-possible")],
)
def test_it_is_said_whether_it_was_judged(runs: dict[str, Any], name: str, state: str) -> None:
    assert list(runs[name].segments.segment) == [1, 2]
    assert state_of(runs[name]) == state


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "as-it-was",
            f" continues from step {SAVED} of segment 1: detectors keep what they learned in "
            f"{SAVED} steps",
        ),
        (
            "other-weights",
            ": detectors start over: its parameters match no checkpoint or end that presum saw",
        ),
    ],
)
def test_it_is_said_what_it_goes_on_from(runs: dict[str, Any], name: str, said: str) -> None:
    found = presum_command("findings", runs[name].path.parent).stdout
    assert f"\nsegment 2{said}\n" in found


@pytest.mark.parametrize("name", FOUND)
def test_what_differs_is_named(runs: dict[str, Any], name: str) -> None:
    severity, ranks, title = FOUND[name]
    (finding,) = of_resume(runs[name])
    assert (finding.severity, finding.ranks, finding.segment) == (severity, ranks, 2)
    assert title in finding.title


def test_samples_that_come_again_and_never_are_counted(runs: dict[str, Any]) -> None:
    (anew,) = of_resume(runs["pass-anew"])
    drawn = (SAVED - PASS) * BATCH * WORKERS
    assert anew.values["samples_again"] == drawn
    (order,) = of_resume(runs["another-order"])
    assert 0 < order.values["samples_again"] < drawn
    assert order.values["of_samples"] == SAMPLES
    assert "samples_never" not in order.values, "a list deals what it holds"


def test_the_distance_of_other_weights_is_told(runs: dict[str, Any]) -> None:
    (finding,) = of_resume(runs["other-weights"])
    assert 0.5 < finding.values["apart_percent"] <= 1.0
    assert "2" in finding.values["layers"]


@pytest.fixture(scope="module")
def shards(launch: Any) -> dict[str, Any]:
    out = launch("resume_shards", resume_shards.WORKERS, silent=True).out
    return {name: presum.load(out / name) for name in (*resume_shards.CASES, "groups")}


def test_shards_that_go_on_as_they_should_are_quiet(shards: dict[str, Any]) -> None:
    for name in SHARDS_QUIET:
        assert found_of_training(shards[name]) == [], name
        assert state_of(shards[name]) == "passed", name


def test_shards_that_differ_are_named(shards: dict[str, Any]) -> None:
    for name, (severity, ranks, layers) in SHARDS_FOUND.items():
        (finding,) = found_of_training(shards[name])
        assert (finding.check, finding.severity) == ("resume-mismatch", severity)
        assert (finding.ranks, finding.segment) == (ranks, 2)
        assert set(finding.values["layers"].split(", ")) == layers


def test_steps_of_two_process_groups_are_not_added(shards: dict[str, Any]) -> None:
    found = presum_command("findings", shards["groups"].path.parent).stdout
    assert f"\n{resume_shards.STEPS_OF_GROUPS} steps, 4 of 4 ranks" in found
