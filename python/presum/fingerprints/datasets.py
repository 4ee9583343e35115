# SPDX-License-Identifier: Apache-2.0
"""Describes the dataset of a loader.

It only reads attributes, in the objects' own dictionaries. Of the user's code it calls only the
dataset's ``__len__``, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

from presum.devices.readable import readable
from presum.fingerprints.families import KIND, hash_text
from presum.fingerprints.rows import hash_tensor
from presum.fingerprints.samplers import DEPTH_MAX, Description, first_kept, kept

INNER_DATASETS = ("dataset", "datasets", "_dataset")
ENTRIES_MAX = 10_000
ROWS_MAX = 256
ROW_PLACES = 4096  # first elements of a row, which may be an image or a file
TENSORS_MAX = 16
LISTS = ("samples", "imgs", "files", "paths", "file_list", "filenames", "data_files", "classes")
CONTENTS = ("tensors", "data", "targets", "labels")


def _length(thing: Any) -> int | None:
    try:
        return len(thing)
    except Exception:
        return None


def describe_data(dataset: Any) -> Description:
    """The class and length of a dataset, and hashes of its lists (such as files), of the positions
    in a ``Subset`` or a similar class, and of 256 evenly spaced rows of its tensors.

    Only the last two parts of a path count, because machines store data in different places. Two
    parts of Hugging Face datasets are ignored: their fingerprints, which contain times and
    sometimes random numbers, and ``_indices``, which ``split_dataset_by_node`` makes different on
    each rank.
    """
    parts = _datasets(dataset)
    names = "(".join(type(part).__name__ for part in parts) + ")" * (len(parts) - 1)
    values = [(KIND["data_class"], hash_text(names))]
    length = _length(dataset)
    if length is not None:
        values.append((KIND["data_length"], length))
    found = [listed for part in parts for listed in _manifest(part)]
    held: dict[str, list[Any]] = {
        "data_attributes": found,
        "data_subset": [hashed for part in parts if (hashed := _subset(part)) is not None],
        "data_share": [hashed for part in parts if (hashed := _share(part)) is not None],
        "data_contents": [hashed for part in parts for hashed in _contents(part)],
    }
    values += [(KIND[name], hash_text(repr(told))) for name, told in held.items() if told]
    listed = ", ".join(dict.fromkeys(name for name, _ in found))
    return Description(
        values, f"{names}: length={length}" + (f", compared by {listed}" if listed else "")
    )


def _datasets(dataset: Any) -> list[Any]:
    """The dataset and those inside it, level by level."""
    parts, level = [dataset], [dataset]
    while level and len(parts) < DEPTH_MAX:
        inside = [first_kept([part], INNER_DATASETS) for part in level]
        level = [x for part in inside for x in (part if isinstance(part, list) else [part])]
        level = [part for part in level if hasattr(part, "__dict__")]
        parts += level
    return parts[:DEPTH_MAX]


def _manifest(dataset: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(split := kept(dataset, "split"), str):
        yield "split", split
    for name in LISTS:
        entries = kept(dataset, name)
        if isinstance(entries, (list, tuple)) and entries:
            shown = [_entry(entry) for entry in _spaced(entries, ENTRIES_MAX)]
            if all(text is not None for text in shown):
                yield name, (len(entries), shown)


def _entry(entry: Any) -> str | None:
    """The end of a path or text; of a tuple, that of its first element, as in (path, class)."""
    if isinstance(entry, tuple) and entry:
        entry = entry[0]
    if isinstance(entry, PurePath):
        entry = entry.as_posix()
    return "/".join(entry.rsplit("/", 2)[-2:]) if isinstance(entry, str) else None


def _spaced(entries: Any, most: int) -> Any:
    return entries[:: -(-len(entries) // most)]


def _subset(dataset: Any) -> tuple[int, int] | None:
    """The number of positions in another dataset, and their hash."""
    return _positions(dataset) if isinstance(dataset, Subset) else None


def _share(dataset: Any) -> tuple[int, int] | None:
    """The same for a class of the program, whose ``indices`` may be each rank's share, as in
    YOLOv5."""
    return None if isinstance(dataset, Subset) else _positions(dataset)


def _positions(dataset: Any) -> tuple[int, int] | None:
    indices = kept(dataset, "indices")
    array = isinstance(indices, (torch.Tensor, np.ndarray)) and indices.ndim == 1
    if not (array or isinstance(indices, (list, tuple, range))) or len(indices) == 0:
        return None
    shown = _spaced(indices, ENTRIES_MAX)
    return len(indices), hash_text(repr(shown.tolist() if array else list(shown)))


def _contents(dataset: Any) -> Iterator[tuple[str, list[int]]]:
    for name in CONTENTS:
        held = kept(dataset, name)
        if isinstance(held, list) and held and all(isinstance(x, int) for x in held[:TENSORS_MAX]):
            yield name, [len(held), hash_text(repr(_spaced(held, ENTRIES_MAX)))]
            continue
        several = held[:TENSORS_MAX] if isinstance(held, (tuple, list)) else (held,)
        for tensor in several:
            hashes = _hash_rows(tensor)
            if hashes is not None:
                yield name, hashes


def _hash_rows(held: Any) -> list[int] | None:
    if isinstance(held, np.ndarray) and held.ndim > 0 and len(held):
        if held.dtype.kind not in "iufb" or held.dtype.itemsize > 8 or not held.dtype.isnative:
            return None
        cut = [row.reshape(-1)[:ROW_PLACES] for row in _spaced(held, ROWS_MAX)]
        rows = torch.from_numpy(np.stack(cut))
    elif isinstance(held, torch.Tensor) and held.is_cpu and held.dim() > 0 and len(held):
        plain = readable(held.detach())
        if plain is None or plain.element_size() > 8:
            return None
        rows = torch.stack([row.reshape(-1)[:ROW_PLACES] for row in _spaced(plain, ROWS_MAX)])
    else:
        return None
    if rows.numel() == 0:
        return None
    hashes = hash_tensor([("", rows)], 0)
    assert isinstance(hashes, list)
    return [len(held), *hashes]
