# SPDX-License-Identifier: Apache-2.0
"""Hashes of the rows of a batch (docs/packet_format.md, "Row hash")."""

from __future__ import annotations

import weakref
from collections import UserDict
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, NamedTuple

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from presum._core import hash_rows
from presum.devices.hashes import row_hashes
from presum.devices.readable import readable
from presum.devices.torch_pass import INTEGERS, ROW_PLACES, signed
from presum.fingerprints.families import WORD

ROWS_MAX = 1024  # of a micro-batch: each costs the training thread about a microsecond
OTHERS_MAX = 8
ROWS_KNOWN = 64  # enough to know a loader's batch again
PREFERRED = ("input_ids", "inputs", "x", "pixel_values")
MASK = "attention_mask"
NamedTensors = list[tuple[str, torch.Tensor]]


class HashedRows(NamedTuple):
    """The first rows of a loader's tensor, as it was then."""

    version: int
    mask: weakref.ref[torch.Tensor] | None
    mask_version: int
    hashes: list[int]


_HASHED: MutableMapping[torch.Tensor, HashedRows] = (
    WeakTensorKeyDictionary()
)  # most often the forward pass gets that very tensor


class BatchTensors(NamedTuple):
    """What was found among values."""

    readable: NamedTensors  # without scalars and empty ones
    unread: list[str]  # classes of those that cannot be read


def tensors_among(values: Iterable[tuple[str, Any]]) -> BatchTensors:
    """The tensors among named values and one level inside them."""
    found = BatchTensors([], [])
    for key, x in _flat(values):
        if not isinstance(x, torch.Tensor):
            continue
        plain = readable(x)
        if plain is None:
            found.unread.append(type(x).__name__)
        elif plain.dim() > 0 and plain.numel() > 0 and plain.element_size() <= 8:
            found.readable.append((key, plain))
    return found


def _flat(values: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for name, value in values:
        if isinstance(value, (dict, UserDict)):
            yield from ((str(key), item) for key, item in value.items())
        elif isinstance(value, (list, tuple)):
            yield from (("", item) for item in value)
        else:
            yield name, value


def samples_among(tensors: NamedTensors) -> int | None:
    """Which of the tensors holds the samples; None where there is none."""
    names = [name for name, _ in tensors]
    wanted = (names.index(name) for name in PREFERRED if name in names)
    return next(wanted, 0 if tensors else None)


def hash_others(tensors: NamedTensors, at: int) -> int | torch.Tensor:
    """One hash of the tensors beside the samples that have an entry for each of them, such as
    labels; on a device a tensor. 0 where there is none."""
    count = tensors[at][1].shape[0]
    others = [x for i, (_, x) in enumerate(tensors) if i != at and x.shape[0] == count]
    on_host, on_device = 0, []
    for factor, x in zip(range(3, 3 + 2 * OTHERS_MAX, 2), others, strict=False):
        hashes = hash_tensor([("", x.unsqueeze(1) if x.dim() == 1 else x)], 0)
        if isinstance(hashes, torch.Tensor):
            on_device.append(hashes.sum() * factor)
        else:
            on_host += sum(hashes) * factor
    on_host &= WORD
    return torch.stack(on_device).sum() + signed(on_host) if on_device else on_host


def hash_tensor(
    tensors: NamedTensors, at: int, *, elements_max: int | None = None
) -> list[int] | torch.Tensor:
    """The row hashes of one of the tensors; a tensor of them where it lives on a device.

    A tensor of one dimension is one row. A mask counts where it has the same shape. At most the
    first 1,024 rows; with ``elements_max`` the first 64, and fewer, but at least one, where it
    would be exceeded.
    """
    x = tensors[at][1]
    masks = (m for i, (name, m) in enumerate(tensors) if name == MASK and i != at)
    mask = next((m for m in masks if m.shape == x.shape and m.device == x.device), None)
    rows = x.shape[0] if x.dim() > 1 else 1
    columns = x.numel() // rows
    kept = min(rows, ROWS_MAX)
    if elements_max is not None:
        kept = min(kept, ROWS_KNOWN, max(1, elements_max // min(columns, ROW_PLACES)))
    known = _hashed_before(x, mask)[:kept] if x.is_cpu else []
    if len(known) < kept:
        some = _matrix(x, len(known), kept, rows)
        some_mask = None if mask is None else _matrix(mask, len(known), kept, rows)
        if not x.is_cpu:
            return row_hashes(some, some_mask)
        known += hash_rows(_words(some), None if some_mask is None else _words(some_mask))
    if elements_max is not None and not any(t.is_inference() for t in (x, mask) if t is not None):
        of_mask = None if mask is None else weakref.ref(mask)
        version = 0 if mask is None else mask._version
        _HASHED[x] = HashedRows(x._version, of_mask, version, known)
    return known


def _hashed_before(x: torch.Tensor, mask: torch.Tensor | None) -> list[int]:
    hashed = _HASHED.get(x)
    if hashed is None or hashed.version != x._version:
        return []
    of_mask = None if hashed.mask is None else hashed.mask()
    same = of_mask is mask and (mask is None or hashed.mask_version == mask._version)
    return hashed.hashes if same else []


def _matrix(x: torch.Tensor, first: int, end: int, rows: int) -> torch.Tensor:
    """Some rows of a tensor that has so many."""
    plain = x.detach().resolve_conj()
    part = plain[first:end] if rows > 1 else plain
    return part.contiguous().view(end - first, -1)


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of each element, in an integer of its width."""
    return tensor.view(INTEGERS[tensor.element_size()])
