# SPDX-License-Identifier: Apache-2.0
"""``presum export --prometheus``: what Prometheus's own parser reads while a training runs, and (in
``make test-deep``) a real Prometheus that scrapes a node exporter and fires an alert."""

from __future__ import annotations

import json
import signal
import socket
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
PACKAGES = ("prometheus", "prometheus-node-exporter")


@contextmanager
def followed(run: Path, file: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "presum", "export", run, "--prometheus", file, "--follow"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def trained(run: Path, steps: int, seconds: float) -> tuple[threading.Thread, list[Ended]]:
    ends: list[Ended] = []
    words = [PACED, run, steps, seconds]
    thread = threading.Thread(target=lambda: ends.extend(start(words, world=2)))
    thread.start()
    return thread, ends


def values_of(text: str) -> dict[tuple[str, str], float]:
    """By name and rank."""
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return {(s.name, s.labels.get("rank", s.labels.get("check", ""))): s.value for s in samples}


def texts_until(process: subprocess.Popen[str], file: Path) -> Iterator[str]:
    while process.poll() is None:
        with suppress(FileNotFoundError):
            yield file.read_text()
        time.sleep(0.02)


def test_the_file_follows_a_training_and_ends_with_it(tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "presum.prom"
    with followed(run, file) as process:
        training, ends = trained(run, 60, 0.25)
        seen = {text: values_of(text) for text in texts_until(process, file)}
        training.join()
        assert process.stderr is not None
        assert process.stderr.read() == f"presum export: waiting for {run}\n"
    assert process.returncode == 0 and not file.exists()
    assert [end.returncode for end in ends] == [0, 0], ends[0].stderr
    steps = [v["presum_step", ""] for v in seen.values() if ("presum_step", "") in v]
    assert steps == sorted(steps) and steps[0] < steps[-1]
    last = [*seen.values()][-1]
    assert last["presum_findings", "duplicate-data"] == 1
    assert last["presum_loss", "0"] == last["presum_loss", "1"]
    assert abs(last["presum_last_step_timestamp_seconds", ""] - time.time()) < 3600


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_the_file(number: signal.Signals, tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "presum.prom"
    training, ends = trained(run, 1, 0)
    training.join()
    assert [end.returncode for end in ends] == [0, 0], ends[0].stderr
    make_open(run)
    with followed(run, file) as process:
        next(texts_until(process, file))
        process.send_signal(number)
        assert process.wait() == 0 and not file.exists()


def make_open(run: Path) -> None:
    import sqlite3

    with sqlite3.connect(run / "presum.db") as database:
        database.execute("UPDATE segment SET closed = 0")
    database.close()


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


@pytest.mark.deep
def test_a_prometheus_fires_on_a_fault(programs: Path, tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "presum.prom"
    alerts: set[str] = set()
    with scraped(programs, tmp_path) as port, followed(run, file) as process:
        training, _ = trained(run, 300, 0.25)
        for _ in texts_until(process, file):
            alerts |= fired(port)
        training.join()
        count = asked(port, "query?query=count_over_time(presum_step[5m])")["result"]
        time.sleep(5)
        left = asked(port, "query?query=presum_step")["result"]
    assert alerts == {"PresumCriticalFinding"}
    assert [int(one["value"][1]) >= 60 for one in count] == [True], "scraped for a minute"
    assert left == []


@pytest.mark.deep
def test_promtool_accepts_metrics_rules_and_dashboard(programs: Path, tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "presum.prom"
    training, _ = trained(run, 3, 0)
    training.join()
    assert presum_command("export", run, "--prometheus", file).returncode == 0
    panels = json.loads((FILES / "grafana.json").read_text())["panels"]
    rules = [
        {"record": f"panel:{panel['id']}", "expr": target["expr"].replace("$run", ".*")}
        for panel in panels
        for target in panel["targets"]
    ]
    of_panels = tmp_path / "panels.json"
    of_panels.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    promtool = programs / "promtool"
    for checked in (FILES / "alerts.yml", of_panels):
        subprocess.run([promtool, "check", "rules", "--lint=none", checked], check=True)
    subprocess.run([promtool, "check", "metrics"], stdin=file.open(), check=True)
    assert all(name in file.read_text() for name in ("presum_own_seconds", "presum_cosine_mean"))


def test_dashboard_and_rules_use_metrics_that_exist(tmp_path: Path) -> None:
    source = (TESTS.parent / "src" / "cli" / "prometheus.cc").read_text()
    names = set()
    for used in (FILES / "alerts.yml", FILES / "grafana.json"):
        words = used.read_text().replace("{", " ").replace(",", " ").split()
        names |= {word.strip('":()') for word in words if "presum_" in word}
    names = {name.partition("presum_")[2] for name in names}
    assert len(names) > 12
    assert {name for name in names if f'"{name}"' not in source} == set()
