# SPDX-License-Identifier: Apache-2.0
"""Compares the speed of a wheel's kernels with that of another build, alternating both in one
process.

kernel_ratio.py WHEELS_CORE OTHERS_CORE: two extension modules. Prints one line per kernel: the
median ratio of processor times and its 95 % interval (bootstrap over pairs). Exits with 1 if a
lower bound is above 1.25, so that only a kernel that is certainly slow blocks a release.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

LIMIT = 1.25
PAIRS = 101
ELEMENTS = 1 << 18  # per leaf; fits into a core's own cache with the other data
LEAVES = 8
Kernel = Callable[[Any], object]


def main() -> int:
    modules = [loaded(path) for path in sys.argv[1:3]]
    slow = False
    for name, kernel in kernels().items():
        low, middle, high = interval(ratios(kernel, *modules))
        slow = slow or low > LIMIT
        said = f"  above {LIMIT}" if low > LIMIT else ""
        print(f"{name:24} {middle:.3f} [{low:.3f}, {high:.3f}]{said}")
    return int(slow)


def loaded(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("_core", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kernels() -> dict[str, Kernel]:
    random = np.random.default_rng(3)
    found: dict[str, Kernel] = {}
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        found[f"gradient {dtype}"] = gradient(
            stored(random.standard_normal(ELEMENTS), dtype), dtype
        )
    *leaves, out = apart(LEAVES + 1)
    for leaf in leaves:
        leaf[:] = random.standard_normal(ELEMENTS)
    found["exact sum"] = lambda core: core.reduce_exact(leaves, LEAVES, out)
    rows = random.integers(0, 50_000, (64, ELEMENTS // 64))
    found["rows of a batch"] = lambda core: core.hash_rows(rows)
    return found


def apart(count: int) -> list[npt.NDArray[np.float32]]:
    """Arrays that each start at a cache line, at different offsets within a page: the placement of
    arrays changes the time of a sum by a tenth."""
    line = 16
    stride = ELEMENTS + 8 * line
    memory = np.zeros(count * stride + line, np.float32)
    first = -memory.ctypes.data % 64 // 4
    return [memory[first + i * stride :][:ELEMENTS] for i in range(count)]


def stored(values: npt.NDArray[np.float64], dtype: str) -> npt.NDArray[Any]:
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)


def gradient(values: npt.NDArray[Any], dtype: str) -> Kernel:
    observers: dict[int, Any] = {}

    def run(core: Any) -> None:
        if id(core) not in observers:
            observers[id(core)] = core.Observer(
                model_index=0, replica=0, dp_group=0, rank=0, replicas=1, host="host",
                sketch_size=4096, facts=[], parameters=[("p", values.size, "")], buffers=[],
            )  # fmt: skip
        one = observers[id(core)]
        one.begin_step(0)
        one.gradient(0, values.ctypes.data, values.size, core.Dtype[dtype.upper()])
        one.end_step(0, 1, 0, 1.0)

    return run


def ratios(kernel: Kernel, one: ModuleType, other: ModuleType) -> npt.NDArray[np.float64]:
    repeats = max(1, int(2e-3 / max(seconds(kernel, one, 3) / 3, 1e-6)))
    found = []
    for pair in range(PAIRS):
        order = (one, other) if pair % 2 else (other, one)
        took = {id(core): seconds(kernel, core, repeats) for core in order}
        found.append(took[id(one)] / took[id(other)])
    return np.array(found)


def seconds(kernel: Kernel, core: ModuleType, repeats: int) -> float:
    kernel(core)  # puts its data into the caches
    began = time.thread_time()
    for _ in range(repeats):
        kernel(core)
    return time.thread_time() - began


def interval(values: npt.NDArray[np.float64]) -> tuple[float, float, float]:
    random = np.random.default_rng(0)
    medians = np.median(random.choice(values, (2000, len(values))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return float(low), float(np.median(values)), float(high)


if __name__ == "__main__":
    sys.exit(main())
