# SPDX-License-Identifier: Apache-2.0
"""Observers of simulated workers, and what they are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from presum._core import Auditor, Dtype, Observer

Named = Sequence[tuple[str, int, str]]  # parameters or buffers: name, elements, group


def make_observer(
    parameters: Named,
    *,
    buffers: Named = (),
    rank: int = 0,
    ranks: int = 1,
    global_rank: int | None = None,
    sketch_size: int = 0,
    host: str = "host",
    facts: Sequence[tuple[str, str]] = (),
    knows_optimizer: bool = False,
) -> Observer:
    """One worker's of module 0; ``global_rank`` is ``rank`` where it is not given."""
    return Observer(
        model_index=0,
        replica=rank,
        dp_group=0,
        rank=rank if global_rank is None else global_rank,
        replicas=ranks,
        sketch_size=sketch_size,
        host=host,
        facts=list(facts),
        parameters=list(parameters),
        buffers=list(buffers),
        knows_optimizer=knows_optimizer,
    )


DTYPES = {
    "f32": Dtype.FLOAT32,
    "f64": Dtype.FLOAT64,
    "bf16": Dtype.BFLOAT16,
    "f16": Dtype.FLOAT16,
}
WIDTHS = {"f32": 4, "f64": 8, "bf16": 2, "f16": 2}


def report(
    observer: Observer, parameter: int, data: bytes, dtype: str, *, reduced: bool = False
) -> None:
    buffer = np.frombuffer(data, f"u{WIDTHS[dtype]}")
    take = observer.reduced_gradient if reduced else observer.gradient
    take(parameter, buffer.ctypes.data, len(buffer), DTYPES[dtype])


def end_step(observer: Observer) -> bytes:
    return observer.end_step(3, 1, 0, 1.0)


def audit_of(leaves: Sequence[np.ndarray], result: np.ndarray) -> dict[str, Any]:
    """What is found of a sum in fp32."""
    auditor = Auditor(len(leaves), Dtype.FLOAT32, 1, result.size)
    auditor.add(leaves, result)
    return auditor.result()
