# SPDX-License-Identifier: Apache-2.0
"""Reads back what a training logged in this folder, by the trackers' own readers, as JSON. It runs
where they are installed, without presum."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from trackio.sqlite_storage import SQLiteStorage
from wandb.proto.wandb_internal_pb2 import Record


def records(path: Path) -> Iterator[Record]:
    """LevelDB's log, after a header of 7 bytes: blocks of 32 KiB, records in parts."""
    raw, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(raw):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", raw, at)
        whole += raw[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield Record.FromString(whole)
            whole = b""


def values_of(items: Any) -> dict[str, Any]:
    names = [(i.key or "/".join(i.nested_key)).lstrip("_") for i in items]
    return dict(zip(names, (json.loads(i.value_json) for i in items), strict=True))


def wandb_run(path: Path) -> dict[str, Any]:
    every = list(records(path))
    run = next(r.run for r in every if r.HasField("run"))
    rows = [values_of(r.history.item) for r in every if r.HasField("history")]
    alerts = [r.alert.title for r in every if r.HasField("alert")]
    artifacts = [
        r.request.log_artifact.artifact.name or r.artifact.name
        for r in every
        if r.HasField("artifact") or r.request.HasField("log_artifact")
    ]
    summary = {
        u.key or "/".join(u.nested_key): u.value_json
        for r in every
        if r.HasField("summary")
        for u in r.summary.update
    }
    return {
        "project": run.project,
        "job": run.job_type,
        "rows": rows,
        "alerts": alerts,
        "artifacts": artifacts,
        "verdict": summary.get("presum/verdict", ""),
    }


def mlflow_runs() -> Iterator[dict[str, Any]]:
    client = MlflowClient("sqlite:///mlflow.db")
    for run in client.search_runs(["0"]):
        known = run.info.run_id
        history = {
            name: [(m.step, m.value) for m in client.get_metric_history(known, name)]
            for name in ("loss", "presum/loss_mean", "presum_loss/rank_1")
        }
        yield {
            "status": run.info.status,
            "history": history,
            "tags": run.data.tags,
            "artifacts": [a.path for a in client.list_artifacts(known, "presum")],
        }


def trackio_runs() -> Iterator[dict[str, Any]]:
    for project in ("program", "presum-runs"):
        for record in SQLiteStorage.get_run_records(project):
            rows = SQLiteStorage.get_logs(project, record["name"])
            alerts = SQLiteStorage.get_alerts(project, record["name"])
            yield {
                "project": project,
                "name": record["name"],
                "steps": [r["step"] for r in rows],
                "names": sorted({n for r in rows for n in r}),
                "alerts": [a["title"] for a in alerts],
            }


print(
    json.dumps(
        {
            "wandb": [wandb_run(p) for p in sorted(Path().glob("wandb/offline-*/*.wandb"))],
            "mlflow": list(mlflow_runs()),
            "trackio": list(trackio_runs()),
        }
    )
)
