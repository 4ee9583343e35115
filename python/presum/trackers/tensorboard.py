# SPDX-License-Identifier: Apache-2.0
"""TensorBoard: an event file in a folder beside the program's."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from presum.findings import Finding
from presum.trackers.tracker import Row

SUFFIX = ".presum"


class TensorBoard:
    """Writes to the folder of the program's ``SummaryWriter``, or else of the run, with the suffix
    ``.presum``."""

    def __init__(self) -> None:
        self._folder = ""
        self._writer: Any = None

    def find(self) -> None:
        module = sys.modules.get("torch.utils.tensorboard")
        if module is None or self._folder:
            return
        kind = module.SummaryWriter
        folders = [one.log_dir for one in gc.get_objects() if issubclass(type(one), kind)]
        self._folder = next((str(folder).rstrip("/") for folder in folders), "")

    def open(self, run: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter((self._folder or str(run)) + SUFFIX)

    def log(self, rows: Sequence[Row]) -> None:
        for step, values in rows:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def tell(self, finding: Finding) -> None:
        text = f"{finding}\n\n{finding.evidence_text}\n\n{finding.remedy}"
        self._writer.add_text(f"presum/{finding.check}", text, finding.last_step)

    def close(self, verdict: str, report: Path) -> None:
        self._writer.add_text("presum/verdict", verdict)
        self._writer.close()
