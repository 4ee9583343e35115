# SPDX-License-Identifier: Apache-2.0
"""What modules hold beside parameters and buffers, and whether a forward pass has written to it."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from presum._core import hash_bytes
from presum.devices.gradient_pass import fingerprint
from presum.fingerprints.families import WORD
from presum.fingerprints.states import elements

DEPTH, OBJECTS = 4, 1 << 17  # that are looked into
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
    left = itertools.count(OBJECTS, -1)
    return [
        Held(f"{name}.{key}".lstrip("."), value, _mark(value, DEPTH, left))
        for name, part in module.named_modules()
        for key, held in vars(part).items()
        if key not in OWN
        for value in _inside(held)
    ]


def written(held: list[Held]) -> str:
    """Where something is another than it was; nothing where nothing is."""
    left = itertools.count(2 * OBJECTS, -1)
    return next((h.where for h in held if _mark(h.value, DEPTH, left) != h.mark), "")


def _inside(held: Any) -> Iterator[object]:
    if isinstance(held, dict):
        yield from held.values()
    elif isinstance(held, (list, set)):
        yield from held
    else:
        yield held


def _mark(value: Any, depth: int, left: Iterator[int]) -> object:
    if next(left) < 0:
        raise ValueError("its modules hold more objects than are looked at")
    if isinstance(value, torch.Tensor):
        block = elements(value)
        number = None if block is None or block.numel() == 0 else int(fingerprint(block)) & WORD
        return (id(value), value._version, number)
    if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        return (id(value), hash_bytes(value.tobytes()))
    if depth == 0 or isinstance(value, (nn.Module, type)) or callable(value):
        return id(value)
    if isinstance(value, Mapping):
        return [(key, _mark(inside, depth - 1, left)) for key, inside in value.items()]
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return [_mark(inside, depth - 1, left) for inside in value]
    if hasattr(value, "__dict__"):
        return (id(value), _mark(vars(value), depth - 1, left))
    return id(value)
