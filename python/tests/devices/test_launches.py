# SPDX-License-Identifier: Apache-2.0
"""What one step of a training queues on its device, counted with the kernels on the host."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

import presum
from gpu_check.place import kernels_on_host
from presum import _core
from presum.torch_events.hooks import Hook, ParameterHook

MOST = 40
LAYERS, STEPS = 100, 30
# Nothing runs on the device for these.
FREE = {"as_strided", "view", "slice", "select", "unsqueeze", "detach", "expand", "split", "alias"}
FREE |= {"t", "squeeze", "empty", "empty_like", "new_empty", "split_with_sizes", "_unsafe_view"}


class Operations(TorchDispatchMode):
    """Counts those of hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self._inside = False

    def __torch_dispatch__(
        self, function: Any, _types: Any, args: Any = (), named: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        if name not in FREE:
            self.count[name] += 1
        return function(*args, **(named or {}))

    def of(self, call: Any) -> Any:
        def counted(hook: Hook, *args: Any, **named: Any) -> None:
            if self._inside:
                call(hook, *args, **named)
                return
            self._inside = True
            with self:
                call(hook, *args, **named)
            self._inside = False

        return counted


@pytest.mark.usefixtures("one_worker")
def test_a_step_takes_few_launches_however_many_parameters_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operations = Operations()
    for kind in (Hook, ParameterHook):
        monkeypatch.setattr(kind, "__call__", operations.of(kind.__call__))
    data = TensorDataset(torch.randn(4 * STEPS, 8), torch.randint(3, (4 * STEPS,)))
    launches: list[int] = []
    with kernels_on_host():
        model = DistributedDataParallel(nn.Sequential(*(nn.Linear(8, 8) for _ in range(LAYERS))))
        optimizer = torch.optim.AdamW(model.parameters())
        with presum.attach(
            model, optimizer=optimizer, run=tmp_path, record=presum.Record(quiet=True)
        ):
            for x, _ in DataLoader(data, batch_size=4):
                before = len(_core.cuda_launched()) + operations.count.total()
                model(x).square().mean().backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                launches.append(len(_core.cuda_launched()) + operations.count.total() - before)
    assert 1 < max(launches) <= MOST, (launches, operations.count)
