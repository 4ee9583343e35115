# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of a sum: NumPy arrays or torch tensors of equal shape."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from presum.devices.dtypes import NAMED
from presum.errors import UserError


def is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")  # without torch imported, there are no tensors
    return torch is not None and isinstance(value, torch.Tensor)


def dtype_name(leaf: Any) -> str:
    return leaf.dtype.name if isinstance(leaf, np.ndarray) else str(leaf.dtype).split(".")[-1]


def checked(arrays: Any, most: int) -> list[Any]:
    """The leaves as a list. Raises UserError for arguments that cannot be summed."""
    whole = isinstance(arrays, np.ndarray) or is_tensor(arrays)
    if whole and arrays.ndim == 0:
        raise UserError("presum.reduce: the array has no dimension that counts the leaves")
    if not (whole or isinstance(arrays, Iterable)):
        raise UserError(f"presum.reduce: pass a sequence of arrays, not {type(arrays).__name__}")
    if whole and getattr(arrays, "is_nested", False):
        arrays = arrays.unbind()
    leaves = list(arrays)  # of a one-dimensional array: scalars, which are only counted
    if not 1 <= len(leaves) <= most:
        raise UserError(f"presum.reduce: {len(leaves)} leaves given; pass 1 to {most:,} arrays")
    if isinstance(arrays, np.ndarray):
        leaves = [arrays[index, ...] for index in range(len(arrays))]
    for index, leaf in enumerate(leaves):
        check_kind(f"leaf {index}", leaf)
        _check_like(index, leaf, leaves[0])
    return leaves


def check_kind(name: str, leaf: Any) -> None:
    """Raises UserError unless ``leaf`` is a dense array of a dtype that can be summed."""
    kind = type(leaf).__name__
    if not (isinstance(leaf, np.ndarray) or is_tensor(leaf)):
        raise UserError(f"presum.reduce: {name} is {kind}, not a NumPy array or torch tensor")
    if not _is_dense(leaf):
        raise UserError(
            f"presum.reduce: {name} is masked, sparse, distributed or nested: pass a dense one"
        )
    if dtype_name(leaf) not in NAMED:
        raise UserError(
            f"presum.reduce: {name} has dtype {leaf.dtype}; use fp32, bf16, fp16 or fp64"
        )


def _is_dense(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray):
        return not isinstance(leaf, np.ma.MaskedArray)
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    dense = str(leaf.layout) == "torch.strided" and not leaf.is_nested
    return dense and not is_traceable_wrapper_subclass(leaf)


def _check_like(index: int, leaf: Any, first: Any) -> None:
    if isinstance(leaf, np.ndarray) != isinstance(first, np.ndarray):
        raise UserError("presum.reduce: leaves must be all NumPy arrays or all torch tensors")
    for what in ("shape", "dtype", "device"):
        own, wanted = getattr(leaf, what, None), getattr(first, what, None)
        if own != wanted:
            raise UserError(f"presum.reduce: leaf {index} has {what} {own}, leaf 0 has {wanted}")
