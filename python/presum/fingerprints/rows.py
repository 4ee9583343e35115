# SPDX-License-Identifier: Apache-2.0
"""Hashes of the rows of a batch (docs/packet_format.md, "Row hash")."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from presum._core import hash_rows
from presum.devices.hashes import row_hashes
from presum.devices.readable import readable
from presum.devices.torch_pass import INTEGERS, ROW_PLACES, signed
from presum.fingerprints.families import WORD

ROWS_MAX = 1024  # per micro-batch; each costs the training thread about 1 us
OTHERS_MAX = 8
ROWS_KNOWN = 64  # enough to recognize a loader's batch
PREFERRED = ("input_ids", "inputs", "x", "pixel_values")
MASK = "attention_mask"
NamedTensors = list[tuple[str, torch.Tensor]]


class BatchTensors(NamedTuple):
    """The tensors among values."""

    readable: NamedTensors  # without scalars and empty tensors
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
    """The place of the tensor with the samples; None if there are no tensors."""
    names = [name for name, _ in tensors]
    wanted = (names.index(name) for name in PREFERRED if name in names)
    return next(wanted, 0 if tensors else None)


def hash_others(tensors: NamedTensors, at: int) -> int | torch.Tensor:
    """One hash of the tensors besides the samples that have an entry per sample, such as labels; on
    a device a tensor. 0 if there are none."""
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
    """The row hashes of one of the tensors; a tensor of hashes if it is on a device.

    A one-dimensional tensor is one row. A mask is included if it has the same shape. At most the
    first 1,024 rows are hashed; with ``elements_max`` at most the first 64, and fewer if they would
    exceed it, but at least one.
    """
    x = tensors[at][1].detach().resolve_conj()
    masks = (m for i, (name, m) in enumerate(tensors) if name == MASK and i != at)
    mask = next((m.detach() for m in masks if m.shape == x.shape and m.device == x.device), None)
    rows = x.shape[0] if x.dim() > 1 else 1
    columns = x.numel() // rows
    kept = min(rows, ROWS_MAX)
    if elements_max is not None:
        kept = min(kept, ROWS_KNOWN, max(1, elements_max // min(columns, ROW_PLACES)))
    if kept < rows:
        x, mask, rows = x[:kept], mask[:kept] if mask is not None else None, kept
    x, mask = x.contiguous(), mask.contiguous() if mask is not None else None
    if not x.is_cpu:
        return row_hashes(x.view(rows, -1), mask.view(rows, -1) if mask is not None else None)
    kept_of = None if mask is None else _words(mask).view(rows, columns)
    return hash_rows(_words(x).view(rows, columns), kept_of)


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of each element, in an integer of its width."""
    return tensor.view(INTEGERS[tensor.element_size()])
