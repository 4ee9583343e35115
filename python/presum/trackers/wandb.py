# SPDX-License-Identifier: Apache-2.0
"""Weights & Biases: a run of presum's own, in the project and group of the program's."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from presum.findings import Finding
from presum.trackers.tracker import Row

INIT_SECONDS = 30.0
STEP = "presum/step"


class Wandb:
    """Never logs into the program's run: there, rows that the program logs with ``step=`` would be
    lost."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}
        self._name = ""
        self._run: Any = None

    def find(self) -> None:
        run = getattr(sys.modules.get("wandb"), "run", None)
        if run is None:
            return
        mode = "disabled" if run.disabled else "offline" if run.offline else "online"
        group = run.group or run.name or run.id
        where = {"project": run.project, "entity": run.entity, "dir": run.settings.root_dir}
        self._found = {"group": group, "mode": mode, **where}

    def open(self, run: Path) -> None:
        import wandb

        self._name = run.name
        settings = wandb.Settings(
            console="off",  # else it would replace the program's standard output
            silent=True,
            disable_git=True,
            disable_code=True,
            x_disable_stats=True,
            init_timeout=INIT_SECONDS,
        )
        mode = self._found.get("mode") or wandb.setup().settings.mode
        if mode == "online" and not wandb.login(prompt=False):  # else it asks on the terminal
            raise RuntimeError("not logged in: run `wandb login`, or set WANDB_MODE=offline")
        self._run = wandb.init(
            reinit="create_new",
            job_type="presum",
            name=f"presum {run.name}",
            settings=settings,
            **self._found,
        )
        self._run.define_metric("*", step_metric=STEP)

    def log(self, rows: Sequence[Row]) -> None:
        for step, values in rows:
            self._run.log({STEP: step, **values})

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
