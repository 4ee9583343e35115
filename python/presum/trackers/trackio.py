# SPDX-License-Identifier: Apache-2.0
"""trackio: a run of presum's own, in the project and group of the program's."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from presum.findings import Finding
from presum.trackers.tracker import Row

PROJECT = "presum"


class Trackio:
    """Without a run of the program, it writes to the project "presum" in ``TRACKIO_DIR``."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}
        self._run: Any = None

    def find(self) -> None:
        contexts = sys.modules.get("trackio.context_vars")
        run = contexts.current_run.get() if contexts is not None else None
        if run is None:
            return
        self._found = {
            "url": run.url,
            "project": run.project,
            "group": run.group or run.name,
            "space_id": run._space_id,
            "server_base_url": run._server_base_url,
            "write_token": run._write_token,
        }

    def open(self, run: Path) -> None:
        import trackio

        _print_nothing(sys.modules["trackio.run"])
        where = self._found or {"url": None, "project": PROJECT}
        self._run = trackio.Run(client=None, name=f"presum {run.name}", **where)

    def log(self, rows: Sequence[Row]) -> None:
        for step, values in rows:
            self._run.log(dict(values), step=step)

    def tell(self, finding: Finding) -> None:
        import trackio

        level = getattr(trackio.AlertLevel, _LEVELS[finding.severity])
        text = f"{finding.sentence}\n{finding.remedy}"
        self._run.alert(finding.title, text, level=level, step=finding.last_step)

    def close(self, verdict: str, report: Path) -> None:
        import trackio

        self._run.alert("verdict", verdict, level=trackio.AlertLevel.INFO)
        self._run.log_artifact(str(report), name="presum-report", type="report")
        self._run.finish()


_LEVELS = {"info": "INFO", "warning": "WARN", "critical": "ERROR"}


def _print_nothing(module: Any) -> None:
    """Let ``print`` in this module print nothing on the calling thread."""
    thread, shown = threading.get_ident(), getattr(module, "print", print)

    def show(*words: object, **how: Any) -> None:
        if threading.get_ident() != thread:
            shown(*words, **how)

    module.print = show
