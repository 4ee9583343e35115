# SPDX-License-Identifier: Apache-2.0
"""The torch-operations pass, on CPU tensors, against the C++ pass."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch

from presum._core import Observer
from presum.collector import DTYPES
from presum.device_pass import CHUNK, DeviceStep

HEADER_BYTES = 56
TOTAL, SKETCH, REDUCED = 2, 4, 7


def sections(packet: bytes) -> dict[int, bytes]:
    found, at = {}, HEADER_BYTES
    while at < len(packet):
        kind, _, length = struct.unpack_from("<HHI", packet, at)
        found[kind] = packet[at + 8 : at + 8 + length]
        at += 8 + length
    return found


def observer(elements: int, sketch_size: int) -> Observer:
    return Observer(
        module=0,
        replica=0,
        shard=0,
        world_rank=0,
        replicas=1,
        sketch_size=sketch_size,
        host="h",
        facts=[],
        parameters=[("a.weight", elements, "")],
        buffers=[],
    )


def both(
    tensor: torch.Tensor, sketch_size: int, *, reduced: bool
) -> tuple[dict[int, bytes], dict[int, bytes]]:
    host = observer(tensor.numel(), sketch_size)
    host.begin_step(3)
    read = host.reduced_gradient if reduced else host.gradient
    read(0, tensor.data_ptr(), tensor.numel(), DTYPES[tensor.dtype])
    device = observer(tensor.numel(), sketch_size)
    step = DeviceStep(tensor.device, sketch_size)
    step.observe(0, tensor, seed=device.sketch_seed(0, 3), reduced=reduced)
    fetched = step.fetch([])()
    device.begin_step(3)
    for gradient in fetched.gradients:
        device.gradient_sums(*gradient)
    device.add_sketch(fetched.sketch)
    ends = [o.end_step(0, 1, 0, 1.0, 0) for o in (host, device)]
    return sections(ends[0]), sections(ends[1])


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("count", [0, 1, 2, 3, 63, 64, 1023, 1024, 1025, 4097, 50_001])
@pytest.mark.parametrize("sketch_size", [0, 64, 4096])
def test_equals_the_cpp_pass(dtype: torch.dtype, count: int, sketch_size: int) -> None:
    generator = torch.Generator().manual_seed(count)
    tensor = (torch.randn(count, generator=generator) * 3).to(dtype)
    host, device = both(tensor, sketch_size, reduced=False)
    expected, found = struct.unpack("<ddQQQ", host[TOTAL]), struct.unpack("<ddQQQ", device[TOTAL])
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    assert found[1:] == expected[1:]
    if sketch_size:
        a, b = np.frombuffer(host[SKETCH], "<f4"), np.frombuffer(device[SKETCH], "<f4")
        np.testing.assert_allclose(b, a, atol=1e-5 * max(1e-30, np.abs(a).max()))


def test_chunks_do_not_show() -> None:
    tensor = torch.arange(CHUNK + 5000, dtype=torch.float32).remainder(97) - 40
    host, device = both(tensor, 1024, reduced=False)
    assert struct.unpack("<ddQQQ", device[TOTAL])[1:] == struct.unpack("<ddQQQ", host[TOTAL])[1:]
    a, b = np.frombuffer(host[SKETCH], "<f4"), np.frombuffer(device[SKETCH], "<f4")
    np.testing.assert_allclose(b, a, atol=1e-5 * np.abs(a).max())


def test_nonfinite_elements_are_counted_and_left_out_of_the_maximum() -> None:
    tensor = torch.tensor([1.0, float("nan"), -7.0, float("inf")])
    host, device = both(tensor, 64, reduced=False)
    expected, found = struct.unpack("<ddQQQ", host[TOTAL]), struct.unpack("<ddQQQ", device[TOTAL])
    assert np.isnan(found[0]) and np.isnan(expected[0])
    assert found[1:] == expected[1:]
    assert found[2] == 2


def test_the_reduced_gradient_has_no_sketch() -> None:
    host, device = both(torch.randn(2000), 64, reduced=True)
    expected, found = struct.unpack("<ddQQ", host[REDUCED]), struct.unpack("<ddQQ", device[REDUCED])
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    assert found[1:] == expected[1:]
    assert not np.frombuffer(device[SKETCH], "<f4").any()


def test_scalars_travel_along() -> None:
    step = DeviceStep(torch.device("cpu"), 64)
    fetched = step.fetch([torch.tensor(2.5), torch.tensor(7)])()
    assert fetched.extra == [2.5, 7.0]
    assert fetched.gradients == []
