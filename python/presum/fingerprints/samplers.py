# SPDX-License-Identifier: Apache-2.0
"""How a loader draws its samples, and what it draws them from.

Only attributes are read, where objects keep them; of the user's nothing is called but the data
set's ``__len__``, once.
Wrappers of Accelerate, Trainer and Lightning are looked through by the names of their attributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from presum.fingerprints.families import KIND, WORD, Values, hash_text

INNER_LOADERS = ("base_dataloader", "base_loader", "dataloader", "loader")
INNER_SAMPLERS = ("batch_sampler", "sampler", "base_sampler", "_sampler", "generator_sampler")
INNER_DATASETS = ("dataset", "datasets", "_dataset")
RANDOM = ("Random", "Shuffle")
DEPTH_MAX = 8
ENTRIES_MAX = 10_000
LISTS = ("samples", "imgs", "files", "paths", "file_list", "filenames", "data_files", "classes")
TEXTS = ("split",)


class Description(NamedTuple):
    """Fingerprints, and the same in words."""

    values: Values
    text: str


def inner_loader(loader: Any) -> Any:
    """The loader inside wrappers."""
    for _ in range(DEPTH_MAX):
        inside = _first([loader], INNER_LOADERS)
        if inside is None:
            break
        loader = inside
    return loader


def describe_sampler(source: Any) -> Description | None:
    """The sampler of a loader, or the sampler itself; None where there is none that says a thing.

    A seed counts only where the sampler takes one worker's share: workers that each walk the whole
    set are right to have their own.
    """
    chain = list(_chain(inner_loader(source)))
    if not chain:
        return None
    names = "(".join(type(part).__name__ for part in chain) + ")" * (len(chain) - 1)
    settings: dict[str, Any] = {
        "epoch": _first(chain, ("epoch", "_epoch")),
        "rank": _first(chain, ("rank", "process_index")),
        "replicas": _first(chain, ("num_replicas", "num_processes", "world_size")),
        "length": _sampler_length(chain[-1]),
        "shuffle": _shuffles(chain),
        "drop_last": _drop_last(chain),
        "sets_epoch": any(hasattr(type(part), "set_epoch") for part in chain),
    }
    seed = _seed(chain)
    known = {name: int(v) for name, v in settings.items() if isinstance(v, (int, bool))}
    values = [(KIND["sampler_class"], hash_text(names))]
    values += [(KIND[f"sampler_{name}"], value & WORD) for name, value in known.items()]
    if seed is not None and "replicas" in known:
        values.append((KIND["sampler_seed"], seed & WORD))
    words = {"seed": seed, **known, "replacement": _first(chain, ("replacement",))}
    shown = ", ".join(f"{k}={v}" for k, v in words.items() if v is not None and k != "epoch")
    return Description(values, f"{names}: {shown}")


def _chain(source: Any) -> Iterator[Any]:
    """Samplers from the outermost one on; of an iterable data set what divides it."""
    if isinstance(source, DataLoader):
        iterable = isinstance(source.dataset, torch.utils.data.IterableDataset)
        source = source.dataset if iterable else _first([source], INNER_SAMPLERS)
    for _ in range(DEPTH_MAX):
        if source is None:
            return
        yield source
        source = _first([source], (*INNER_SAMPLERS, "_distributed"))


def kept(thing: Any, name: str) -> Any:
    """An attribute that an object itself keeps, or None: reading it runs nobody's code."""
    return getattr(thing, "__dict__", {}).get(name)


def _first(parts: list[Any], names: tuple[str, ...]) -> Any:
    """The first attribute of one of these names that one of the parts keeps."""
    found = (kept(part, name) for part in parts for name in names)
    return next((value for value in found if value is not None), None)


def _seed(chain: list[Any]) -> int | None:
    seed = _first(chain, ("seed", "initial_seed", "_seed"))
    if isinstance(seed, int):
        return seed
    generator = _first(chain, ("generator",))
    return generator.initial_seed() if isinstance(generator, torch.Generator) else None


def _shuffles(chain: list[Any]) -> bool | None:
    shuffle = _first(chain, ("shuffle", "_shuffle"))
    if isinstance(shuffle, bool):
        return shuffle
    names = [base.__name__ for base in type(chain[-1]).__mro__]
    if "SequentialSampler" in names:
        return False
    return True if any(word in name for name in names for word in RANDOM) else None


def _drop_last(chain: list[Any]) -> int | None:
    """One bit for each part that has the setting."""
    bits = [kept(part, "drop_last") for part in chain]
    known = [bool(bit) for bit in bits if bit is not None]
    return sum(bit << place for place, bit in enumerate(known)) if known else None


def _sampler_length(sampler: Any) -> int | None:
    """As far as the sampler keeps it itself: its ``__len__`` may be the user's."""
    indices = kept(sampler, "indices")
    if isinstance(indices, (list, range, torch.Tensor)):
        return len(indices)
    length = _first([sampler], ("num_samples", "_num_samples", "total_size"))
    return length if isinstance(length, int) else None


def _length(thing: Any) -> int | None:
    try:
        return len(thing)
    except Exception:
        return None


def describe_data(dataset: Any) -> Description:
    """Class and length of a data set and a hash of what it lists, such as its files.

    Paths count by their last two parts, for machines keep data in different places; fingerprints
    of Hugging Face data sets are left out, for they hold times and, at times, random numbers.
    """
    parts = _datasets(dataset)
    names = "(".join(type(part).__name__ for part in parts) + ")" * (len(parts) - 1)
    values = [(KIND["data_class"], hash_text(names))]
    length = _length(dataset)
    if length is not None:
        values.append((KIND["data_length"], length))
    found = [listed for part in parts for listed in _manifest(part)]
    if found:
        values.append((KIND["data_attributes"], hash_text(repr(found))))
    listed = ", ".join(dict.fromkeys(name for name, _ in found))
    return Description(
        values, f"{names}: length={length}" + (f", compared by {listed}" if listed else "")
    )


def _datasets(dataset: Any) -> list[Any]:
    """The data set and those inside it, level by level."""
    parts, level = [dataset], [dataset]
    while level and len(parts) < DEPTH_MAX:
        inside = [_first([part], INNER_DATASETS) for part in level]
        level = [x for part in inside for x in (part if isinstance(part, list) else [part])]
        level = [part for part in level if hasattr(part, "__dict__")]
        parts += level
    return parts[:DEPTH_MAX]


def _manifest(dataset: Any) -> Iterator[tuple[str, Any]]:
    for name in TEXTS:
        if isinstance(text := kept(dataset, name), str):
            yield name, text
    for name in LISTS:
        entries = kept(dataset, name)
        if isinstance(entries, (list, tuple)) and entries:
            step = -(-len(entries) // ENTRIES_MAX)
            shown = [_entry(entry) for entry in entries[::step]]
            if all(text is not None for text in shown):
                yield name, (len(entries), shown)


def _entry(entry: Any) -> str | None:
    """The end of a path or text; of a tuple its first part's, as in (path, class)."""
    if isinstance(entry, tuple) and entry:
        entry = entry[0]
    if isinstance(entry, PurePath):
        entry = entry.as_posix()
    return "/".join(entry.rsplit("/", 2)[-2:]) if isinstance(entry, str) else None
