# SPDX-License-Identifier: Apache-2.0
"""The form of what a model is given, and how large its numbers are."""

from __future__ import annotations

from collections.abc import Callable

import torch

from presum.fingerprints.clipping import norm_values
from presum.fingerprints.families import LateValues
from presum.fingerprints.rows import NamedTensors

STEPS, VALUED = 8, 4  # that are looked at; the last of them, whose values are too
TENSORS_MAX = 16
ROWS_MAX, COLUMNS_MAX = 64, 1024  # of the samples: the first rows, evenly spaced columns


class InputForms:
    """Of a model's training forwards in its first steps. ``say`` takes facts. Values are not looked
    at in the very first ones, where a device has most to do."""

    def __init__(self, device: torch.device, say: Callable[[dict[str, str]], None]) -> None:
        self._device = device
        self._say = say
        self._sizes: dict[str, list[int | None]] = {}  # None: of a dimension whose size changes
        self._steps = 0

    def __call__(self, tensors: NamedTensors, at: int) -> LateValues:
        """``at``: which of them holds the samples. Their mean and spread, if they are real."""
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
        """Of these forwards."""
        if self._steps < STEPS and self._sizes:
            self._steps += 1
            if self._steps == STEPS:
                self._say(self._trailing_sizes())

    def _trailing_sizes(self) -> dict[str, str]:
        """Of the first dimension, which counts rows, nothing is said, nor of those that change from
        batch to batch, as padded lengths do."""
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
