# SPDX-License-Identifier: Apache-2.0
"""One rank of small trainings: gpu_check.worker BACKEND OUT [--dry] CASE...

Rank 0 writes OUT/CASE.json for each case. A launcher's environment variables select the rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import presum
from gpu_check.place import Place

STEPS = 30
TRACED = 5
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
EQUAL_DATA = "duplicate-data"


def model_on(device: torch.device, case: str) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
    ).to(device)
    if case == "ddp-norm":  # its batch counter is an integer among floats
        layers[1] = nn.BatchNorm1d(256).to(device)
    if case.startswith("fsdp2"):
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for part in (layers[0], layers[2], layers):
            fully_shard(part, mesh=mesh)
        return layers
    return DistributedDataParallel(layers, gradient_as_bucket_view=case == "ddp-views")


def train(device: torch.device, case: str, **attach: Any) -> tuple[list[torch.Tensor], int]:
    """The trained parameters, and how often the host waited for the device in the last steps."""
    model: Any = model_on(device, case)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor = (
        presum.attach(model, optimizer=optimizer, **attach, record=presum.Record(quiet=True))
        if attach
        else None
    )
    rank = 0 if case.endswith("equal-data") else dist.get_rank()
    random = torch.Generator().manual_seed(rank)
    batches = [torch.randn(32, 64, generator=random).to(device) for _ in range(STEPS)]
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    traced = torch.profiler.profile(activities=activities)
    for step, x in enumerate(batches):
        if step == STEPS - TRACED:
            traced.start()
        micro_batches = x.chunk(4 if case.startswith("reduction-") else 1)
        for at, micro in enumerate(micro_batches):
            last = at == len(micro_batches) - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss: torch.Tensor = nn.functional.mse_loss(
                    model(micro), micro.sum(1, keepdim=True)
                )
                loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    traced.stop()
    if monitor is not None:
        monitor.close()
    events: Any = traced.events()  # type: ignore[no-untyped-call]
    waits = sum(event.name in WAITS for event in events or ())
    return [_own(p).detach().clone() for p in model.parameters()], waits


def _own(parameter: torch.Tensor) -> torch.Tensor:
    local = getattr(parameter, "to_local", None)
    return parameter if local is None else local()


def told(run: Path) -> dict[str, Any]:
    found = presum.load(run)
    return {
        "steps": len(found.steps["step"]),
        "findings": [[one.check, one.severity] for one in found.findings],
        "cosine": str(found.steps["cosine_source"][0]),
    }


def work(place: Place, case: str, out: Path) -> dict[str, Any]:
    run = out / case
    if case.startswith("reduction-"):
        how = {"reduction": case.removeprefix("reduction-"), "audit": 5}
        _, _ = train(place.device, case, run=run, **how)
        return told(run) if dist.get_rank() == 0 else {}
    plain, waits = train(place.device, case)
    watched, more = train(place.device, case, run=run)
    same = all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    every = torch.tensor([same], device=place.device)
    dist.all_reduce(every, dist.ReduceOp.MIN)
    if dist.get_rank() != 0:
        return {}
    return told(run) | {"same_bits": bool(every), "waits": [waits, more]}


def main() -> None:
    backend, out, *cases = sys.argv[1:]
    place = Place(dry=cases[0] == "--dry")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_num_threads(1)
    if not place.dry:
        torch.cuda.set_device(place.device)
    dist.init_process_group(backend)
    for case in cases[1:] if place.dry else cases:
        try:
            with place.kernels():
                found = work(place, case, Path(out))
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"[:300]}
        if dist.get_rank() == 0:
            Path(out, f"{case}.json").write_text(json.dumps(found))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # a normal exit can abort in FSDP2's Gloo groups, with or without presum


if __name__ == "__main__":
    main()
