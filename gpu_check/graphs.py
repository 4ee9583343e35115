# SPDX-License-Identifier: Apache-2.0
"""A pass that is captured into a CUDA graph while presum is attached: the capture works, replays
give the same bits, and the record says that it ends. Layers that were made graphs before attach are
recorded like others. On the host only the messages can be checked."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import presum
from gpu_check.place import Findings, Place, alone

WARM_UP, REPLAYS = 11, 20


def check(place: Place, findings: Findings) -> None:
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")  # torch requests this for graphs
    alone(place)
    with tempfile.TemporaryDirectory() as folder, place.kernels():
        watched = _trained(place, Path(folder))
        said = str(presum.load(folder).segments["incomplete"][0])
    ends = "a CUDA graph is captured" in said
    findings.say("the record of a captured pass", said, ok=ends)
    plain = _trained(place, None)
    same = all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    findings.say("parameters after replays, with and without presum", same, ok=same)
    with tempfile.TemporaryDirectory() as folder, place.kernels():
        apart = _norms(place, Path(folder, "plain"), graphed=False)
        norms = _norms(place, Path(folder, "graphed"), graphed=True)
    same = len(norms) == WARM_UP and norms == apart
    findings.say("norms of make_graphed_callables, and without", [norms[:2], apart[:2]], ok=same)
    dist.destroy_process_group()


def _norms(place: Place, run: Path, *, graphed: bool) -> list[float]:
    torch.manual_seed(0)
    layers: Any = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    layers.to(place.device)
    x = torch.ones(8, 16, device=place.device)
    if graphed and not place.dry:
        layers = torch.cuda.make_graphed_callables(layers, (x,))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = presum.attach(model, optimizer=optimizer, run=run, record=presum.Record(quiet=True))
    for _ in range(WARM_UP):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    monitor.close()
    norms: list[float] = presum.load(run).workers.grad_norm.tolist()
    return norms


def _trained(place: Place, run: Path | None) -> list[torch.Tensor]:
    torch.manual_seed(0)
    side = None if place.dry else torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):  # as torch's notes on DDP and graphs require
        layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).to(place.device)
        model = DistributedDataParallel(layers)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        monitor = None
        if run is not None:
            monitor = presum.attach(
                model, optimizer=optimizer, run=run, record=presum.Record(quiet=True)
            )
        x = torch.ones(8, 16, device=place.device)

        def step() -> None:
            optimizer.zero_grad(set_to_none=False)
            model(x).square().mean().backward()

        for _ in range(WARM_UP):
            step()
            optimizer.step()
    if place.dry:
        with mock.patch("presum.steps.step_recorder.capturing", return_value=True):
            step()
        for _ in range(REPLAYS):
            optimizer.step()
    else:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for _ in range(REPLAYS):
            graph.replay()
            optimizer.step()
        torch.cuda.synchronize()
    if monitor is not None:
        monitor.close()
    return [p.detach().clone() for p in model.parameters()]
