# SPDX-License-Identifier: Apache-2.0
"""Sums whose bits do not depend on the order of their terms, nor on how these are divided over
workers, nor on the processor.

The terms ("leaves") are equally shaped NumPy arrays or torch tensors: one micro-batch's gradient on
one worker, say. docs/reduction.md has the definitions, proofs, bounds and costs.

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
    """The correctly rounded sum of equally shaped arrays, element by element, or their mean: one
    rounding, to nearest, ties to even.

    ``arrays`` is a sequence of NumPy arrays or of torch tensors (on any one device), or one of them
    whose first axis counts the leaves; 1 to 32,767 leaves of any shape, fp32, bf16 (torch), fp16 or
    fp64 (not on devices without kernels). Result: a new contiguous array of a leaf's shape, dtype
    and device, without a gradient.

    ``mean`` divides the sum by the number of leaves before the only rounding. NaN, or infinities of
    both signs, give NaN; else infinities win; an exact zero is +0, also of -0 alone; too large is
    an infinity; denormals count in full. An empty array gives an empty one. Memory: the result and,
    for leaves that are not contiguous, their copies. Tensors outside the CPU are queued on the
    current stream, without a wait. Torch operations take about 300 MB, and under
    ``torch.use_deterministic_algorithms`` longer; the bits are the same.

    Thread-safe; arguments are not changed. ValueError for no leaf, too many, unequal shapes, dtypes
    or devices, and what cannot be summed.

    >>> sum([np.float32([0.1, -0.0]), np.float32([0.2, -0.0]), np.float32([-0.3, 0.0])])
    array([-7.450581e-09,  0.000000e+00], dtype=float32)
    """
    result: Leaf = _sum(checked(arrays, LEAVES_MAX), mean)
    return result


def sum_with_gram(arrays: Sequence[Leaf] | Leaf, *, mean: bool = False) -> tuple[Leaf, Leaf]:
    """The exact sum, as ``sum`` gives it, and the dot products of all pairs of leaves.

    The second is a float64 matrix [leaves, leaves] of the same kind and device: element (a, b) is
    the sum over all elements of leaf a times leaf b, in float64; its diagonal has the squared
    norms. At most 64 leaves. Additions run in a fixed order on the CPU, so bits do not depend on
    the processor; on other devices the last bits are the device's. A leaf with NaN or infinity
    makes its row and column NaN or infinite; empty leaves give zeros.

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
    """What adding in another order or format changes; with ``result``, what an all-reduce that gave
    it did (docs/audit.md).

    ``arrays`` are the workers' gradients, as for ``sum``; 1 to 1,024 of them. They are read in
    chunks: memory-mapped files do. ``seed`` is of orders of arrival.

    Without ``result``: ``workers``, ``dtype``, ``elements``, ``ways`` (a dictionary for each order
    and format, with what it measures against the exact sum) and ``changes`` (elements in which two
    of them differ).

    ``result`` has the shape of an array and its dtype or a wider one, as the sum of bf16 gradients
    in fp32. Then: the same measures of it, ``operation`` ("sum", "mean" or "unknown"),
    ``accumulation`` (the format of partial sums), ``order``, ``division``, ``wrong`` (elements
    that no rounding explains), ``copy_of`` (the worker whose own gradient it is, or None),
    ``hypotheses``, ``pieces`` of a ring, and ``findings``, a sentence each; none where all is well.

    Thread-safe; arguments are not changed. ValueError as for ``sum``, and for no elements or a
    result that does not fit.

    >>> import numpy as np
    >>> leaves = np.random.default_rng(1).standard_normal((4, 5000), np.float32)
    >>> found = audit(leaves, ((leaves[0] + leaves[1]) + leaves[2]) + leaves[3])
    >>> found["operation"], found["order"], found["accumulation"], found["findings"]
    ('sum', 'sequential', 'fp32', [])
    """
    return audited(arrays, result, seed)


def _sum(leaves: list[Any], mean: bool, gram: Any = None) -> Any:
    if not isinstance(mean, bool):
        raise UserError(f"presum.reduce: mean is True or False, not {mean!r}")
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
