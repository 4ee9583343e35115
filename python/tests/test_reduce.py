# SPDX-License-Identifier: Apache-2.0
"""presum.reduce against rational numbers; every test runs on the C++ kernels and, where that is
possible, on the torch operations that take their place on devices."""

from __future__ import annotations

import doctest
import itertools
import math
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from presum import reduce
from presum.reduce import tensors, torch_ops

METHODS: dict[int, reduce.Method] = {32: "fixed32", 64: "fixed64"}
PATHS = ["kernels", "torch operations"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# Bits of a significand, exponent of the smallest denormal, exponent that is too large.
FORMATS = {
    torch.float32: (24, -149, 128),
    torch.bfloat16: (8, -133, 128),
    torch.float16: (11, -24, 16),
    torch.float64: (53, -1074, 1024),
}
QUIET_NAN = {torch.float32: 0x7FC00000, torch.bfloat16: 0x7FC0, torch.float16: 0x7E00}
QUIET_NAN[torch.float64] = 0x7FF8000000000000


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which implementation the test runs on."""
    if request.param == "torch operations":
        monkeypatch.setattr(tensors, "in_host_memory", lambda device: False)
    return str(request.param)


# ---- the oracle: rational numbers


def rounded(value: Fraction, dtype: torch.dtype) -> float:
    """To nearest, ties to even."""
    precision, lowest, limit = FORMATS[dtype]
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    ulp = Fraction(2) ** max(exponent - precision + 1, lowest)
    units = round(value / ulp)
    if abs(units * ulp) >= Fraction(2) ** limit:
        return math.copysign(math.inf, value)
    return math.copysign(float(abs(units) * ulp), value)


def special(column: Sequence[float]) -> float | None:
    """What a sum is where not all terms are finite."""
    if all(map(math.isfinite, column)):
        return None
    signs = {math.copysign(1, x) for x in column if math.isinf(x)}
    return math.nan if len(signs) != 1 or any(map(math.isnan, column)) else signs.pop() * math.inf


def by_element(leaves: Tensor, value: Callable[[Sequence[float]], Fraction]) -> Tensor:
    """value(column) of each element, rounded to the leaves' dtype; NaN is the quiet one."""
    results = []
    for column in leaves.double().T.tolist():
        found = special(column)
        results.append(rounded(value(column), leaves.dtype) if found is None else found)
    whole = torch.tensor(results, dtype=torch.float64).to(leaves.dtype)
    whole.view(INTEGER[whole.element_size()])[whole.isnan()] = QUIET_NAN[whole.dtype]
    return whole


def exact_sum(leaves: Tensor, divisor: int = 1) -> Tensor:
    return by_element(leaves, lambda column: sum(map(Fraction, column), Fraction()) / divisor)


def biased_exponent(value: float) -> int:
    if not math.isfinite(value):
        return 255
    return max(math.frexp(value)[1] + 126, 0) if value else 0


def fixed_sum(leaves: Tensor, divisor: int, bits: int) -> Tensor:
    size = bits - 1 - math.ceil(math.log2(len(leaves)))

    def value(column: Sequence[float]) -> Fraction:
        largest = max(1, *map(biased_exponent, column))
        scale = Fraction(2) ** (size - 1 + 127 - largest)
        limit = 2**size - 1
        integers = [min(max(round(Fraction(x) * scale), -limit), limit) for x in column]
        return Fraction(sum(integers)) / scale / divisor

    return by_element(leaves, value)


def binned_sum(leaves: Tensor, divisor: int) -> Tensor:
    def value(column: Sequence[float]) -> Fraction:
        units = [Fraction(x) * 2**149 for x in column]
        top = -(-max(int(abs(x)).bit_length() for x in units) // 40)
        unit = Fraction(2) ** (40 * (top - 2) - 149)
        return sum(int(Fraction(x) / unit) for x in column) * unit / divisor

    return by_element(leaves, value)


# ---- the data


def from_bits(source: random.Random, dtype: torch.dtype, count: int) -> Tensor:
    width = 16 if dtype.itemsize == 2 else 32
    bits = [source.getrandbits(width) - (1 << (width - 1)) for _ in range(count)]
    return torch.tensor(bits, dtype=INTEGER[dtype.itemsize]).view(dtype)


def finite_bits(source: random.Random, dtype: torch.dtype, count: int) -> Tensor:
    found = from_bits(source, dtype, count)
    return torch.where(found.isfinite(), found, torch.zeros((), dtype=dtype))


def make(kind: str, dtype: torch.dtype, leaves: int, count: int, seed: int) -> Tensor:
    """Leaves of one kind, [leaves, count]."""
    source = random.Random(f"{kind} {dtype} {leaves} {seed}")
    precision, lowest, limit = FORMATS[dtype]
    size = leaves * count

    def powers(low: int, high: int) -> list[float]:
        return [source.choice([-1, 1]) * 2.0 ** source.randint(low, high) for _ in range(size)]

    values: Any
    if kind == "any bits":
        found = from_bits(source, dtype, size)
    elif kind == "finite bits":
        found = finite_bits(source, dtype, size)
    else:
        if kind == "gaussian":
            values = [source.gauss(0, 1) for _ in range(size)]
        elif kind == "denormals":
            values = [source.randint(-40, 40) * 2.0**lowest for _ in range(size)]
        elif kind == "ties":
            values = powers(-precision - 1, 1)
        elif kind == "overflow":
            values = powers(limit - 4, limit - 1)
        elif kind == "specials":
            values = source.choices(
                [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan],
                [8, 8, 8, 8, 1, 1, 0.3],
                k=size,
            )
        found = torch.tensor(values, dtype=torch.float64).to(dtype)
    found = found.view(leaves, count)
    if kind == "finite bits" and leaves > 2:  # Large terms that cancel and leave the small ones.
        found[1] = torch.where(torch.arange(count) % 2 == 0, -found[0], found[1])
    return found


KINDS = ["any bits", "finite bits", "gaussian", "denormals", "ties", "overflow", "specials"]


def bits_of(x: Tensor) -> list[int]:
    patterns: list[int] = x.contiguous().view(INTEGER[x.element_size()]).flatten().tolist()
    return patterns


def same_bits(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype and found.shape == expected.shape
    pairs = zip(bits_of(found), bits_of(expected), strict=True)
    wrong = [i for i, (own, wanted) in enumerate(pairs) if own != wanted]
    assert not wrong, [(i, found.flatten()[i], expected.flatten()[i]) for i in wrong[:3]]


def run_exact(leaves: Tensor, divisor: int) -> Tensor:
    out = torch.empty_like(leaves[0])
    tensors.exact(list(leaves), divisor, out)
    return out


CASES = list(itertools.product(KINDS, DTYPES))


# ---- exact


@pytest.mark.parametrize(("kind", "dtype"), CASES, ids=str)
def test_exact_is_the_correctly_rounded_sum(path: str, kind: str, dtype: torch.dtype) -> None:
    for leaves, divisor in [(1, 1), (2, 1), (2, 2), (3, 3), (7, 7), (8, 8), (8, 7), (64, 64)]:
        terms = make(kind, dtype, leaves, 40, divisor)
        same_bits(run_exact(terms, divisor), exact_sum(terms, divisor))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exact_divides_by_any_number_with_one_rounding(path: str, dtype: torch.dtype) -> None:
    for divisor in (3, 12, 1021, 2**16, 2**31 - 1):
        for kind in ("finite bits", "denormals", "ties"):
            terms = make(kind, dtype, 3, 100, divisor)
            same_bits(run_exact(terms, divisor), exact_sum(terms, divisor))


@pytest.mark.deep
def test_exact_takes_32767_leaves(path: str) -> None:
    largest = torch.finfo(torch.float32).max
    leaf = torch.tensor([largest, -largest, 2.0**-149, -(2.0**-20), -math.inf])
    found = torch.empty_like(leaf)
    tensors.exact([leaf] * 32767, 32767, found)
    same_bits(found, leaf)


def test_exact_may_write_over_a_leaf(path: str) -> None:
    terms = make("finite bits", torch.float32, 5, 50, 0)
    expected = exact_sum(terms)
    tensors.exact(list(terms), 1, terms[2])
    same_bits(terms[2], expected)


def test_elements_beyond_a_chunk_are_summed_alike(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = make("any bits", torch.float32, 4, 50, 0)
    expected = {method: reduce.sum(terms, method=method) for method in reduce.METHODS}
    monkeypatch.setattr(torch_ops, "CHUNK", 7)
    for method, whole in expected.items():
        same_bits(reduce.sum(terms, method=method), whole)


@pytest.mark.parametrize("kind", ["finite bits", "gaussian", "denormals", "overflow"])
def test_exact_takes_fp64(kind: str) -> None:
    for leaves in (1, 3, 8):
        terms = make(kind, torch.float64, leaves, 20, 0)
        same_bits(run_exact(terms, leaves), exact_sum(terms, leaves))


# ---- fixed and binned


@pytest.mark.parametrize(("kind", "dtype"), CASES, ids=str)
@pytest.mark.parametrize("bits", [32, 64])
def test_fixed_is_the_sum_of_integers_as_defined(
    path: str, kind: str, dtype: torch.dtype, bits: int
) -> None:
    for leaves, mean in [(1, False), (3, True), (12, False), (64, True), (300, False)]:
        terms = make(kind, dtype, leaves, 600 // leaves, 1)
        found = reduce.sum(terms, method=METHODS[bits], mean=mean)
        same_bits(found, fixed_sum(terms, leaves if mean else 1, bits))


@pytest.mark.parametrize(("kind", "dtype"), CASES, ids=str)
def test_binned_is_the_sum_of_digits_as_defined(path: str, kind: str, dtype: torch.dtype) -> None:
    for leaves, mean in [(1, False), (3, True), (7, True), (12, False), (64, True)]:
        terms = make(kind, dtype, leaves, 40, 2)
        found = reduce.sum(terms, method="binned", mean=mean)
        same_bits(found, binned_sum(terms, leaves if mean else 1))


def state_of(total: tensors.Binned) -> list[list[int]]:
    return [total.top.tolist(), total.high.tolist(), total.low.tolist()]


@pytest.mark.parametrize("kind", KINDS)
def test_binned_is_a_commutative_monoid(path: str, kind: str) -> None:
    terms = make(kind, torch.float32, 9, 60, 3)
    whole = tensors.Binned.zeros(60)
    for leaf in terms:
        whole.add(leaf)
    left, right = tensors.Binned.zeros(60), tensors.Binned.zeros(60)
    for leaf in terms.flip(0)[:4]:
        left.add(leaf)
    for leaf in terms.flip(0)[4:]:
        right.add(leaf)
    right.merge(left)
    right.merge(tensors.Binned.zeros(60))
    assert state_of(right) == state_of(whole)


# ---- orders and partitions


def reduced_by_workers(parts: Sequence[Tensor], total: int, bits: int) -> Tensor:
    """What workers with these leaves do, with the all-reduces in place."""
    tops = [tensors.exponents(list(part)) for part in parts]
    largest = torch.stack(tops).amax(0)
    sums = [tensors.encode(list(part), largest, total, bits) for part in parts]
    out = torch.empty_like(parts[0][0])
    tensors.decode(torch.stack(sums).sum(0).to(sums[0].dtype), largest, total, total, bits, out)
    return out


def binned_by_workers(parts: Sequence[Tensor], total: int) -> Tensor:
    states = []
    for part in parts:
        states.append(tensors.Binned.zeros(part.shape[1]))
        for leaf in part:
            states[-1].add(leaf)
    top = torch.stack([state.top for state in states]).amax(0)
    for state in states:
        state.raise_to(top)
    high = torch.stack([state.high for state in states]).sum(0)
    low = torch.stack([state.low for state in states]).sum(0)
    out = torch.empty_like(parts[0][0])
    tensors.Binned(top, high, low).decode(total, out)
    return out


@pytest.mark.parametrize(("kind", "dtype"), CASES, ids=str)
def test_no_order_and_no_partition_changes_a_bit(path: str, kind: str, dtype: torch.dtype) -> None:
    terms = make(kind, dtype, 12, 25, 4)
    expected = {method: reduce.sum(terms, method=method, mean=True) for method in reduce.METHODS}
    for workers in (12, 6, 4, 3, 1):
        shuffled = terms[torch.randperm(12, generator=torch.Generator().manual_seed(workers))]
        parts = shuffled.chunk(workers)
        same_bits(run_exact(shuffled, 12), expected["exact"])
        same_bits(reduced_by_workers(parts, 12, 32), expected["fixed32"])
        same_bits(reduced_by_workers(parts, 12, 64), expected["fixed64"])
        same_bits(binned_by_workers(parts, 12), expected["binned"])


# ---- the kernels and the torch operations


def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in PATHS:
        with monkeypatch.context() as patch:
            if name == PATHS[1]:
                patch.setattr(tensors, "in_host_memory", lambda device: False)
            yield name


@pytest.mark.parametrize(("kind", "dtype"), CASES, ids=str)
def test_torch_operations_give_the_bits_of_the_kernels(
    monkeypatch: pytest.MonkeyPatch, kind: str, dtype: torch.dtype
) -> None:
    for leaves in (1, 8, 200):
        terms = make(kind, dtype, leaves, 6_000 // leaves, 5)
        found = []
        for _ in both(monkeypatch):
            total = tensors.Binned.zeros(terms.shape[1])
            for leaf in terms:
                total.add(leaf)
            top = tensors.exponents(list(terms))
            codes = [tensors.encode(list(terms), top, 2 * leaves, b).tolist() for b in (32, 64)]
            sums = [bits_of(reduce.sum(terms, method=m, mean=True)) for m in reduce.METHODS]
            found.append((state_of(total), top.tolist(), codes, sums))
        for kernels, operations in zip(*found, strict=True):
            assert kernels == operations


def test_flushing_denormals_changes_no_bit(path: str) -> None:
    terms = make("denormals", torch.float32, 8, 100, 6)
    expected = {method: reduce.sum(terms, method=method) for method in reduce.METHODS}
    try:
        torch.set_flush_denormal(True)
        found = {method: reduce.sum(terms, method=method) for method in reduce.METHODS}
    finally:
        torch.set_flush_denormal(False)
    for method, values in found.items():
        assert bits_of(values) == bits_of(expected[method])


# ---- dot products


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


# ---- shapes and kinds


@pytest.mark.parametrize("method", reduce.METHODS)
def test_results_have_the_shape_and_dtype_of_a_leaf(path: str, method: Any) -> None:
    for shape in [(), (0,), (1,), (2, 3), (2, 0, 3), (3, 4, 5)]:
        for dtype in DTYPES:
            leaves: list[Tensor] = [
                torch.full(shape, value, dtype=dtype) for value in (1.0, 2.0, 6.0)
            ]
            found = reduce.sum(leaves, method=method, mean=True)
            assert torch.equal(found, torch.full(shape, 3, dtype=dtype))
            assert torch.equal(reduce.sum(torch.stack(leaves), method=method, mean=True), found)


@pytest.mark.parametrize("method", reduce.METHODS)
def test_strided_tensors_are_summed_in_place_of_contiguous_ones(path: str, method: Any) -> None:
    base = torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(0))
    same_bits(
        reduce.sum(base.transpose(1, 2), method=method).flatten(),
        reduce.sum(base, method=method).T.contiguous().flatten(),
    )
    whole = reduce.sum([base[0, :, ::2], base[1, :, ::2]], method=method)
    assert torch.equal(whole, reduce.sum(base[:2], method=method)[:, ::2])


def test_gradients_do_not_flow_through(path: str) -> None:
    leaves = [torch.ones(3, requires_grad=True) for _ in range(2)]
    assert not reduce.sum(leaves).requires_grad


def view_as_tensor(array: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")).copy())


@pytest.mark.parametrize("method", reduce.METHODS)
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f2", ">f2"])
def test_arrays_give_the_bits_of_tensors(method: Any, dtype: str) -> None:
    terms = np.random.default_rng(0).standard_normal((5, 6, 7)).astype(dtype)
    found = reduce.sum(terms, method=method, mean=True)
    assert found.dtype == np.dtype(dtype) and found.shape == (6, 7)
    expected = reduce.sum(view_as_tensor(terms), method=method, mean=True)
    same_bits(view_as_tensor(found).flatten(), expected.flatten())
    strided: list[np.ndarray[Any, Any]] = [x.T[::2] for x in terms]
    np.testing.assert_array_equal(reduce.sum(strided, method=method, mean=True), found.T[::2])


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


def test_on_a_device_nothing_waits_for_a_value() -> None:
    leaves = [torch.empty(2, 3, device="meta") for _ in range(3)]  # has shapes, no values
    for method in reduce.METHODS:
        assert reduce.sum(leaves, method=method, mean=True).shape == (2, 3)
    assert reduce.sum_with_gram(leaves)[1].shape == (3, 3)
    total = tensors.Binned.zeros(6, "meta")
    total.merge(total)


def test_arguments_are_not_changed(path: str) -> None:
    terms = make("any bits", torch.float32, 3, 50, 8)
    before = terms.clone()
    for method in reduce.METHODS:
        reduce.sum(terms, method=method)
    same_bits(terms.flatten(), before.flatten())


def test_torch_is_not_imported_for_arrays() -> None:
    program = (
        "import sys, numpy; from presum import reduce;"
        "[reduce.sum(numpy.ones((3, 4), numpy.float32), method=m) for m in reduce.METHODS];"
        "reduce.sum_with_gram(numpy.ones((3, 4), numpy.float32));"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_examples_print_what_they_say() -> None:
    assert doctest.testmod(reduce).failed == 0


def test_binned_takes_more_leaves_than_the_others() -> None:
    leaves = np.ones((40_000, 2), np.float32)
    assert reduce.sum(leaves, method="binned").tolist() == [40_000.0] * 2


# ---- what is refused

ONE = torch.ones(2)
REFUSED: dict[str, tuple[Any, dict[str, Any]]] = {
    "0 leaves": ([], {}),
    "32768 leaves; give from 1 to 32,767": ([ONE] * 32768, {}),
    "40000 leaves": (np.ones((40000, 1), np.float32), {}),
    "NoneType given": (None, {}),
    "leaf 0 has shape|leaf 1 has shape": (
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        {},
    ),
    "or nested": ([torch.nested.nested_tensor([torch.ones(2)])], {}),
    "first counts the leaves": (torch.tensor(1.0), {}),
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
    "together": ([ONE, np.ones(2, np.float32)], {}),
    "mean is True or False, not 3": ([ONE], {"mean": 3}),
    "none of exact": ([ONE], {"method": "kahan"}),
    "fixed32 does not take float64": ([ONE.double()], {"method": "fixed32"}),
    "binned does not take float64": ([np.ones(2)], {"method": "binned"}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_summed_is_refused_in_one_line(message: str) -> None:
    arrays, options = REFUSED[message]
    with pytest.raises(ValueError, match=message) as caught:
        reduce.sum(arrays, **options)
    assert "\n" not in str(caught.value)


def test_importing_presum_is_enough() -> None:
    code = "import presum; presum.reduce.sum; presum.MicroBatchSampler; presum.reduce.sum"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_a_device_cannot_sum_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "in_host_memory", lambda device: False)
    with pytest.raises(ValueError, match="move fp64 leaves to the CPU"):
        reduce.sum([ONE.double()])
    for divisor in (0, 2**31):
        with pytest.raises(ValueError, match="divisor"):
            tensors.exact([ONE], divisor, torch.empty(2))
    with pytest.raises(ValueError, match="0 leaves"):
        tensors.exact([], 1, torch.empty(2))
