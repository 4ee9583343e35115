# SPDX-License-Identifier: Apache-2.0
"""The functions of the extension that sum buffers by address, against rational numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from presum import _core

F32 = 0
COUNT, LEAVES = 100, 12


def leaves(seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    exponents = random.integers(-30, 30, (LEAVES, COUNT))
    values = np.ldexp(random.standard_normal((LEAVES, COUNT)), exponents)
    return [np.ascontiguousarray(row) for row in values.astype(np.float32)]


def addresses(arrays: list[np.ndarray]) -> list[int]:
    return [array.ctypes.data for array in arrays]


def exact_sums(arrays: list[np.ndarray]) -> list[Fraction]:
    return [sum((Fraction(float(a[i])) for a in arrays), Fraction(0)) for i in range(COUNT)]


def is_nearest(got: np.float32, wanted: Fraction) -> bool:
    error = abs(Fraction(float(got)) - wanted)
    others = (np.nextafter(got, np.float32(s), dtype=np.float32) for s in (-np.inf, np.inf))
    return all(error <= abs(Fraction(float(other)) - wanted) for other in others)


def test_exact_means_are_the_nearest_and_the_gram_matrix_is_that_of_the_leaves() -> None:
    arrays = leaves(1)
    out = np.empty(COUNT, np.float32)
    gram = np.zeros((LEAVES, LEAVES))
    _core.reduce_exact(addresses(arrays), F32, COUNT, 12, out.ctypes.data, gram.ctypes.data)
    assert all(map(is_nearest, out, (s / 12 for s in exact_sums(arrays))))
    stacked = np.stack(arrays).astype(np.float64)
    np.testing.assert_allclose(gram, stacked @ stacked.T, rtol=1e-12)
    plain = np.empty_like(out)
    _core.reduce_exact(addresses(arrays), F32, COUNT, 12, plain.ctypes.data)
    assert plain.tobytes() == out.tobytes()


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("workers", [1, 2, 3, 12])
def test_fixed_sums_are_the_same_for_every_number_of_workers(bits: int, workers: int) -> None:
    arrays = leaves(2)

    def reduced(parts: int) -> bytes:
        shares = [arrays[i::parts] for i in range(parts)]
        largest = np.zeros(COUNT, np.uint8)
        for share in shares:
            own = np.empty_like(largest)
            _core.reduce_exponents(addresses(share), F32, COUNT, own.ctypes.data)
            largest = np.maximum(largest, own)
        total = np.zeros(COUNT, f"i{bits // 8}")
        for share in shares:
            part = np.empty_like(total)
            args = (largest.ctypes.data, LEAVES, bits, part.ctypes.data)
            _core.reduce_encode(addresses(share), F32, COUNT, *args)
            total += part
        out = np.empty(COUNT, np.float32)
        data = (total.ctypes.data, largest.ctypes.data)
        _core.reduce_decode(*data, COUNT, LEAVES, 1, bits, F32, out.ctypes.data)
        np.testing.assert_allclose(
            out, np.sum(arrays, axis=0, dtype=np.float64), atol=1e-7 * np.abs(arrays).max()
        )
        return out.tobytes()

    assert reduced(workers) == reduced(4)
    whole = np.empty(COUNT, np.float32)
    _core.reduce_fixed(addresses(arrays), F32, COUNT, 1, bits, whole.ctypes.data)
    assert reduced(workers) == whole.tobytes()


def test_binned_sums_are_the_same_in_one_piece_and_merged() -> None:
    arrays = leaves(3)

    def empty() -> list[np.ndarray]:
        return [np.zeros(COUNT, np.uint8), np.zeros(COUNT, np.int64), np.zeros(COUNT, np.int64)]

    whole, left, right = empty(), empty(), empty()
    for i, array in enumerate(arrays):
        for state in (whole, left if i % 3 else right):
            _core.binned_add(*addresses(state), COUNT, array.ctypes.data, F32)
    _core.binned_raise(*addresses(left), COUNT, right[0].ctypes.data)
    _core.binned_merge(*addresses(left), *addresses(right), COUNT)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(whole, left, strict=True))
    out = np.empty(COUNT, np.float32)
    _core.binned_decode(*addresses(whole), COUNT, 1, F32, out.ctypes.data)
    largest = float(np.abs(arrays).max())
    for got, wanted in zip(out, exact_sums(arrays), strict=True):
        bound = LEAVES * largest * 2.0**-40 + float(np.spacing(abs(got)))
        assert abs(float(Fraction(float(got)) - wanted)) <= bound


def test_wrong_arguments_are_value_errors() -> None:
    out = np.zeros(1, np.float32)
    with pytest.raises(ValueError, match="there is no leaf"):
        _core.reduce_exact([], F32, 1, 1, out.ctypes.data)
    with pytest.raises(ValueError, match="bits must be 32 or 64"):
        _core.reduce_encode([out.ctypes.data], F32, 1, out.ctypes.data, 1, 16, out.ctypes.data)
    with pytest.raises(ValueError, match="bits must be 32 or 64"):
        _core.reduce_fixed([out.ctypes.data], F32, 1, 1, 16, out.ctypes.data)
    with pytest.raises(ValueError, match="f64 needs the exact reduction"):
        _core.binned_add(*[out.ctypes.data] * 3, 1, out.ctypes.data, 1)
