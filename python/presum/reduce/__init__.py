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

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from presum import _core
from presum.devices.dtypes import NAMED
from presum.errors import UserError
from presum.reduce.limits import GRAM_LEAVES_MAX, LEAVES_MAX

if TYPE_CHECKING:
    import torch

__all__ = ["sum", "sum_with_gram"]

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
    result: Leaf = _sum(_leaves(arrays, LEAVES_MAX), mean)
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
    leaves = _leaves(arrays, GRAM_LEAVES_MAX)
    size = (len(leaves), len(leaves))
    gram: Any
    if isinstance(leaves[0], np.ndarray):
        gram = np.zeros(size)
    else:
        import torch

        gram = torch.zeros(size, dtype=torch.float64, device=leaves[0].device)
    return _sum(leaves, mean, gram), gram


# ---- what was given


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")  # there is no tensor where torch was not imported
    return torch is not None and isinstance(value, torch.Tensor)


def _dtype_name(leaf: Any) -> str:
    return leaf.dtype.name if isinstance(leaf, np.ndarray) else str(leaf.dtype).split(".")[-1]


def _leaves(arrays: Any, most: int) -> list[Any]:
    """The leaves, checked."""
    whole = isinstance(arrays, np.ndarray) or _is_tensor(arrays)
    if whole and arrays.ndim == 0:
        raise UserError("presum.reduce: one array without axes; its first counts the leaves")
    if not (whole or isinstance(arrays, Iterable)):
        raise UserError(f"presum.reduce: {type(arrays).__name__} given; give a sequence of arrays")
    if whole and getattr(arrays, "is_nested", False):
        arrays = arrays.unbind()
    leaves = list(arrays)  # of one dimension: scalars, which only count
    if not 1 <= len(leaves) <= most:
        raise UserError(f"presum.reduce: {len(leaves)} leaves; give from 1 to {most:,} arrays")
    if isinstance(arrays, np.ndarray):
        leaves = [arrays[index, ...] for index in range(len(arrays))]
    for index, leaf in enumerate(leaves):
        _check_kind(index, leaf)
        _check_like(index, leaf, leaves[0])
    return leaves


def _check_kind(index: int, leaf: Any) -> None:
    kind = type(leaf).__name__
    if not (isinstance(leaf, np.ndarray) or _is_tensor(leaf)):
        raise UserError(f"presum.reduce: leaf {index} is {kind}, not a NumPy array or torch tensor")
    if not _is_dense(leaf):
        raise UserError(
            f"presum.reduce: leaf {index} is masked, sparse, distributed or nested: give dense ones"
        )
    if _dtype_name(leaf) not in NAMED:
        raise UserError(
            f"presum.reduce: leaf {index} has dtype {leaf.dtype}; use fp32, bf16, fp16 or fp64"
        )


def _is_dense(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray):
        return not isinstance(leaf, np.ma.MaskedArray)
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    dense = str(leaf.layout) == "torch.strided" and not leaf.is_nested
    return dense and not is_traceable_wrapper_subclass(leaf)


def _check_like(index: int, leaf: Any, first: Any) -> None:
    if isinstance(leaf, np.ndarray) != isinstance(first, np.ndarray):
        raise UserError("presum.reduce: NumPy arrays and torch tensors together: use one of them")
    for what in ("shape", "dtype", "device"):
        own, wanted = getattr(leaf, what, None), getattr(first, what, None)
        if own != wanted:
            raise UserError(f"presum.reduce: leaf {index} has {what} {own}, leaf 0 has {wanted}")


# ---- how it is summed


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
