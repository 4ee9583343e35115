# SPDX-License-Identifier: Apache-2.0
"""Real ranks: the same bits with and without presum, the same number of waits, a fault that is
found, and a healthy twin without findings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from experiments.launch import free_port
from gpu_check.place import Findings, Place
from gpu_check.worker import EQUAL_DATA

SECONDS = 35  # per launch on a GPU
# Two ranks share the GPU, which NCCL refuses.
WITH_NCCL = ("ddp", "ddp-views", "ddp-norm", "fsdp2")
WITH_GLOO = ("ddp", "ddp-norm", "fsdp2")
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
Told = dict[str, dict[str, Any]]


def check(place: Place, findings: Findings) -> None:
    if not place.dry:
        _check(findings, "nccl, 1 rank", _ranks(place, "nccl", 1, WITH_NCCL), WITH_NCCL)
        told = _ranks(place, "nccl", 1, WITH_NCCL[:1], EXPANDABLE)
        _check(findings, "nccl, 1 rank, expandable segments", told, WITH_NCCL[:1])
    _check(findings, "gloo, 2 ranks", _ranks(place, "gloo", 2, WITH_GLOO), WITH_GLOO)


def _check(findings: Findings, where: str, told: Told, cases: Sequence[str]) -> None:
    for case in cases:
        name = f"{case}, {where}"
        of_case = told.get(case, {"error": "not done"})
        if _failed(findings, name, of_case):
            continue
        same = of_case["same_bits"]
        findings.say(f"{name}: parameters as without presum, bit for bit", same, ok=same)
        without, with_ = of_case["waits"]
        findings.say(f"{name}: host waits without and with", [without, with_], ok=with_ <= without)
        findings.say(f"{name}: findings", of_case["findings"], ok=not of_case["findings"])
        findings.say(f"{name}: steps recorded", of_case["steps"], ok=of_case["steps"] >= 28)


def check_faults(place: Place, findings: Findings) -> None:
    case = "ddp-equal-data"
    told = _ranks(place, "gloo", 2, (case,)).get(case, {"error": "not done"})
    if not _failed(findings, case, told):
        checks = [check for check, _ in told["findings"]]
        findings.say("two ranks with the same data", checks, ok=EQUAL_DATA in checks)


def check_reductions(place: Place, findings: Findings) -> None:
    case = "reduction-exact"
    told = _ranks(place, "gloo", 2, (case,)).get(case, {"error": "not done"})
    if not _failed(findings, "exact", told):
        found = [one for one in told["findings"] if one[1] != "info"]
        findings.say('reduction="exact", audited', found or "sound", ok=not found)


def _failed(findings: Findings, name: str, told: dict[str, Any]) -> bool:
    if "error" in told:
        findings.say(name, told["error"], ok=False)
    return "error" in told


def _ranks(
    place: Place,
    backend: str,
    ranks: int,
    cases: Sequence[str],
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Told:
    """The results of the cases that were completed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "gpu_check.worker", backend, folder]
        command += [*(["--dry"] if place.dry else []), *cases]
        shared = os.environ | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # deterministic matrix products
            **settings,
        }
        started = [
            subprocess.Popen(
                command,
                env=shared | {"RANK": str(rank), "LOCAL_RANK": "0"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL if rank else None,
            )
            for rank in range(ranks)
        ]
        _await(started, None if place.dry else SECONDS)
        written = {case: Path(folder, f"{case}.json") for case in cases}
        return {
            case: json.loads(path.read_text()) for case, path in written.items() if path.exists()
        }


def _await(started: Sequence[subprocess.Popen[bytes]], seconds: float | None) -> None:
    """Wait until all have ended or their time is over, then kill those that remain."""
    try:
        for rank in started:
            rank.wait(seconds)
    except subprocess.TimeoutExpired:
        pass
    finally:
        for rank in started:
            rank.kill()
            rank.wait()
