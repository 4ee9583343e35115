# SPDX-License-Identifier: Apache-2.0
"""``attach(log_to=)``: what each tracker's own reader reads back, and what becomes of the program's
own logging and training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import presum
from helpers.webhook_receiver import receiving
from programs_started import MODULES, TESTS, UNDER, Ended, run_command, start
from programs_started import PROGRAM as PLAIN
from workers.tracked import STEPS

PROGRAM = TESTS / "workers" / "tracked.py"
PACKAGES = (
    "wandb==0.31.0",
    "mlflow==3.17.2",
    "trackio==0.43.0",
    "tensorboard",
    "opentelemetry-exporter-otlp-proto-http==1.45.2",
)
SCALARS = {"presum/loss_mean", "presum/loss_std", "presum/grad_norm_cv", "presum/cosine_mean"}
OF_RANKS = {f"presum_{name}/rank_{r}" for name in ("loss", "grad_norm") for r in (0, 1)}


def trained(folder: Path, *arguments: str, **environment: str) -> list[Ended]:
    folder.mkdir(exist_ok=True)
    ends = start([PROGRAM, folder, *arguments], world=2, **environment)
    assert [end.returncode for end in ends] == [0, 0], ends[0].stderr
    return ends


def bits(ends: list[Ended]) -> list[str]:
    return [line for end in ends for line in end.stdout.splitlines() if line.startswith("bits")]


def scalars_of(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()


@pytest.mark.parametrize("own", [True, False])
def test_tensorboard_reads_every_step_and_finding(own: bool, tmp_path: Path) -> None:
    ends = trained(tmp_path, "tensorboard", *(["own"] if own else []))
    folder = tmp_path / ("tensorboard/program.presum" if own else "run.presum")
    events = scalars_of(folder)
    assert {*events.Tags()["scalars"]} >= SCALARS | OF_RANKS
    losses = [[(e.step, e.value) for e in events.Scalars(f"presum_loss/rank_{r}")] for r in (0, 1)]
    assert [step for step, _ in losses[0]] == [*range(STEPS)] and losses[0] == losses[1]
    texts = {tag.partition("/text")[0] for tag in events.Tags()["tensors"]}
    assert texts >= {"presum/duplicate-data", "presum/verdict"}
    if own:
        program = scalars_of(tmp_path / "tensorboard/program")
        logged = [(e.step, e.value) for e in program.Scalars("loss")]
        assert logged == losses[0]
    assert bits(ends) == bits(trained(tmp_path / "without", "none"))


def test_a_program_that_presum_runs_is_logged(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ends = start([*UNDER, "--run", run, "--log-to", "tensorboard", PLAIN], world=2)
    assert [end.returncode for end in ends] == [0, 0], ends[0].stderr
    steps = presum.load(run).steps
    logged = scalars_of(tmp_path / "run.presum").Scalars("presum/loss_mean")
    assert [event.step for event in logged] == steps.step[steps.model_index == 0].tolist()


def test_findings_are_posted_where_a_file_says(tmp_path: Path) -> None:
    with receiving() as receiver:
        receiver.codes = [500]
        (tmp_path / "hook").write_text(receiver.address)
        ends = trained(tmp_path, "none", HOOK="hook")
    assert {body["check"] for body in receiver.bodies} >= {"duplicate-data"}
    assert {body["run"] for body in receiver.bodies} == {"run"}
    said = "".join(end.stdout + end.stderr for end in ends)
    assert said.count("webhook: it answered 500") == 1 and receiver.address not in said
    assert bits(ends) == bits(trained(tmp_path / "without", "none"))


def test_a_tracker_that_is_not_installed_costs_one_line(tmp_path: Path) -> None:
    if find_spec("wandb") is not None:
        pytest.skip("wandb is installed here")
    ends = trained(tmp_path, "wandb")
    lines = [line for end in ends for line in end.stderr.splitlines() if "wandb" in line]
    assert lines == [
        "presum: rank 0: wandb: logging to it needs wandb: pip install wandb; "
        "the run log has everything"
    ]


@pytest.fixture(scope="module")
def libraries() -> Path:
    """An environment with the libraries, 805 MB: their folder."""
    folder = Path("build/trackers").resolve()
    made = folder / "made"
    if not made.exists() or made.read_text() != str(PACKAGES):
        venv.create(folder, with_pip=True, clear=True)
        install = [folder / "bin/python", "-m", "pip", "install", "-q", *PACKAGES]
        subprocess.run(install, check=True, stdin=subprocess.DEVNULL)
        made.write_text(str(PACKAGES))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return folder / "lib" / version / "site-packages"


@pytest.mark.deep
@pytest.mark.parametrize("own", [True, False])
def test_libraries_read_every_step_and_lose_none_of_the_programs(
    own: bool, libraries: Path, tmp_path: Path
) -> None:
    where = {
        "PYTHONPATH": f"{MODULES}{os.pathsep}{libraries}",
        "WANDB_MODE": "offline",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
    }
    names = "wandb,mlflow,trackio"
    ends = trained(tmp_path, names, *(["own"] if own else []), **where)
    assert "presum run" not in ends[0].stdout
    reader = [libraries.parents[2] / "bin/python", TESTS / "workers" / "read_trackers.py"]
    read = json.loads(run_command(reader, cwd=tmp_path, **where).stdout.splitlines()[-1])
    check_wandb(read["wandb"], own=own)
    check_mlflow(read["mlflow"], own=own)
    check_trackio(read["trackio"], own=own)
    assert bits(ends) == bits(trained(tmp_path / "without", "none"))


@pytest.mark.deep
def test_a_collector_gets_the_last_step_and_the_findings(libraries: Path, tmp_path: Path) -> None:
    with receiving() as collector:
        collector.decode = lambda body: body
        environment = {
            "PYTHONPATH": f"{MODULES}{os.pathsep}{libraries}",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.address,
        }
        ends = trained(tmp_path, "otlp", **environment)
        (tmp_path / "last").write_bytes(collector.bodies[-1])
    reader = [libraries.parents[2] / "bin/python", TESTS / "workers" / "read_otlp.py"]
    read = json.loads(run_command([*reader, tmp_path / "last"]).stdout)
    assert read["resource"]["service.name"] == "presum" and read["resource"]["presum.run"] == "run"
    values = {(name, *sorted(kind.items())): value for name, _, kind, value in read["points"]}
    model = (("presum.group", 0), ("presum.model", 0))
    (at_end,) = presum.load(tmp_path / "run").steps.loss_mean[-1:]
    assert values[("presum.step", *model)] == STEPS - 1
    assert values[("presum.loss_mean", *model)] == at_end
    assert values[("presum.loss", *model, ("presum.rank", 1))] == at_end
    found = ("presum.check", "duplicate-data"), ("presum.severity", "critical")
    assert values[("presum.findings", *found)] == 1
    assert {unit for name, unit, *_ in read["points"] if name == "presum.own_time"} == {"s"}
    assert bits(ends) == bits(trained(tmp_path / "without", "none"))


@pytest.mark.deep
def test_a_collector_that_is_away_costs_one_line(libraries: Path, tmp_path: Path) -> None:
    environment = {
        "PYTHONPATH": f"{MODULES}{os.pathsep}{libraries}",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
    }
    ends = trained(tmp_path, "otlp", **environment)
    lines = [line for end in ends for line in end.stderr.splitlines() if "otlp" in line]
    assert [line for line in lines if "did not take the metrics" in line] == lines[:1]


def check_wandb(runs: list[dict[str, Any]], *, own: bool) -> None:
    of_program = [run for run in runs if run["job"] != "presum"]
    (of_presum,) = [run for run in runs if run["job"] == "presum"]
    assert len(of_program) == own
    if own:
        assert [row["step"] for row in of_program[0]["rows"]] == [*range(STEPS)]
        assert of_program[0]["project"] == of_presum["project"] == "program"
        assert {*of_program[0]["rows"][0]} == {"step", "runtime", "timestamp", "loss"}
    assert [row["presum/step"] for row in of_presum["rows"]] == [*range(STEPS)]
    assert {*of_presum["rows"][3]} >= SCALARS | OF_RANKS
    assert "Both ranks read the same data" in of_presum["alerts"]
    assert "inconsistent" in of_presum["verdict"] and of_presum["artifacts"] == ["presum-run"]


def check_mlflow(runs: list[dict[str, Any]], *, own: bool) -> None:
    (run,) = runs
    steps = {name: [step for step, _ in history] for name, history in run["history"].items()}
    assert steps.pop("loss") == ([*range(STEPS)] if own else [])
    assert list(steps.values()) == [[*range(STEPS)]] * 2 and run["status"] == "FINISHED"
    assert "same data" in run["tags"]["presum.duplicate-data"]
    assert run["artifacts"] == ["presum/presum-report.html"]


def check_trackio(runs: list[dict[str, Any]], *, own: bool) -> None:
    of_program = [run for run in runs if run["name"] != "presum run"]
    (of_presum,) = [run for run in runs if run["name"] == "presum run"]
    assert [run["steps"] for run in of_program] == [[*range(STEPS)]] * own
    assert of_presum["project"] == ("program" if own else "presum-runs")
    assert of_presum["steps"] == [*range(STEPS)] and {*of_presum["names"]} >= SCALARS | OF_RANKS
    assert {*of_presum["alerts"]} >= {"Both ranks read the same data", "verdict"}
