# SPDX-License-Identifier: Apache-2.0
"""The functions of the extension that sum arrays, against rational numbers."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from presum import _core

COUNT, LEAVES = 100, 12


def leaves(seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    exponents = random.integers(-30, 30, (LEAVES, COUNT))
    values = np.ldexp(random.standard_normal((LEAVES, COUNT)), exponents)
    return [np.ascontiguousarray(row) for row in values.astype(np.float32)]


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
    _core.reduce_exact(arrays, 12, out, gram)
    assert all(map(is_nearest, out, (s / 12 for s in exact_sums(arrays))))
    stacked = np.stack(arrays).astype(np.float64)
    np.testing.assert_allclose(gram, stacked @ stacked.T, rtol=1e-12)
    plain = np.empty_like(out)
    _core.reduce_exact(arrays, 12, plain)
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
            _core.reduce_exponents(share, own)
            largest = np.maximum(largest, own)
        total = np.zeros(COUNT, f"i{bits // 8}")
        for share in shares:
            part = np.empty_like(total)
            _core.reduce_encode(share, largest, LEAVES, part)
            total += part
        out = np.empty(COUNT, np.float32)
        _core.reduce_decode(total, largest, LEAVES, 1, out)
        np.testing.assert_allclose(
            out, np.sum(arrays, axis=0, dtype=np.float64), atol=1e-7 * np.abs(arrays).max()
        )
        return out.tobytes()

    assert reduced(workers) == reduced(4)
    whole = np.empty(COUNT, np.float32)
    _core.reduce_fixed(arrays, 1, bits, whole)
    assert reduced(workers) == whole.tobytes()


def test_binned_sums_are_the_same_in_one_piece_and_merged() -> None:
    arrays = leaves(3)

    def empty() -> list[np.ndarray]:
        return [np.zeros(COUNT, np.uint8), np.zeros(COUNT, np.int64), np.zeros(COUNT, np.int64)]

    whole, left, right = empty(), empty(), empty()
    for i, array in enumerate(arrays):
        for state in (whole, left if i % 3 else right):
            _core.binned_add(*state, array)
    _core.binned_raise(*left, right[0])
    _core.binned_merge(*left, *right)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(whole, left, strict=True))
    out = np.empty(COUNT, np.float32)
    _core.binned_decode(*whole, 1, out)
    largest = float(np.abs(arrays).max())
    for got, wanted in zip(out, exact_sums(arrays), strict=True):
        bound = LEAVES * largest * 2.0**-40 + float(np.spacing(abs(got)))
        assert abs(float(Fraction(float(got)) - wanted)) <= bound


ONE, BYTE, WORD = np.zeros(1, np.float32), np.zeros(1, np.uint8), np.zeros(1, np.int64)
TWO = np.zeros(2, np.float32)
WRONG: dict[str, Callable[[], object]] = {
    "there is no leaf": lambda: _core.reduce_exact([], 1, ONE),
    "sums must be int32 or int64": lambda: _core.reduce_encode([ONE], BYTE, 1, ONE),
    "bits must be 32 or 64": lambda: _core.reduce_fixed([ONE], 1, 16, ONE),
    "f64 needs the exact reduction": lambda: _core.binned_add(BYTE, WORD, WORD, np.zeros(1)),
    "an array of 2 elements, where it must have 1": lambda: _core.reduce_exact([TWO], 1, ONE),
    "elements must be float32": lambda: _core.reduce_exact([WORD], 1, WORD),
    "leaves must be of one dtype": lambda: _core.reduce_exact([np.zeros(1)], 1, ONE),
    "an array of 1 elements, where it must have 4": lambda: _core.reduce_exact(
        [ONE, ONE], 1, ONE, np.zeros(1)
    ),
    "an array of 1 elements, where it must have 2": lambda: _core.binned_decode(
        np.zeros(2, np.uint8), WORD, WORD, 1, TWO
    ),
}


@pytest.mark.parametrize("said", WRONG)
def test_wrong_arguments_are_value_errors(said: str) -> None:
    with pytest.raises(ValueError, match=said):
        WRONG[said]()


@pytest.mark.parametrize("out", [np.zeros(4, np.float32)[::2], np.zeros((2, 3), np.float32).T])
def test_what_is_written_must_be_the_caller_s_own(out: np.ndarray) -> None:
    """No copy that nobody sees."""
    with pytest.raises(TypeError):
        _core.reduce_exact([np.zeros(out.shape, np.float32)], 1, out)
    fixed = np.zeros(3, np.float32)
    fixed.setflags(write=False)
    with pytest.raises(TypeError):
        _core.reduce_exact([np.zeros(3, np.float32)], 1, fixed)
