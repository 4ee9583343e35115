# SPDX-License-Identifier: Apache-2.0
"""Weights & Biases: a run of presum's own, in the project and group of the program's."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from presum.findings import Finding
from presum.trackers.tracker import Found, Row

STEP = "presum/step"
ENVIRONMENT = {
    "WANDB_CONSOLE": "off",
    "WANDB_SILENT": "true",
    "WANDB_DISABLE_GIT": "true",
    "WANDB_DISABLE_CODE": "true",
    "WANDB_X_DISABLE_STATS": "true",
}
OF_THE_PROGRAM = ("WANDB_RUN_ID", "WANDB_NAME", "WANDB_RESUME", "WANDB_SWEEP_ID", "WANDB_JOB_TYPE")


class Wandb:
    """Never logs into the program's run: there, rows that the program logs with ``step=`` would be
    lost."""

    @staticmethod
    def find() -> Found:
        run = getattr(sys.modules.get("wandb"), "run", None)
        if run is None:
            return {}
        return {
            "project": run.project,
            "entity": run.entity,
            "group": run.group or run.name or run.id,
            "dir": str(run.settings.root_dir),
            "mode": "disabled" if run.disabled else "offline" if run.offline else "online",
        }

    def open(self, run: Path, found: Found) -> None:
        for name in OF_THE_PROGRAM:
            os.environ.pop(name, None)
        os.environ |= ENVIRONMENT
        import wandb

        self._name = run.name
        self._run = wandb.init(job_type="presum", name=f"presum {run.name}", **found)
        self._run.define_metric("*", step_metric=STEP)

    def log(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._run.log({STEP: row.step, **row.values})

    def tell(self, finding: Finding) -> None:
        import wandb

        self._run.summary[f"presum/{finding.check}"] = str(finding)
        levels = {"warning": wandb.AlertLevel.WARN, "critical": wandb.AlertLevel.ERROR}
        if finding.severity in levels:
            text = f"{finding.sentence}\n{finding.remedy}"
            self._run.alert(finding.title, text, levels[finding.severity])

    def close(self, verdict: str, report: Path) -> None:
        import wandb

        self._run.summary["presum/verdict"] = verdict
        name = re.sub(r"[^\w.-]", "-", f"presum-{self._name}", flags=re.ASCII)
        artifact = wandb.Artifact(name, type="report")
        artifact.add_file(str(report))
        self._run.log_artifact(artifact)
        self._run.finish()
