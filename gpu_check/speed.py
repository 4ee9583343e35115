# SPDX-License-Identifier: Apache-2.0
"""The speed of the kernels relative to a copy on the device; dry: what they launch and move."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys

import torch

from gpu_check.place import HOST, Findings, Measured, Place, kernels_on_host, ratio_of
from presum import _core, reduce
from presum.devices.kernel_pass import KernelPass

MIB = 1 << 20
SKETCH = 4096
WANTED = 0.8  # of the copy's bandwidth
ROUNDS = 30
METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")


def check(place: Place, findings: Findings) -> None:
    if place.dry:
        _counted(findings)
        return
    for dtype in (torch.bfloat16, torch.float32):
        for mib in (64, 256, 1024):
            whole = torch.ones(mib * MIB // dtype.itemsize, dtype=dtype, device=place.device)
            _beside_a_copy(findings, [whole], f"{mib} MiB of {str(dtype)[6:]}", WANTED)
    whole = torch.ones(256 * MIB // 2, dtype=torch.bfloat16, device=place.device)
    parts = list(whole.chunk(10_000))
    _beside_a_copy(findings, parts, f"256 MiB in {len(parts)} gradients of bfloat16", None)
    _sums(place, findings)
    _traffic(findings)


def _beside_a_copy(
    findings: Findings, gradients: list[torch.Tensor], what: str, wanted: float | None
) -> None:
    source = torch.empty(sum(g.nbytes for g in gradients), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)

    def read() -> None:
        _read(gradients)

    ratio = ratio_of(lambda: target.copy_(source), read, ROUNDS)
    share = Measured(*(one / 2 for one in ratio))  # a copy reads and writes
    ok = wanted is None or share.low >= wanted
    findings.say(f"pass over {what}: share of a copy's bandwidth", str(share), ok=ok)


def _read(gradients: list[torch.Tensor]) -> None:
    kernels = KernelPass(gradients[0].device, SKETCH)
    kernels.read([(one, 1) for one in gradients], sketched=True)
    kernels.finish()


def _sums(place: Place, findings: Findings) -> None:
    leaves = [torch.randn(16 * MIB, device=place.device) for _ in range(8)]
    source = torch.empty(9 * 16 * MIB * 2, dtype=torch.uint8, device=place.device)
    target = torch.empty_like(source)
    ratio = ratio_of(lambda: reduce.sum(leaves), lambda: target.copy_(source), ROUNDS)
    findings.say("exact sum of 8 x 64 MiB over a copy that moves as much", str(ratio))


def _traffic(findings: Findings) -> None:
    """The memory traffic of one pass, measured with Nsight Compute."""
    tool = shutil.which("ncu")
    if tool is None:
        findings.say("traffic", "not measured: no ncu")
        return
    command = [tool, "--clock-control", "none", "--csv", "--metrics", ",".join(METRICS)]
    command += ["--kernel-name", "regex:presum_.*", sys.executable, "-m", "gpu_check.speed"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        findings.say("traffic", "not measured: ncu took too long")
        return
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    rows = [row for row in csv.DictReader(lines) if row.get("Metric Name") in METRICS]
    if not rows:
        findings.say("traffic", "not measured: ncu gave nothing")
        return
    units = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12}
    moved = sum(float(r["Metric Value"].replace(",", "")) * units[r["Metric Unit"]] for r in rows)
    share = moved / (256 * MIB)
    findings.say("bytes moved over those of 256 MiB of gradients", round(share, 3), ok=share <= 1.1)


def _counted(findings: Findings) -> None:
    """For a model of a billion parameters in 16 bits, scaled down to what the host reads in
    seconds."""
    with kernels_on_host():
        kernels = KernelPass(HOST, SKETCH)
        bucket = torch.ones(12_500_000, dtype=torch.bfloat16)
        for _ in range(3):
            kernels.read([(one, 1) for one in bucket.chunk(8)], sketched=True)
        kernels.finish()
        launched = _core.cuda_launched()
    gradients, other = sum(one[2] for one in launched), sum(one[3] for one in launched)
    findings.say("launches of 3 buckets of 25 MB", len(launched), ok=len(launched) == 4)
    findings.say("bytes beside theirs", f"{other / gradients:.3f}", ok=other <= 0.1 * gradients)
    most = (64 << 20) + gradients // 1000
    findings.say("device memory", f"{kernels.bytes / MIB:.1f} MiB", ok=kernels.bytes <= most)
    with kernels_on_host():
        reduce.sum([torch.ones(1000)] * 8)
        name, _, of_leaves, of_others = _core.cuda_launched()[-1]
    findings.say(f"{name} of 8 leaves: bytes an element", (of_leaves + of_others) / 1000)


if __name__ == "__main__":
    _read([torch.ones(256 * MIB // 2, dtype=torch.bfloat16, device="cuda")])
    torch.cuda.synchronize()
