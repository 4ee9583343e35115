# SPDX-License-Identifier: Apache-2.0
"""presum.reduce, on the C++ kernels and, where that is possible, on what takes their place on
devices.
"""

from __future__ import annotations

import doctest
import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.sums import (
    CASES,
    DTYPES,
    exact_sum,
    make,
    run_exact,
    same_bits,
)
from presum import reduce
from programs_started import run_command


@pytest.mark.parametrize(("kind", "dtype"), CASES, ids=str)
def test_exact_is_the_correctly_rounded_sum(path: str, kind: str, dtype: torch.dtype) -> None:
    of_any = [(3, divisor) for divisor in (12, 1021, 2**16, 2**31 - 1)]
    for leaves, divisor in [(1, 1), (2, 1), (2, 2), (7, 7), (8, 8), (8, 7), (64, 64), *of_any]:
        terms = make(kind, dtype, leaves, 40, divisor)
        same_bits(run_exact(terms, divisor), exact_sum(terms, divisor))


def test_flushing_denormals_changes_no_bit(path: str) -> None:
    terms = make("denormals", torch.float32, 8, 100, 6)
    expected = reduce.sum(terms)
    try:
        torch.set_flush_denormal(True)
        found = reduce.sum(terms)
    finally:
        torch.set_flush_denormal(False)
    same_bits(found, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dot_products_come_with_the_sum(path: str, dtype: torch.dtype) -> None:
    terms = make("gaussian", dtype, 5, 1000, 7)
    found, gram = reduce.sum_with_gram(terms, mean=True)
    same_bits(found, exact_sum(terms, 5))
    assert gram.dtype == torch.float64
    torch.testing.assert_close(gram, terms.double() @ terms.double().T, rtol=1e-12, atol=1e-12)


def test_a_leaf_that_is_not_finite_makes_its_products_so(path: str) -> None:
    leaves = [torch.ones(40), torch.full((40,), math.nan), torch.full((40,), math.inf)]
    _, gram = reduce.sum_with_gram(leaves)
    assert gram.isfinite().flatten().tolist() == [True] + [False] * 8


def test_dot_products_take_at_most_64_leaves(path: str) -> None:
    assert reduce.sum_with_gram(torch.ones(64, 3))[1].shape == (64, 64)
    with pytest.raises(ValueError, match="65 leaves"):
        reduce.sum_with_gram(torch.ones(65, 3))


def test_results_have_the_shape_and_dtype_of_a_leaf(path: str) -> None:
    for shape in [(), (0,), (1,), (2, 3), (2, 0, 3), (3, 4, 5)]:
        for dtype in DTYPES:
            leaves: list[Tensor] = [
                torch.full(shape, value, dtype=dtype) for value in (1.0, 2.0, 6.0)
            ]
            found = reduce.sum(leaves, mean=True)
            assert torch.equal(found, torch.full(shape, 3, dtype=dtype))
            assert torch.equal(reduce.sum(torch.stack(leaves), mean=True), found)


def test_strided_tensors_are_summed_in_place_of_contiguous_ones(path: str) -> None:
    base = torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(0))
    same_bits(
        reduce.sum(base.transpose(1, 2)).flatten(),
        reduce.sum(base).T.contiguous().flatten(),
    )
    whole = reduce.sum([base[0, :, ::2], base[1, :, ::2]])
    assert torch.equal(whole, reduce.sum(base[:2])[:, ::2])


def test_gradients_do_not_flow_through(path: str) -> None:
    leaves = [torch.ones(3, requires_grad=True) for _ in range(2)]
    assert not reduce.sum(leaves).requires_grad


def view_as_tensor(array: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")).copy())


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f2", ">f2"])
def test_arrays_give_the_bits_of_tensors(dtype: str) -> None:
    terms = np.random.default_rng(0).standard_normal((5, 6, 7)).astype(dtype)
    found = reduce.sum(terms, mean=True)
    assert found.dtype == np.dtype(dtype) and found.shape == (6, 7)
    expected = reduce.sum(view_as_tensor(terms), mean=True)
    same_bits(view_as_tensor(found).flatten(), expected.flatten())
    strided: list[np.ndarray[Any, Any]] = [x.T[::2] for x in terms]
    np.testing.assert_array_equal(reduce.sum(strided, mean=True), found.T[::2])


@pytest.mark.parametrize("dtype", ["<f8", ">f8"])
def test_arrays_of_fp64_are_summed_exactly(dtype: str) -> None:
    terms = np.array([[1e16, 2.0], [1.0, -0.0], [-1e16, -2.0]], dtype)
    found = reduce.sum(terms)
    assert found.tolist() == [1.0, 0.0] and found.dtype == np.dtype(dtype)


def test_arrays_without_axes_or_elements_are_summed() -> None:
    found = reduce.sum([np.array(1, np.float32), np.array(2, np.float32)])
    assert found.shape == () and found == 3
    assert reduce.sum(np.array([1, 2, 4], np.float32)) == 7
    assert reduce.sum(np.zeros((3, 0, 2), np.float32)).shape == (0, 2)
    gram = reduce.sum_with_gram(np.zeros((3, 0), np.float32))[1]
    np.testing.assert_array_equal(gram, np.zeros((3, 3)))


def test_arguments_are_not_changed(path: str) -> None:
    terms = make("any bits", torch.float32, 3, 50, 8)
    before = terms.clone()
    reduce.sum(terms)
    same_bits(terms.flatten(), before.flatten())


def test_torch_is_not_imported_for_arrays() -> None:
    program = (
        "import sys, numpy; from presum import reduce;"
        "reduce.sum(numpy.ones((3, 4), numpy.float32));"
        "reduce.sum_with_gram(numpy.ones((3, 4), numpy.float32));"
        "sys.exit('torch' in sys.modules)"
    )
    assert run_command([sys.executable, "-c", program]).returncode == 0


def test_examples_print_what_they_say() -> None:
    assert doctest.testmod(reduce).failed == 0


ONE = torch.ones(2)
REFUSED: dict[str, tuple[Any, dict[str, Any]]] = {
    "0 leaves": ([], {}),
    "32768 leaves given; pass 1 to 32,767": ([ONE] * 32768, {}),
    "40000 leaves": (np.ones((40000, 1), np.float32), {}),
    "not NoneType": (None, {}),
    "leaf 0 has shape|leaf 1 has shape": (
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        {},
    ),
    "or nested": ([torch.nested.nested_tensor([torch.ones(2)])], {}),
    "no dimension that counts the leaves": (torch.tensor(1.0), {}),
    "leaf 1 has shape": ([ONE, torch.ones(3)], {}),
    r"leaf 1 has dtype torch.bfloat16": ([ONE, ONE.bfloat16()], {}),
    "leaf 1 has device meta": ([ONE, ONE.to("meta")], {}),
    "dtype torch.int64": ([torch.ones(2, dtype=torch.int64)], {}),
    "dtype complex64": ([np.ones(2, np.complex64)], {}),
    "dtype torch.complex64": ([torch.ones(2, dtype=torch.complex64)], {}),
    "dtype int64": (np.ones((2, 2), np.int64), {}),
    "leaf 0 is float": ([1.0, 2.0], {}),
    "masked, sparse": ([ONE.to_sparse()], {}),
    "is masked": ([np.ma.masked_array([1.0], [True])], {}),
    "all NumPy arrays or all torch tensors": ([ONE, np.ones(2, np.float32)], {}),
    "mean must be True or False, not 3": ([ONE], {"mean": 3}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_summed_is_refused_in_one_line(message: str) -> None:
    arrays, options = REFUSED[message]
    with pytest.raises(ValueError, match=message) as caught:
        reduce.sum(arrays, **options)
    assert "\n" not in str(caught.value)


def test_importing_presum_is_enough() -> None:
    code = "import presum; presum.reduce.sum; presum.MicroBatchSampler; presum.reduce.sum"
    assert run_command([sys.executable, "-c", code]).returncode == 0
