# SPDX-License-Identifier: Apache-2.0
"""Real ranks: the same bits with and without presum, the same number of waits, a fault that is
named and a healthy twin that is not."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpu_check.place import Findings, Place
from gpu_check.worker import EQUAL_DATA, REDUCTIONS

RANK_SECONDS = 100
# Case, backend, ranks. Two ranks share the one GPU, which NCCL refuses.
WITH_NCCL = (("ddp", "nccl", 1), ("ddp-views", "nccl", 1), ("fsdp2", "nccl", 1))
WITH_GLOO = (("ddp", "gloo", 2), ("fsdp2", "gloo", 2))


def check(place: Place, findings: Findings) -> None:
    for case, backend, ranks in WITH_GLOO if place.dry else (*WITH_NCCL, *WITH_GLOO):
        name = f"{case}, {backend}, {ranks} rank{'' if ranks == 1 else 's'}"
        told = _ranks(place, findings, name, case, backend, ranks)
        if not told:
            continue
        findings.say(f"{name}: parameters", told["same_bits"], ok=told["same_bits"])
        without, with_ = told["waits"]
        findings.say(f"{name}: host waits", [without, with_], ok=with_ <= without)
        findings.say(f"{name}: findings", told["findings"], ok=not told["findings"])
        findings.say(f"{name}: steps", told["steps"], ok=told["steps"] >= 28)


def check_faults(place: Place, findings: Findings) -> None:
    told = _ranks(place, findings, "equal data", "ddp-equal-data", "gloo", 2)
    if told:
        checks = [check for check, _ in told["findings"]]
        findings.say("two ranks with the same data", checks, ok=EQUAL_DATA in checks)


def check_reductions(place: Place, findings: Findings) -> None:
    backend, ranks = ("gloo", 2) if place.dry else ("nccl", 1)
    for method in REDUCTIONS[:1] if place.dry else REDUCTIONS:
        told = _ranks(place, findings, method, f"reduction-{method}", backend, ranks)
        if told:
            sound = not told["findings"]
            findings.say(f'reduction="{method}", audited', told["findings"] or "sound", ok=sound)


def _ranks(
    place: Place, findings: Findings, name: str, case: str, backend: str, ranks: int
) -> dict[str, Any] | None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(ranks), "-m", "gpu_check.worker", case, backend, folder]
        command += ["--dry"] if place.dry else []
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=RANK_SECONDS, check=False
        )
        written = Path(folder, f"{case}.json")
        if done.returncode == 0 and written.exists():
            return json.loads(written.read_text())  # type: ignore[no-any-return]
        lines = [line for line in done.stderr.splitlines() if "Error" in line]
        findings.say(name, lines[0][-300:] if lines else f"exit {done.returncode}", ok=False)
        return None
