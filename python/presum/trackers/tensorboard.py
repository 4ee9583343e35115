# SPDX-License-Identifier: Apache-2.0
"""TensorBoard: an event file in a folder beside the program's."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from presum.findings import Finding
from presum.trackers.tracker import Found, Row

SUFFIX = ".presum"


class TensorBoard:
    """Writes to the folder of the program's ``SummaryWriter``, or else of the run, with the suffix
    ``.presum``."""

    @staticmethod
    def find() -> Found:
        module = sys.modules.get("torch.utils.tensorboard")
        if module is None:
            return {}
        kind = module.SummaryWriter
        folders = [str(one.log_dir) for one in gc.get_objects() if issubclass(type(one), kind)]
        return {"folder": _from_anywhere(folders[0])} if folders else {}

    def open(self, run: Path, found: Found) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(found.get("folder", str(run)) + SUFFIX)

    def log(self, rows: Sequence[Row]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        for row in rows:
            scalars = [Summary.Value(tag=n, simple_value=v) for n, v in row.values.items()]
            self._add(row.step, Summary(value=scalars))
        self._writer.flush()

    def tell(self, finding: Finding) -> None:
        text = f"{finding}\n\n{finding.evidence_text}\n\n{finding.remedy}"
        self._add_text(finding.last_step, finding.check, text)

    def close(self, verdict: str, report: Path) -> None:
        self._add_text(0, "verdict", verdict)
        self._writer.close()

    def _add_text(self, step: int, name: str, text: str) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._add(step, text_pb(f"presum/{name}", text))

    def _add(self, step: int, summary: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))


def _from_anywhere(folder: str) -> str:
    """The folder of a program that may change its own. It may also be on another machine."""
    return folder if "://" in folder else str(Path(folder).absolute())
