# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of the gradient pass on a device, for ``presum doctor``."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from presum.devices.gradient_pass import DeviceStep

ELEMENTS = 1 << 22
SIDE = 2048  # of the matrices whose product represents training
ROUNDS = 5
FLOPS_PER_PARAMETER = 6  # of a transformer's forward and backward pass, per token
SKETCH = 4096


def every_for(device: torch.device, share: float, tokens: int) -> int:
    """The ``every=`` that keeps the pass over 16-bit gradients within a share of the step time of a
    transformer, if each rank processes ``tokens`` tokens per step. Synchronizes with the device."""
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
    """The shortest of several rounds, after a warm-up round."""
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
