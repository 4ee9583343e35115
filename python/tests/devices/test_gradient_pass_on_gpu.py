# SPDX-License-Identifier: Apache-2.0
"""The gradient pass on a GPU; collected where there is one that torch can use."""

from __future__ import annotations

import time

import pytest
import torch

from helpers.gradient_passes import both, expect_equal
from presum.devices import gradient_pass
from presum.devices.blocks import DTYPES
from presum.devices.gradient_pass import DeviceStep
from presum.devices.kernel_pass import why_not


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize("count", [0, 1, 1023, 50_001, 5_000_001])
def test_on_a_gpu(
    dtype: torch.dtype, kernel: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks = why_not(torch.device("cuda", 0))
    if kernel and lacks is not None:
        pytest.skip(lacks)
    if not kernel:
        monkeypatch.setattr(gradient_pass, "why_not", lambda _device: "not asked for")
    tensor = (torch.randn(count + 1, device="cuda") * 3).to(dtype)[1:]
    for sketch_size in (64, 4096, 65536):
        expect_equal(*both(tensor, sketch_size, reduced=False))


def test_numbers_of_another_stream_arrive() -> None:
    side = torch.cuda.Stream()
    step = DeviceStep(torch.device("cuda", torch.cuda.current_device()), 0)
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        step.observe(0, torch.full((1000,), 2.0, device="cuda"), seed=0, reduced=True)
    fetch = step.fetch([])
    while not fetch.ready():
        time.sleep(0.001)
    assert fetch().gradients[0][3:5] == (4000.0, 2.0)
