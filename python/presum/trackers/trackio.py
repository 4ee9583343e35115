# SPDX-License-Identifier: Apache-2.0
"""trackio: a run of presum's own, in the project and group of the program's."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from presum.findings import Finding
from presum.trackers.tracker import Found, Row

PROJECT = "presum-runs"
TOKEN = "TRACKIO_WRITE_TOKEN"
LEVELS = {"info": "INFO", "warning": "WARN", "critical": "ERROR"}


class Trackio:
    """Without a run of the program, it writes to the project "presum-runs" in ``TRACKIO_DIR``."""

    @staticmethod
    def find() -> Found:
        contexts: Any = sys.modules.get("trackio.context_vars")
        run = contexts.current_run.get() if contexts is not None else None
        if run is None:
            return {}
        return {
            "project": run.project,
            "group": run.group or run.name,
            "space_id": run._space_id,
            "server_url": run._server_base_url,
            "token": run._write_token,
        }

    def open(self, run: Path, found: Found) -> None:
        import trackio

        where = {"project": PROJECT, **found}
        token = where.pop("token", None)
        if token is not None:
            os.environ[TOKEN] = token
        quiet = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        self._run = trackio.init(name=f"presum {run.name}", **where, **quiet)

    def log(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._run.log(row.values, step=row.step)

    def tell(self, finding: Finding) -> None:
        import trackio

        level = getattr(trackio.AlertLevel, LEVELS[finding.severity])
        text = f"{finding.sentence}\n{finding.remedy}"
        self._run.alert(finding.title, text, level=level, step=finding.last_step)

    def close(self, verdict: str, report: Path) -> None:
        import trackio

        self._run.alert("verdict", verdict, level=trackio.AlertLevel.INFO)
        self._run.log_artifact(str(report), name="presum-report", type="report")
        self._run.finish()
