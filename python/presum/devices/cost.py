# SPDX-License-Identifier: Apache-2.0
"""What the pass costs on a device, measured there: for ``presum doctor``."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from presum.devices.gradient_pass import DeviceStep

ELEMENTS = 1 << 22
SIDE = 2048  # of the matrices whose product stands for training
ROUNDS = 5
FLOPS_PER_PARAMETER = 6  # of a transformer's forward and backward pass, for each token
SKETCH = 4096


def every_for(device: torch.device, share: float, tokens: int) -> int:
    """Which ``every=`` keeps the pass over gradients in 16 bits within a share of the steps of a
    transformer, of which each worker sees ``tokens`` a step. Waits for the device."""
    gradient = torch.ones(ELEMENTS, dtype=torch.bfloat16, device=device)
    matrix = torch.ones(SIDE, SIDE, dtype=torch.bfloat16, device=device)

    def read() -> None:
        step = DeviceStep(device, SKETCH)
        step.observe(0, gradient, seed=1, reduced=False)
        step.fetch([])

    of_pass = least_seconds(device, read) / ELEMENTS
    of_step = least_seconds(device, lambda: matrix @ matrix) / (2 * SIDE**3)
    of_step *= FLOPS_PER_PARAMETER * tokens
    return max(1, math.ceil(of_pass / of_step / share))


def least_seconds(device: torch.device, work: Callable[[], object]) -> float:
    """The least of some rounds, after one that is not counted."""
    rounds = []
    for _ in range(ROUNDS + 1):
        _wait(device)
        began = time.perf_counter()
        work()
        _wait(device)
        rounds.append(time.perf_counter() - began)
    return min(rounds[1:])


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()
