# SPDX-License-Identifier: Apache-2.0
"""``presum.reduce.audit``: passes arrays in chunks to the auditor of the C++ library."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from presum import _core
from presum.devices.dtypes import NAMED
from presum.errors import UserError
from presum.reduce.terms import check_kind, checked, dtype_name

WORKERS_MAX = 1024
CHUNK = 1 << 16  # elements
BITS = {"float64": 53, "float32": 24, "bfloat16": 8, "float16": 11}  # bits of a significand
FP32_BITS = BITS["float32"]


def audited(arrays: Any, result: Any, seed: int) -> dict[str, Any]:
    """The result of :func:`presum.reduce.audit`."""
    leaves = checked(arrays, WORKERS_MAX)
    elements = math.prod(leaves[0].shape)
    if elements == 0:
        raise UserError("presum.reduce: the arrays have no elements")
    flat, name = [leaf.reshape(-1) for leaf in leaves], dtype_name(leaves[0])
    if result is not None:
        _check_result(result, leaves[0])
        return _compared(flat, result.reshape(-1), elements)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 64:
        raise UserError(f"presum.reduce: seed must be an integer from 0 to 2^64 - 1, not {seed!r}")
    survey = _core.Survey(len(flat), NAMED[name], elements, seed)
    for part in _chunks(elements):
        survey.add([_block(leaf, part, leaf.dtype) for leaf in flat])
    found: dict[str, Any] = {"workers": len(flat), "dtype": name, **survey.result()}
    return found


def _check_result(result: Any, leaf: Any) -> None:
    check_kind("the result", result)
    if isinstance(result, np.ndarray) != isinstance(leaf, np.ndarray):
        raise UserError("presum.reduce: the result and the leaves must both be arrays or tensors")
    if result.shape != leaf.shape:
        raise UserError(f"presum.reduce: the result has shape {result.shape}, leaf 0 {leaf.shape}")
    own, wanted = dtype_name(result), dtype_name(leaf)
    if own != wanted and result.dtype.itemsize <= leaf.dtype.itemsize:
        raise UserError(
            f"presum.reduce: the result has dtype {own}, which cannot hold sums of {wanted}: pass "
            "the output of the all-reduce, in the gradients' dtype or a wider one"
        )


def _chunks(elements: int) -> Iterator[slice]:
    return (slice(at, min(at + CHUNK, elements)) for at in range(0, elements, CHUNK))


def _block(flat: Any, part: slice, dtype: Any) -> Any:
    """A part of an array in host memory; a wider ``dtype`` represents the same values."""
    if isinstance(flat, np.ndarray):
        return np.ascontiguousarray(flat[part], dtype.newbyteorder("="))
    return flat[part].detach().resolve_neg().to("cpu", dtype).contiguous()


def _compared(flat: list[Any], result: Any, elements: int) -> dict[str, Any]:
    def parts() -> Iterator[tuple[list[Any], Any]]:
        for part in _chunks(elements):
            leaves = [_block(leaf, part, result.dtype) for leaf in flat]
            yield leaves, _block(result, part, result.dtype)

    nearer = np.sum([_core.audit_nearer(*part) for part in parts()], axis=0)
    to_sum, to_mean = nearer.tolist()
    mean, name = to_mean >= to_sum, dtype_name(result)
    auditor = _core.Auditor(len(flat), NAMED[name], len(flat) if mean else 1, elements)
    for leaves, block in parts():
        auditor.add(leaves, block)
    found = auditor.result()
    del found["record"]
    unknown = found["unrelated"] or to_sum == to_mean == 0
    found["operation"] = "unknown" if unknown else "mean" if mean else "sum"
    return found | {"findings": list(_findings(found, BITS[name]))}


def _findings(found: dict[str, Any], own_bits: int) -> Iterator[str]:
    elements, wrong, bits = found["elements"], found["wrong"], found["accumulation_bits"]
    if found["copy_of"] is not None:
        yield f"the result is the gradient of rank {found['copy_of']} alone: nothing was reduced"
    elif 2 * found["nonfinite"] > elements:
        yield f"{found['nonfinite']:,} of {elements:,} elements are NaN or infinite"
    elif found["unrelated"]:
        yield f"no sum or mean: {wrong:,} of {elements:,} elements are further off than rounding"
    else:
        if bits and bits < max(FP32_BITS, own_bits):
            yield f"sums were accumulated in {found['accumulation']}: {bits} significant bits"
        if wrong:
            yield f"{wrong:,} of {elements:,} elements are further off than rounding explains"
