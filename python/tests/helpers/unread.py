# SPDX-License-Identifier: Apache-2.0
"""Data sets that must not be read."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset


class Sized:
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        raise AssertionError("the dataset was called")


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        raise AssertionError("the dataset was called")
