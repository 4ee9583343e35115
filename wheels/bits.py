# SPDX-License-Identifier: Apache-2.0
"""Prints hashes of the results of the installed presum's kernels: two builds that print the same
give the same bits. Uses one SIMD target, which PRESUM_SIMD selects. Needs NumPy and presum."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

import presum
from presum._core import Dtype, Observer, hash_rows, simd_target

COUNTS = (1, 7, 64, 1023, 4096, 100_003)
DTYPES = {
    "f32": Dtype.FLOAT32,
    "f64": Dtype.FLOAT64,
    "bf16": Dtype.BFLOAT16,
    "f16": Dtype.FLOAT16,
}
Values = npt.NDArray[np.generic]


def main() -> None:
    for what, count, dtype, found in results():
        print(what, count, dtype, hashlib.sha256(found).hexdigest()[:16])
    print("target", simd_target())


def results() -> Iterator[tuple[str, int, str, bytes]]:
    random = np.random.default_rng(7)
    for count in COUNTS:
        wide = random.standard_normal((9, count)) * np.exp2(random.integers(-20, 20, (9, count)))
        wide[0, 0] = 1e-310
        for dtype in DTYPES:
            leaves = [stored(row, dtype) for row in wide]
            yield "packet", count, dtype, packet(leaves, DTYPES[dtype])
            if dtype == "bf16":
                continue
            yield "exact", count, dtype, presum.reduce.sum(leaves, mean=True).tobytes()
        rows = random.integers(0, 3, (4, count))
        hashes = hash_rows(rows)
        yield "rows", count, "i64", np.array(hashes, np.uint64).tobytes()


def stored(row: npt.NDArray[np.float64], dtype: str) -> Values:
    with np.errstate(over="ignore"):
        if dtype == "bf16":  # the upper half of an fp32 word
            return (row.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        names = {"f32": np.float32, "f64": np.float64, "f16": np.float16}
        return row.astype(names[dtype])


def packet(leaves: list[Values], code: Dtype) -> bytes:
    """The packet of a step with these gradients: norms, largest elements, sketch and
    fingerprints."""
    one = Observer(
        model_index=0,
        replica=0,
        dp_group=0,
        rank=0,
        replicas=1,
        sketch_size=256,
        host="host",
        facts=[],
        parameters=[(f"p{i}", leaf.size, "") for i, leaf in enumerate(leaves)],
        buffers=[],
    )
    one.begin_step(0)
    for i, leaf in enumerate(leaves):
        one.gradient(i, leaf.ctypes.data, leaf.size, code)
    return one.end_step(0, 1, 0, 1.0)


if __name__ == "__main__":
    main()
