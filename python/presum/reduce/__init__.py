# SPDX-License-Identifier: Apache-2.0
"""Sums whose bits do not depend on the order of their terms, on their distribution over ranks, or
on the processor.

The terms ("leaves") are NumPy arrays or torch tensors of equal shape, for example one gradient per
micro-batch. docs/reduction.md has the definitions, proofs, bounds and costs.

>>> import numpy as np
>>> from presum import reduce
>>> leaves = np.array([[1e8], [1.0], [-1e8]], np.float32)
>>> leaves[0] + leaves[1] + leaves[2]
array([0.], dtype=float32)
>>> reduce.sum(leaves)
array([1.], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from presum import _core
from presum.errors import UserError
from presum.reduce.auditing import audited
from presum.reduce.limits import GRAM_LEAVES_MAX, LEAVES_MAX
from presum.reduce.terms import checked

if TYPE_CHECKING:
    import torch

__all__ = ["audit", "sum", "sum_with_gram"]

Array = np.ndarray[Any, np.dtype[Any]]
Leaf = TypeVar("Leaf", Array, "torch.Tensor")


def sum(arrays: Sequence[Leaf] | Leaf, *, mean: bool = False) -> Leaf:
    """The correctly rounded elementwise sum of arrays of equal shape, or their mean. It is rounded
    once, to nearest, ties to even.

    NaN, or infinities of both signs, give NaN; a single sign of infinity gives that infinity. An
    exact zero is +0, even from -0 alone. Overflow gives an infinity. Denormals count in full. Empty
    arrays give an empty array. The arguments are not changed. Thread-safe.

    Memory: the result and, for leaves that are not contiguous, their copies. Work on tensors
    outside the CPU is queued on the current stream, without synchronization. On devices without
    presum's kernels, torch operations compute the same bits; they take about 300 MB, and more time
    under ``torch.use_deterministic_algorithms``.

    Args:
        arrays: 1 to 32,767 leaves: a sequence of NumPy arrays or torch tensors (on any one device),
            or one array or tensor whose first dimension counts the leaves. Any shape. fp32, fp16,
            bf16 (torch only) or fp64 (on devices, only with kernels).
        mean: divide the exact sum by the number of leaves before rounding.

    Returns:
        A new contiguous array or tensor with the shape, dtype and device of a leaf. A tensor does
        not require gradients.

    Raises:
        ValueError: no leaf, too many leaves, unequal shapes, dtypes or devices, or a type that
            cannot be summed.

    >>> sum([np.float32([0.1, -0.0]), np.float32([0.2, -0.0]), np.float32([-0.3, 0.0])])
    array([-7.450581e-09,  0.000000e+00], dtype=float32)
    """
    result: Leaf = _sum(checked(arrays, LEAVES_MAX), mean)
    return result


def sum_with_gram(arrays: Sequence[Leaf] | Leaf, *, mean: bool = False) -> tuple[Leaf, Leaf]:
    """The exact sum, as from :func:`sum`, and the dot products of all pairs of leaves.

    The arguments are not changed. Thread-safe.

    Args:
        arrays: 1 to 64 leaves, as for :func:`sum`.
        mean: as for :func:`sum`; it does not affect the dot products.

    Returns:
        The sum, and a float64 matrix of shape [leaves, leaves], of the same kind and on the same
        device. Its element (a, b) is the dot product of leaves a and b, computed in float64; the
        diagonal has the squared norms. On the CPU, additions run in a fixed order, so the bits do
        not depend on the processor; on other devices the last bits may differ. A leaf with NaN or
        infinity makes its row and column NaN or infinite. Empty leaves give zeros.

    Raises:
        ValueError: as for :func:`sum`.

    >>> sum_with_gram([np.float32([3, 4]), np.float32([1, 0])], mean=True)
    (array([2., 2.], dtype=float32), array([[25.,  3.],
           [ 3.,  1.]]))
    """
    leaves = checked(arrays, GRAM_LEAVES_MAX)
    size = (len(leaves), len(leaves))
    gram: Any
    if isinstance(leaves[0], np.ndarray):
        gram = np.zeros(size)
    else:
        import torch

        gram = torch.zeros(size, dtype=torch.float64, device=leaves[0].device)
    return _sum(leaves, mean, gram), gram


def audit(
    arrays: Sequence[Leaf] | Leaf, result: Leaf | None = None, *, seed: int = 1
) -> dict[str, Any]:
    """Measure what another order or format of addition changes; with ``result``, find out how an
    all-reduce computed it (docs/audit.md).

    The arrays are read in chunks, so memory-mapped files work. The arguments are not changed.
    Thread-safe.

    Args:
        arrays: the gradients of 1 to 1,024 ranks, as for :func:`sum`.
        result: the output of the all-reduce, with the shape of an array, and its dtype or a wider
            one (for example fp32 for bf16 gradients).
        seed: seeds the simulated orders of arrival, from 0 to 2^64 - 1. Used only without
            ``result``.

    Returns:
        A dict. Without ``result``: ``workers`` (the number of arrays), ``dtype``, ``elements``,
        ``ways`` (a dict for each order and format, with its errors against the exact sum) and
        ``changes`` (the number of elements in which two of the ways differ). With ``result``: the
        same measures for it, ``operation`` ("sum", "mean" or "unknown"), ``accumulation`` (the
        format of partial sums), ``order``, ``division``, ``wrong`` (the number of elements that no
        rounding explains), ``copy_of`` (the rank whose own gradient it is, or None),
        ``hypotheses``, ``pieces`` of a ring, and ``findings`` (sentences; empty if all is well).

    Raises:
        ValueError: as for :func:`sum`; there are no elements; ``result`` does not match ``arrays``;
            or ``seed`` is invalid.

    >>> import numpy as np
    >>> leaves = np.random.default_rng(1).standard_normal((4, 5000), np.float32)
    >>> found = audit(leaves, ((leaves[0] + leaves[1]) + leaves[2]) + leaves[3])
    >>> found["operation"], found["order"], found["accumulation"], found["findings"]
    ('sum', 'sequential', 'fp32', [])
    """
    return audited(arrays, result, seed)


def _sum(leaves: list[Any], mean: bool, gram: Any = None) -> Any:
    if not isinstance(mean, bool):
        raise UserError(f"presum.reduce: mean must be True or False, not {mean!r}")
    divisor = len(leaves) if mean else 1
    if isinstance(leaves[0], np.ndarray):
        return _sum_arrays(leaves, divisor, gram)
    from presum.reduce import tensors

    return tensors.sum_all(leaves, divisor, gram)


def _sum_arrays(leaves: Sequence[Array], divisor: int, gram: Array | None) -> Array:
    dtype = leaves[0].dtype
    flat = [np.ascontiguousarray(x, dtype.newbyteorder("=")).reshape(-1) for x in leaves]
    out = np.empty_like(flat[0])
    _core.reduce_exact(flat, divisor, out, gram)
    return out.reshape(leaves[0].shape).astype(dtype, copy=False)
