# SPDX-License-Identifier: Apache-2.0
"""What multiplied a few elements since."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from presum._core import HostValues, hash_bytes, hash_memory
from presum.steps.value_sample import ValueSample, tensor_factor


def tensors(count: int = 20) -> list[torch.Tensor | None]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(300, 7, generator=generator) for _ in range(count)]


def sample_of(held: Sequence[torch.Tensor | None]) -> ValueSample:
    found = ValueSample.of(held)
    assert found is not None
    return found


@pytest.mark.parametrize("factor", [0.25, 1.0, 2.0, 1e-6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_factor_is_found(factor: float, dtype: torch.dtype) -> None:
    held = [x.to(dtype) for x in tensors() if x is not None]
    sample = sample_of(held)
    for tensor in held:
        tensor.mul_(factor)
    assert sample.factor_to(held) == pytest.approx(factor, rel=4e-3 * (factor != 1))


def test_other_values_have_none() -> None:
    held = tensors()
    sample = sample_of(held)
    negative = [-x for x in held if x is not None]
    more = [x + torch.randn_like(x) for x in held if x is not None]
    assert math.isnan(sample.factor_to(negative) or 0)  # turned round
    assert math.isnan(sample.factor_to(more) or 0)
    assert sample.factor_to([None] * len(held)) == 0


def test_what_cannot_be_told_is_none() -> None:
    assert ValueSample.of([]) is None
    assert ValueSample.of([None]) is None
    assert ValueSample.of([torch.eye(3).to_sparse()]) is None
    assert ValueSample.of([torch.ones(3, dtype=torch.float8_e4m3fn)]) is None
    assert sample_of([torch.zeros(3)]).factor_to([torch.ones(3)]) is None
    assert sample_of([torch.zeros(3)]).factor_to([torch.zeros(3)]) == 1
    assert sample_of([torch.ones(3)]).factor_to([torch.ones(2)]) is None


def test_what_is_not_finite_is_not_another_gradient() -> None:
    held = tensors()
    assert held[0] is not None
    held[0][0, 0] = math.nan
    sample = sample_of(held)
    assert sample.factor_to(held) == 1.0
    assert sample.factor_to([2 * x for x in held if x is not None]) is None


def test_complex_ones_are_read_as_pairs() -> None:
    held = torch.randn(40, dtype=torch.complex64)
    sample = sample_of([held, held.conj()])
    assert sample.factor_to([2 * held, 2 * held.conj()]) == pytest.approx(2)
    assert math.isnan(sample.factor_to([1j * held, 2 * held.conj()]) or 0)


def test_layouts_do_not_matter() -> None:
    picture = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    sample = sample_of([picture, picture[0]])
    assert sample.factor_to([2 * picture, (2 * picture)[0]]) == pytest.approx(2)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ([1.0, -2.0], [1.0, -2.0]),
        ([1.0, -2.0, 0.0], [1.0, -2.0, 1e-4]),
        ([1.0, -2.0], [0.5, -1.0]),
        ([1.0, -2.0], [0.0, 0.0]),
        ([1.0, -2.0], [-1.0, 2.0]),
        ([1.0, -2.0], [1.0, 2.0]),
        ([1e80, 1e80], [1e80, 9e80]),
        ([1e-100, 1e-100], [1e-100, 9e-100]),
        ([0.0, 0.0], [0.0, 0.0]),
        ([0.0, 0.0], [1.0, 1.0]),
        ([1.0, math.nan], [1.0, math.nan]),
        ([1.0, 2.0], [math.inf, 2.0]),
    ],
)
def test_a_device_says_what_the_host_says(before: list[float], now: list[float]) -> None:
    a, b = (torch.tensor(values, dtype=torch.float64) for values in (before, now))
    on_host = HostValues([a], 64).factor_to(HostValues([b], 64))
    on_device = tensor_factor(a, b)
    assert on_device is not None
    expected = 1.0 if on_host is None else on_host
    assert on_device.item() == pytest.approx(expected, rel=1e-12, nan_ok=True)
    assert (on_device == 1).item() == (expected == 1)
    assert tensor_factor(a, b[:1]) is None


def test_what_cannot_be_read_is_passed_over() -> None:
    held = tensors(8)
    held[0], held[2], held[3] = None, torch.eye(3).to_sparse(), torch.ones(3).to(torch.int8)
    sample = sample_of(held)
    for place in (1, 4, 6):  # the first that is there of each quarter; the second quarter has none
        changed = [x.clone() if x is not None else None for x in held]
        changed[place] = torch.randn(300, 7)
        assert sample.factor_to(changed) != 1
    for place in (0, 2, 3, 5, 7):
        changed = [*held]
        changed[place] = torch.randn(300, 7)
        assert sample.factor_to(changed) == 1


def test_memory_is_hashed_where_it_lies() -> None:
    values = torch.randn(100)
    assert hash_memory(values.data_ptr(), 400) == hash_bytes(values.numpy())
    assert hash_memory(0, 0) == hash_bytes(b"")
