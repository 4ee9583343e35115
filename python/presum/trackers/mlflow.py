# SPDX-License-Identifier: Apache-2.0
"""MLflow: metrics of the program's run, or of a new run if it has none."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from presum.findings import Finding
from presum.trackers.tracker import Found, Row

CALL_METRICS = 1000  # that the server takes in one call
TAG_LENGTH = 5000
RUN_TAG = "mlflow.runName"


class Mlflow:
    """Uses the client with explicit ids: MLflow's other functions would start a stray run."""

    @staticmethod
    def find() -> Found:
        mlflow: Any = sys.modules.get("mlflow")
        if mlflow is None:
            return {}
        run = mlflow.active_run()
        found = {"uri": mlflow.get_tracking_uri()}
        return found if run is None else found | {"run_id": run.info.run_id}

    def open(self, run: Path, found: Found) -> None:
        from mlflow import MlflowClient
        from mlflow.tracking.fluent import _get_experiment_id

        self._client = MlflowClient(found.get("uri"))
        self._is_own = "run_id" not in found
        self._run_id = found.get("run_id", "")
        if self._is_own:
            tags = {RUN_TAG: f"presum {run.name}"}
            created = self._client.create_run(_get_experiment_id(), tags=tags)
            self._run_id = created.info.run_id

    def log(self, rows: Sequence[Row]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(n, v, now, row.step) for row in rows for n, v in row.values.items()]
        for at in range(0, len(metrics), CALL_METRICS):
            self._client.log_batch(self._run_id, metrics[at : at + CALL_METRICS])

    def tell(self, finding: Finding) -> None:
        self._client.set_tag(self._run_id, f"presum.{finding.check}", str(finding)[:TAG_LENGTH])

    def close(self, verdict: str, report: Path) -> None:
        self._client.set_tag(self._run_id, "presum.verdict", verdict[:TAG_LENGTH])
        self._client.log_artifact(self._run_id, str(report), "presum")
        if self._is_own:
            self._client.set_terminated(self._run_id)
