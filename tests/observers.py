# SPDX-License-Identifier: Apache-2.0
"""Observers of simulated workers, and what they are told."""

from __future__ import annotations

import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from presum._core import Auditor, Dtype, Observer, StateKind

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
        module=0,
        replica=rank,
        shard=0,
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


def observer_of(
    parameters: list[tuple[str, int, str]],
    *,
    buffers: tuple[tuple[str, int, str], ...] = (),
    replica: int = 1,
    replicas: int = 2,
    sketch_size: int = 0,
) -> Observer:
    return make_observer(
        parameters,
        buffers=buffers,
        rank=replica,
        ranks=replicas,
        global_rank=10 + replica,
        sketch_size=sketch_size,
        host=f"node-{'ab'[replica % 2]}",
        facts=[("torch", "2.13.0")],
    )


def report(observer: Observer, parameter: int, data: bytes, dtype: str, *, reduced: bool) -> None:
    buffer = array.array("B", data)
    count = len(data) // {"f32": 4, "f64": 8, "bf16": 2, "f16": 2}[dtype]
    take = observer.reduced_gradient if reduced else observer.gradient
    take(parameter, buffer.buffer_info()[0], count, DTYPES[dtype])


def report_state(observer: Observer, of: int, index: int, data: bytes, width: int) -> None:
    buffer = array.array("B", data)
    observer.state(StateKind(of), index, buffer.buffer_info()[0], len(data) // width, width)


def end_step(observer: Observer, *, scale: float = 1.0) -> bytes:
    return observer.end_step(3, 1, 0, scale)


def audit_of(leaves: Sequence[np.ndarray], result: np.ndarray) -> dict[str, Any]:
    """What is found of a sum in fp32."""
    auditor = Auditor(len(leaves), Dtype.FLOAT32, 1, result.size)
    auditor.add(leaves, result)
    return auditor.result()
