# SPDX-License-Identifier: Apache-2.0
"""``presum export --prometheus``: what Prometheus's own parser reads while a training runs, and (in
``make test-deep``) a real Prometheus that scrapes a node exporter and fires an alert."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from programs_started import TESTS, Ended, presum_command, start

PACED = TESTS / "workers" / "paced.py"
FILES = TESTS.parent / "docs" / "prometheus"
pytestmark = pytest.mark.timeout(600)  # a follower that says nothing would block
PACKAGES = ("prometheus", "prometheus-node-exporter")


class Follower:
    """``presum export --follow`` and its file."""

    def __init__(self, run: Path, file: Path, **options: Any) -> None:
        command = [sys.executable, "-m", "presum", "export", run, "--prometheus", file, "--follow"]
        self.file = file
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def line(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def texts(self) -> Iterator[str]:
        """The file's texts until the process ends."""
        while self.process.poll() is None:
            with suppress(FileNotFoundError):
                yield self.file.read_text()
            time.sleep(0.05)

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        assert self.process.wait(60) == 0 and not self.file.exists()


def trained(run: Path, steps: int, seconds: float) -> tuple[threading.Thread, list[Ended]]:
    ends: list[Ended] = []
    words = [PACED, run, steps, seconds]
    thread = threading.Thread(target=lambda: ends.extend(start(words, world=2)))
    thread.start()
    return thread, ends


def recorded(run: Path, steps: int = 1) -> None:
    training, ends = trained(run, steps, 0)
    training.join()
    assert [end.returncode for end in ends] == [0, 0], ends[0].stderr


def values_of(text: str) -> dict[tuple[str, str], float]:
    """By name and rank, or check."""
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return {(s.name, s.labels.get("rank", s.labels.get("check", ""))): s.value for s in samples}


def test_the_file_follows_a_training(tmp_path: Path) -> None:
    run, began = tmp_path / "run", time.time()
    with Follower(run, tmp_path / "presum.prom") as follower:
        assert follower.line() == f"presum export: waiting for {run}\n"
        training, ends = trained(run, 60, 0.25)
        seen = []
        for text in follower.texts():
            seen.append(values_of(text))
            if seen[-1].get(("presum_step", ""), 0) == 59:
                break
        training.join()
        follower.end(signal.SIGTERM)
    assert [end.returncode for end in ends] == [0, 0], ends[0].stderr
    steps = [v["presum_step", ""] for v in seen if ("presum_step", "") in v]
    assert steps == sorted(steps) and steps[0] < steps[-1]
    assert seen[-1]["presum_findings", "duplicate-data"] == 1
    assert seen[-1]["presum_loss", "0"] == seen[-1]["presum_loss", "1"]
    assert began - 1 < seen[-1]["presum_started_timestamp_seconds", ""] < time.time()
    assert began < seen[-1]["presum_last_step_timestamp_seconds", ""] < time.time()


def test_a_run_that_has_ended_is_followed_when_it_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    recorded(run)
    with Follower(run, tmp_path / "presum.prom") as follower:
        assert "waiting until it is continued" in follower.line()
        assert not follower.file.exists()
        recorded(run, 3)
        assert values_of(next(follower.texts()))["presum_step", ""] == 2
        follower.end(signal.SIGINT)


def test_ignored_signals_stay_ignored(tmp_path: Path) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with Follower(tmp_path / "run", tmp_path / "presum.prom", preexec_fn=ignore) as follower:
        follower.line()
        follower.process.send_signal(signal.SIGHUP)
        recorded(tmp_path / "run")
        assert next(follower.texts())
        follower.end(signal.SIGTERM)


def test_a_run_that_is_deleted_takes_the_file_along(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with Follower(run, tmp_path / "presum.prom") as follower:
        follower.line()
        make_open(run)
        next(follower.texts())
        follower.file.unlink()
        next(follower.texts())
        shutil.rmtree(run)
        assert "waiting" in follower.line()
        assert not follower.file.exists()


def make_open(run: Path) -> None:
    """A run whose writer was killed."""
    made = run.with_name("made")
    recorded(made)
    with sqlite3.connect(made / "presum.db") as database:
        database.execute("UPDATE segment SET closed = 0")
    database.close()
    made.rename(run)


@pytest.fixture(scope="module")
def programs() -> Path:
    """Debian's Prometheus, unpacked and not installed, which would start it."""
    folder = Path("build/prometheus").absolute()
    made = folder / "made"
    if not made.exists():
        folder.mkdir(exist_ok=True, parents=True)
        subprocess.run(["apt-get", "download", "-q", *PACKAGES], check=True, cwd=folder)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, folder], check=True)
        made.touch()
    return folder / "usr" / "bin"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def asked(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=10) as answer:
        return json.load(answer)["data"]


@contextmanager
def scraped(programs: Path, folder: Path) -> Iterator[int]:
    """A Prometheus that scrapes a node exporter with this folder each second: its port."""
    exporter, port = free_port(), free_port()
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(FILES / "alerts.yml")],
        "scrape_configs": [
            {"job_name": "node", "static_configs": [{"targets": [f"127.0.0.1:{exporter}"]}]}
        ],
    }
    (folder / "prometheus.json").write_text(json.dumps(config))
    commands = [
        [
            "prometheus-node-exporter",
            "--collector.disable-defaults",
            "--collector.textfile",
            f"--collector.textfile.directory={folder}",
            f"--web.listen-address=127.0.0.1:{exporter}",
        ],
        [
            "prometheus",
            f"--config.file={folder}/prometheus.json",
            f"--storage.tsdb.path={folder}/tsdb",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
    ]
    with (folder / "log").open("w") as log:
        started = [
            subprocess.Popen([programs / name, *words], stdout=log, stderr=log)
            for name, *words in commands
        ]
        try:
            yield port
        finally:
            for process in started:
                process.terminate()
                process.wait()


def fired(port: int) -> set[str]:
    try:
        alerts = asked(port, "alerts")["alerts"]
    except OSError:
        return set()
    return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


def wait_until_none(port: int, query: str) -> None:
    for _ in range(60):
        if not asked(port, f"query?query={query}")["result"]:
            return
        time.sleep(1)
    pytest.fail(f"{query} is still there")


@pytest.mark.deep
def test_a_prometheus_fires_on_a_fault(programs: Path, tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "presum.prom"
    alerts: set[str] = set()
    with scraped(programs, tmp_path) as port, Follower(run, file) as follower:
        follower.line()
        training, _ = trained(run, 240, 0.25)
        for _ in follower.texts():
            alerts |= fired(port)
            time.sleep(1)
        training.join()
        assert follower.process.returncode == 0
        count = asked(port, "query?query=count_over_time(presum_step[5m])")["result"]
        wait_until_none(port, "presum_step")
    assert alerts == {"PresumCriticalFinding"}
    assert [int(one["value"][1]) >= 60 for one in count] == [True], "scraped for a minute"


# Values a minute apart, and what fires after 40 minutes.
RULES: list[tuple[dict[str, str], set[str]]] = [
    ({}, set()),
    ({'presum_findings{severity="critical", check="duplicate-data"}': "1x60"}, {"CriticalFinding"}),
    ({'presum_findings{severity="critical", check="stall"}': "1x60"}, set()),
    ({'presum_findings{severity="warning", check="slow-rank"}': "1x60"}, set()),
    ({"presum_stalled": "1x60"}, {"Stalled"}),
    ({"presum_stalled": "0x60"}, set()),
    ({"presum_started_timestamp_seconds": "0x60"}, {"NoSteps"}),
    (
        {
            "presum_started_timestamp_seconds": "0x60",
            "presum_last_step_timestamp_seconds": "0+60x60",
        },
        set(),
    ),
    ({"presum_last_step_timestamp_seconds": "300x60"}, {"NoSteps"}),
    ({"presum_recording_incomplete": "1x60"}, {"RecordingIncomplete"}),
    ({"presum_ranks_missing": "0x34 2 0x24"}, {"RecordingIncomplete"}),
    ({"presum_ranks_missing": "0x60"}, set()),
    ({'node_textfile_mtime_seconds{file="/x/presum.prom"}': "0x60"}, {"ExportEnded"}),
    ({'node_textfile_mtime_seconds{file="/x/presum.prom"}': "0+60x60"}, set()),
    ({'node_textfile_mtime_seconds{file="/x/other.prom"}': "0x60"}, set()),
]


@pytest.mark.deep
def test_each_rule_fires_on_what_it_names(programs: Path, tmp_path: Path) -> None:
    rules = [
        "CriticalFinding",
        "Stalled",
        "NoSteps",
        "RecordingIncomplete",
        "ExportEnded",
    ]
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": n, "values": v} for n, v in series.items()],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="Presum{rule}", alertstate="firing"}})',
                    "eval_time": "40m",
                    "exp_samples": [{"labels": "{}", "value": 1}] if rule in fires else [],
                }
                for rule in rules
            ],
        }
        for series, fires in RULES
    ]
    file = tmp_path / "tests.json"
    file.write_text(json.dumps({"rule_files": [str(FILES / "alerts.yml")], "tests": tests}))
    subprocess.run([programs / "promtool", "test", "rules", file], check=True)


@pytest.mark.deep
def test_promtool_accepts_metrics_rules_and_dashboard(programs: Path, tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "presum.prom"
    recorded(run, 3)
    assert presum_command("export", run, "--prometheus", file).returncode == 0
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$run", ".*")}
        for number, expression in enumerate(expressions())
    ]
    of_panels = tmp_path / "panels.json"
    of_panels.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    promtool = programs / "promtool"
    for checked in (FILES / "alerts.yml", of_panels):
        subprocess.run([promtool, "check", "rules", "--lint=none", checked], check=True)
    subprocess.run([promtool, "check", "metrics"], stdin=file.open(), check=True)


def expressions() -> list[str]:
    panels = json.loads((FILES / "grafana.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_dashboard_and_rules_use_metrics_that_exist(tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "presum.prom"
    recorded(run, 60)
    assert presum_command("export", run, "--prometheus", file).returncode == 0
    exist = {name for name, _ in values_of(file.read_text())}
    exist |= {
        f"presum_{name}_{extreme}"
        for name in ("loss", "grad_norm", "own_seconds", "wait_seconds")
        for extreme in ("lowest", "highest")
    }
    words = " ".join([*expressions(), (FILES / "alerts.yml").read_text()])
    used = {*re.findall(r"\bpresum_\w+", words)}
    # A run that has ended without a stall has no other.
    assert len(used) > 20 and used - exist <= {"presum_stalled"}
