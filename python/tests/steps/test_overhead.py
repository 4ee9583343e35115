# SPDX-License-Identifier: Apache-2.0
"""What presum tells of its own time, of real trainings."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import presum
from presum._core import PassFlags
from presum.steps.overhead import LAST
from presum.steps.step_recorder import StepRecorder

pytestmark = pytest.mark.usefixtures("one_worker")
PAUSE = 0.002  # of the program, in each step


def facts_of(run: Path, steps: int, every: int = 1) -> dict[str, str]:
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = presum.attach(
        model, optimizer=optimizer, run=run, record=presum.Record(quiet=True, every=every)
    )
    began = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        time.sleep(PAUSE)
    passed = time.perf_counter() - began
    monitor.close()
    facts = dict(presum.load(run).facts[["key", "value"]].values.tolist())
    return facts | {"passed_ms": f"{1e3 * passed / steps}"}


@pytest.mark.parametrize("every", [1, 3])
def test_it_is_told_once_a_recording_is_long_enough(every: int, tmp_path: Path) -> None:
    facts = facts_of(tmp_path, LAST * every + 5, every)
    own, step = float(facts["overhead_ms"]), float(facts["step_ms"])
    assert 0 < own < step
    assert 1e3 * PAUSE < step < 2 * float(facts["passed_ms"])


def test_of_a_short_recording_it_is_not_known(tmp_path: Path) -> None:
    assert "overhead_ms" not in facts_of(tmp_path, LAST - 1)


def test_what_hooks_take_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end_step = StepRecorder.end_step

    def slow(recorder: StepRecorder) -> None:
        time.sleep(2 * PAUSE)
        end_step(recorder)

    monkeypatch.setattr(StepRecorder, "end_step", slow)
    facts = facts_of(tmp_path, LAST + 5)
    assert float(facts["overhead_ms"]) > 2e3 * PAUSE
    assert float(facts["step_ms"]) > float(facts["overhead_ms"]) + 1e3 * PAUSE


def test_hooks_within_hooks_count_once() -> None:
    flags = PassFlags()
    began = time.perf_counter()
    flags.enter()
    flags.enter()
    time.sleep(PAUSE)
    flags.leave()
    assert flags.spent == 0
    flags.leave()
    assert PAUSE <= flags.spent <= time.perf_counter() - began
