# SPDX-License-Identifier: Apache-2.0
"""The shape and dtype of a model's inputs, and the scale of their values."""

from __future__ import annotations

from collections.abc import Callable

import torch

from presum.fingerprints.clipping import norm_values
from presum.fingerprints.families import LateValues
from presum.fingerprints.rows import NamedTensors

STEPS, VALUED = 8, 4  # steps examined; the last VALUED of them with values
TENSORS_MAX = 16
ROWS_MAX, COLUMNS_MAX = 64, 1024  # of the samples: the first rows, evenly spaced columns


class InputForms:
    """Examines a model's training forwards in its first steps. ``say`` takes facts. It skips values
    in the very first steps, when a device is busiest."""

    def __init__(self, device: torch.device, say: Callable[[dict[str, str]], None]) -> None:
        self._device = device
        self._say = say
        self._sizes: dict[str, list[int | None]] = {}  # None: a dimension whose size changes
        self._steps = 0

    def __call__(self, tensors: NamedTensors, at: int) -> LateValues:
        """``at``: the place of the tensor with the samples. Returns their mean and spread if they
        are floating point."""
        if self._steps == STEPS:
            return []
        named = {name or str(i): x for i, (name, x) in enumerate(tensors[:TENSORS_MAX])}
        if not self._sizes:
            self._sizes = {name: [*x.shape] for name, x in named.items()}
            self._say({f"input.{name}": _form(x) for name, x in named.items()})
        for name, held in self._sizes.items():
            now = named.get(name)
            same = now is not None and now.dim() == len(held)
            sizes = now.shape if now is not None and same else [-1] * len(held)
            self._sizes[name] = [a if a == b else None for a, b in zip(held, sizes, strict=True)]
        return self._values(tensors[at][1]) if self._steps >= STEPS - VALUED else []

    def step_ends(self) -> None:
        """The step of these forwards ends."""
        if self._steps < STEPS and self._sizes:
            self._steps += 1
            if self._steps == STEPS:
                self._say(self._trailing_sizes())

    def _trailing_sizes(self) -> dict[str, str]:
        """Sizes of all dimensions except the first, which counts rows, and those that change from
        batch to batch, such as padded lengths."""
        return {
            f"input.{name}.size_{dim}": str(size)
            for name, sizes in self._sizes.items()
            for dim, size in enumerate(sizes)
            if dim > 0 and size is not None
        }

    def _values(self, samples: torch.Tensor) -> LateValues:
        if not samples.is_floating_point() or samples.dim() < 2:
            return []
        first = samples.detach()[:ROWS_MAX]
        rows = first.reshape(first.shape[0], -1)
        step = -(-rows.shape[1] // COLUMNS_MAX)
        spread, mean = torch.std_mean(rows[:, ::step].float(), correction=0)
        return [
            *norm_values("input_mean", mean, self._device),
            *norm_values("input_spread", spread, self._device),
        ]


def _form(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} in {tensor.dim()} dimensions"
