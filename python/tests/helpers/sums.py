# SPDX-License-Identifier: Apache-2.0
"""Numbers to sum, and their sums as the C++ kernels make them, which are held against an oracle in
src/reduce/exact_test.cc.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from presum import _core
from presum.reduce import kernels, tensors, torch_ops

PATHS = ["kernels", "torch operations", "CUDA kernels on the host"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# Bits of a significand, exponent of the smallest denormal, exponent that is too large.
FORMATS = {
    torch.float32: (24, -149, 128),
    torch.bfloat16: (8, -133, 128),
    torch.float16: (11, -24, 16),
}


@contextlib.contextmanager
def on_path(path: str) -> Iterator[None]:
    """Sums are made so."""
    ways = {PATHS[0]: None, PATHS[1]: torch_ops, PATHS[2]: kernels}
    _core.cuda_on_host(path == PATHS[2])
    try:
        with mock.patch.object(tensors, "elsewhere", lambda _device: ways[path]):
            yield
    finally:
        _core.cuda_on_host(False)


def exact_sum(leaves: Tensor, divisor: int = 1) -> Tensor:
    out = torch.empty_like(leaves[0])
    _core.reduce_exact(list(leaves), divisor, out)
    return out


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
