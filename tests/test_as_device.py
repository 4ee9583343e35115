# SPDX-License-Identifier: Apache-2.0
"""Real workers whose gradients are read as on a device, by kernels on the host's grid and by torch
operations: the metrics of the pass in host memory, in few launches."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import presum
from workers.as_device import PARAMETERS, STEPS, TRAININGS

EXACT = ("loss_mean", "loss_std", "grad_norm_mean", "grad_norm_std")
LAYERS_EVERY = 25
FROM_SKETCHES = ("cosine_mean", "consistency", "effective_workers")


@pytest.fixture(scope="module")
def out(launch: Any) -> Path:
    return launch("as_device", 2).out


@pytest.mark.parametrize("read_by", ["torch", "kernels"])
@pytest.mark.parametrize("training", TRAININGS)
def test_metrics_are_those_of_host_memory(out: Path, training: str, read_by: str) -> None:
    host, device = (presum.load(out / f"{training}-{one}").steps for one in ("host", read_by))
    assert len(host) == len(device) == STEPS
    if training == "fsdp2":  # layers, which sharpen the cosine there, are read in host memory only
        host, device = (steps[steps["step"] % LAYERS_EVERY != 0] for steps in (host, device))
    for names, tolerance in ((EXACT, 1e-9), (FROM_SKETCHES, 1e-5)):
        for name in names:
            np.testing.assert_allclose(device[name], host[name], rtol=tolerance, err_msg=name)


@pytest.mark.parametrize("training", TRAININGS)
def test_times_are_those_of_the_devices_clock(out: Path, training: str) -> None:
    """But for FSDP, whose waits no event tells apart."""
    phases = ("data", "forward", "backward", "optimizer", "rest", "reduction")
    columns = ", ".join(f"time_{phase}" for phase in phases)
    db = sqlite3.connect(out / f"{training}-kernels" / "presum.db")
    rows = db.execute(
        f"SELECT time_on_device, {columns} FROM worker_step w JOIN step s ON s.id = w.step_id "
        "WHERE s.step > 0"
    ).fetchall()
    assert rows
    for on_device, *seconds in rows:
        if training == "fsdp2":
            assert seconds == [None] * len(phases)
            continue
        assert on_device == 1 and all(s >= 0 for s in seconds)
        assert 0 < sum(seconds) < 5


def test_gradients_share_launches_where_they_stay_as_they_are(out: Path) -> None:
    launched = json.loads((out / "launched.json").read_text())
    for training in ("copied", "views", "fsdp2"):  # and now and then reduced gradients
        assert 2 * STEPS <= launched[training] < 3 * STEPS
    for training in ("held-views", "own-hook", "nested"):
        assert launched[training] >= PARAMETERS * STEPS
