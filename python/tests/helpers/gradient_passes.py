# SPDX-License-Identifier: Apache-2.0
"""One gradient, read in host memory and as on a device."""

from __future__ import annotations

import struct
import time

import numpy as np
import pytest
import torch

from observers import make_observer
from packet_decoder import decode
from presum._core import Observer
from presum.devices.blocks import DTYPES
from presum.devices.gradient_pass import DeviceStep, poll_host_copies
from presum.devices.kernel_pass import KernelPass

TOTAL, SKETCH, REDUCED = 2, 4, 7


def observer(elements: int, sketch_size: int) -> Observer:
    return make_observer([("a.weight", elements, "")], sketch_size=sketch_size)


def both(
    tensor: torch.Tensor, sketch_size: int, *, reduced: bool, by_kernels: bool = False
) -> tuple[dict[int, bytes], dict[int, bytes]]:
    host = observer(tensor.numel(), sketch_size)
    host.begin_step(3)
    read = host.reduced_gradient if reduced else host.gradient
    on_host = tensor.cpu()
    read(0, on_host.data_ptr(), tensor.numel(), DTYPES[tensor.dtype])
    device = observer(tensor.numel(), sketch_size)
    kernels = KernelPass(tensor.device, sketch_size) if by_kernels else None
    step = DeviceStep(tensor.device, sketch_size, kernels=kernels)
    step.observe(0, tensor, seed=host.seed(0), reduced=reduced)
    fetch = step.fetch([])
    while not fetch.ready():
        time.sleep(0.001)
        poll_host_copies()
    fetched = fetch()
    device.begin_step(3)
    for gradient in fetched.gradients:
        device.gradient_sums(*gradient)
    device.add_sketch(fetched.sketch)
    ends = [o.end_step(0, 1, 0, 1.0) for o in (host, device)]
    return decode(ends[0]).sections, decode(ends[1]).sections


def expect_equal(host: dict[int, bytes], device: dict[int, bytes]) -> None:
    expected, found = struct.unpack("<ddQQQ", host[TOTAL]), struct.unpack("<ddQQQ", device[TOTAL])
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    assert found[1:] == expected[1:]
    if SKETCH in host:
        a, b = np.frombuffer(host[SKETCH], "<f4"), np.frombuffer(device[SKETCH], "<f4")
        np.testing.assert_allclose(b, a, atol=1e-5 * max(1e-30, np.abs(a).max()))
