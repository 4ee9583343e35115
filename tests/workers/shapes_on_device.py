# SPDX-License-Identifier: Apache-2.0
"""The same where gradients are read by the kernels' threads, as on a device."""

from __future__ import annotations

from pathlib import Path

from gpu_check.place import kernels_on_host
from workers import shapes
from workers.launch import main


def work(rank: int, world: int, out: Path) -> None:
    with kernels_on_host():
        shapes.work(rank, world, out)


if __name__ == "__main__":
    main(work)
