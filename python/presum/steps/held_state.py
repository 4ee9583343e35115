# SPDX-License-Identifier: Apache-2.0
"""What modules hold beside parameters and buffers, and whether a forward pass has written to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from presum._core import hash_bytes
from presum.devices.torch_pass import fingerprint
from presum.fingerprints.families import WORD
from presum.fingerprints.states import elements

DEPTH, OBJECTS = 4, 1 << 17  # that are looked into
PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
OWN = frozenset(vars(nn.Module()))


class Held(NamedTuple):
    """An object, and what it is known by."""

    where: str
    value: object
    mark: object


def held_state(module: nn.Module) -> list[Held]:
    """Of all its parts: what lies in their attributes, and in the lists, dictionaries and sets
    there. Whether these themselves grow is not looked at.

    Raises:
        ValueError: it is too much to be looked at.
    """
    mark = Marks().of
    return [
        Held(f"{name}.{key}".lstrip("."), value, mark(value, DEPTH))
        for name, part in module.named_modules()
        for key, held in vars(part).items()
        if key not in OWN
        for value in _inside(held)
    ]


def written(held: list[Held]) -> str:
    """Where something is another than it was; nothing where nothing is."""
    mark = Marks().of
    return next((h.where for h in held if mark(h.value, DEPTH) != h.mark), "")


def _inside(held: Any) -> Iterator[object]:
    if isinstance(held, dict):
        yield from held.values()
    elif isinstance(held, (list, set)):
        yield from held
    else:
        yield held


class Marks:
    """What objects are known by; one that several modules hold is looked into once."""

    def __init__(self) -> None:
        self._known: dict[int, object] = {}

    def of(self, value: Any, depth: int) -> object:
        """Equal for as long as nothing is written to it."""
        if isinstance(value, PLAIN):
            return value
        if id(value) not in self._known:
            if len(self._known) >= OBJECTS:
                raise ValueError("its modules hold more objects than are looked at")
            self._known[id(value)] = id(value)  # where it holds itself
            self._known[id(value)] = self._look(value, depth)
        return self._known[id(value)]

    def _look(self, value: Any, depth: int) -> object:
        if isinstance(value, torch.Tensor):
            block = elements(value)
            number = None if block is None or block.numel() == 0 else int(fingerprint(block)) & WORD
            return (id(value), value._version, number)
        if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
            return (id(value), hash_bytes(value.tobytes()))
        if depth == 0 or isinstance(value, (nn.Module, type)) or callable(value):
            return id(value)
        if isinstance(value, Mapping):
            return [(key, self.of(inside, depth - 1)) for key, inside in value.items()]
        if isinstance(value, (list, tuple, set, frozenset, deque)):
            return [self.of(inside, depth - 1) for inside in value]
        if hasattr(value, "__dict__"):
            return (id(value), self.of(vars(value), depth - 1))
        return id(value)
