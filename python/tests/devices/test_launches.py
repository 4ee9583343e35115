# SPDX-License-Identifier: Apache-2.0
"""What one step of a training queues on its device, counted with the kernels on the host."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import presum
from gpu_check.place import kernels_on_host
from helpers.operations import CountedOperations
from presum import _core
from presum._core import ParameterHook
from presum.torch_events.hooks import Hook

MOST, USUAL = 40, 16
LAYERS, STEPS = 100, 30


class OfHooks:
    """Counts those of hooks."""

    def __init__(self) -> None:
        self.operations = CountedOperations()
        self._inside = False

    @property
    def total(self) -> int:
        return self.operations.total

    def of(self, call: Any) -> Any:
        def counted(hook: Hook, *args: Any, **named: Any) -> None:
            if self._inside:
                call(hook, *args, **named)
                return
            self._inside = True
            with self.operations:
                call(hook, *args, **named)
            self._inside = False

        return counted


@pytest.mark.usefixtures("one_worker")
def test_a_step_takes_few_launches_however_many_parameters_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = OfHooks()
    for kind in (Hook, ParameterHook):
        monkeypatch.setattr(kind, "__call__", hooks.of(kind.__call__))
    data = TensorDataset(torch.randn(4 * STEPS, 8), torch.randint(3, (4 * STEPS,)))
    launches: list[int] = []
    with kernels_on_host():
        model = DistributedDataParallel(nn.Sequential(*(nn.Linear(8, 8) for _ in range(LAYERS))))
        optimizer = torch.optim.AdamW(model.parameters())
        with presum.attach(
            model, optimizer=optimizer, run=tmp_path, record=presum.Record(quiet=True)
        ):
            for x, _ in DataLoader(data, batch_size=4):
                before = len(_core.cuda_launched()) + hooks.total
                model(x).square().mean().backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                launches.append(len(_core.cuda_launched()) + hooks.total - before)
    assert 1 < max(launches) <= MOST, (launches, hooks.operations.count)
    assert statistics.median(launches) <= USUAL, launches
