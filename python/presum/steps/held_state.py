# SPDX-License-Identifier: Apache-2.0
"""The state of modules besides parameters and buffers, and whether a forward pass has written to
it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from presum._core import hash_bytes
from presum.devices.torch_pass import fingerprint
from presum.fingerprints.families import WORD
from presum.fingerprints.states import elements

DEPTH, OBJECTS = 5, 1 << 17  # limits of the search
PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
OWN = frozenset(vars(nn.Module()))


class Held(NamedTuple):
    """A module's other state, with marks to recognize a change."""

    name: str
    module: nn.Module
    marks: dict[str, object]


def held_state(module: nn.Module) -> list[Held]:
    """The other state of all submodules: their attributes, and objects inside these.

    Raises:
        ValueError: there are too many objects.
    """
    known = Marks()
    return [Held(name, part, _marks(part, known)) for name, part in module.named_modules()]


def written(held: list[Held]) -> str:
    """The name of something that has changed; "" if nothing has."""
    known = Marks()
    for one in held:
        now = _marks(one.module, known)
        for key in one.marks.keys() | now.keys():
            if [now.get(key, held)] != [one.marks.get(key, held)]:  # so that NaN equals itself
                return f"{one.name}.{key}".lstrip(".")
    return ""


def _marks(module: nn.Module, known: Marks) -> dict[str, object]:
    return {key: known.of(held, DEPTH) for key, held in vars(module).items() if key not in OWN}


class Marks:
    """Marks to recognize objects; an object in several modules is examined once."""

    def __init__(self) -> None:
        self._known: dict[int, object] = {}

    def of(self, value: Any, depth: int) -> object:
        """A mark that is equal as long as nothing is written to the value."""
        if isinstance(value, PLAIN):
            return value
        if id(value) not in self._known:
            if len(self._known) >= OBJECTS:
                raise ValueError("its modules hold more objects than presum examines")
            self._known[id(value)] = id(value)  # in case it contains itself
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
            inside = [(key, self.of(one, depth - 1)) for key, one in value.items()]
            return (id(value), inside)
        if isinstance(value, (list, tuple, set, frozenset, deque)):
            return (id(value), [self.of(inside, depth - 1) for inside in value])
        if hasattr(value, "__dict__"):
            return (id(value), self.of(vars(value), depth - 1))
        return id(value)
