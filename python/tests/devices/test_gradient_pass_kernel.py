# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels' side of a step, with the kernels on the host's grid in host memory."""

from __future__ import annotations

import weakref

import pytest
import torch

from presum import _core
from presum.devices.gradient_pass import DeviceStep
from presum.devices.kernel_pass import KernelPass

pytestmark = pytest.mark.usefixtures("on_host")
HOST = torch.device("cpu")


def a_step(sketch_size: int, apart: set[int] | None = None) -> DeviceStep:
    return DeviceStep(HOST, sketch_size, kernels=KernelPass(HOST, sketch_size), apart=apart)


def test_ten_thousand_gradients_take_a_launch_a_kind_and_one_at_the_end() -> None:
    step, by_torch = a_step(4096), DeviceStep(HOST, 4096)
    dtypes = [torch.float32, torch.bfloat16]
    gradients = [
        torch.full((1 + i % 50,), float(i % 7), dtype=dtypes[i % 2]) for i in range(10_000)
    ]
    for index, gradient in enumerate(gradients):
        step.observe(index, gradient, seed=index, reduced=False)
        if index < 200:
            by_torch.observe(index, gradient, seed=index, reduced=False)
    found = step.fetch([torch.tensor(2.5)], [torch.tensor([7])])()
    assert len(_core.cuda_launched()) == 3
    assert found.extra == [2.5] and found.words == [[7]]
    by_index = {one[0]: one for one in found.gradients}
    assert len(by_index) == 10_000
    for one in by_torch.fetch([])().gradients:
        assert by_index[one[0]] == (*one[:3], pytest.approx(one[3], rel=1e-12), *one[4:])


def test_traffic_and_memory_of_a_large_model_are_bounded() -> None:
    kernels = KernelPass(HOST, 4096)
    step = DeviceStep(HOST, 4096, kernels=kernels)
    bucket = [torch.ones(1_600_000, dtype=torch.bfloat16) for _ in range(4)]
    for index in range(0, 40, 4):
        for place, gradient in enumerate(bucket):
            step.observe(index + place, gradient, seed=1, reduced=False)
        step.flush()
    step.fetch([])
    launched = _core.cuda_launched()
    gradients = sum(one[2] for one in launched)
    assert gradients == 10 * 4 * 3_200_000
    assert sum(one[3] for one in launched) <= 0.1 * gradients
    assert kernels.bytes <= (8 << 20) + gradients // 1000


def test_what_is_queued_is_read_at_the_flush() -> None:
    step = a_step(64)
    gradient = torch.ones(5)
    step.observe(0, gradient, seed=1, reduced=False)
    assert step.queued_bytes == 20
    gradient.fill_(2)
    step.flush()
    gradient.fill_(100)
    assert step.fetch([])().gradients[0][3] == 20


@pytest.mark.parametrize("by_kernels", [False, True])
def test_a_gradient_is_not_kept_once_it_was_read(by_kernels: bool) -> None:
    step = a_step(64) if by_kernels else DeviceStep(HOST, 64)
    gradient = torch.ones(5)
    memory = weakref.ref(gradient.untyped_storage())
    step.observe(0, gradient, seed=1, reduced=False)
    del gradient
    assert memory() is not None
    step.flush()
    assert memory() is None


def test_the_last_of_two_reports_counts() -> None:
    expected = DeviceStep(HOST, 64)
    expected.observe(3, torch.full((7,), 5.0), seed=9, reduced=False)
    wanted = expected.fetch([])()
    again = a_step(64)
    for value in (1.0, 5.0):  # before it was read
        again.observe(3, torch.full((7,), value), seed=9, reduced=False)
    found = again.fetch([])()
    assert found.gradients == wanted.gradients
    assert torch.equal(found.sketch, wanted.sketch)
    assert not found.repeated


def test_a_gradient_that_is_reported_again_is_kept_apart_from_the_next_step_on() -> None:
    expected = DeviceStep(HOST, 64)
    expected.observe(3, torch.full((7,), 5.0), seed=9, reduced=False)
    wanted = expected.fetch([])()
    apart: set[int] = set()
    repeated = []
    for _step in range(2):
        step = a_step(64, apart)
        for value in (1.0, 5.0):
            step.observe(3, torch.full((7,), value), seed=9, reduced=False)
            step.flush()
        found = step.fetch([])()
        assert found.gradients[-1] == wanted.gradients[0]
        repeated.append(found.repeated)
    assert repeated == [True, False] and apart == {3}
    assert torch.equal(found.sketch, wanted.sketch)


def test_without_a_device_it_is_said_why() -> None:
    _core.cuda_on_host(False)
    assert _core.cuda_lacks()
    with pytest.raises(ValueError, match="sketch size"):
        _core.GradientBatch.create(0, 63)
