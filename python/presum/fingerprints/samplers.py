# SPDX-License-Identifier: Apache-2.0
"""Describes how a loader draws its samples.

It only reads attributes, in the objects' own dictionaries. Of the user's code it calls only a
``__len__`` that computes with these. It sees through the wrappers of Accelerate, Trainer and
Lightning by the names of their attributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from presum.fingerprints.families import KIND, WORD, Values, hash_text

INNER_LOADERS = ("base_dataloader", "base_loader", "dataloader", "loader")
INNER_SAMPLERS = ("batch_sampler", "sampler", "base_sampler", "_sampler", "generator_sampler")
REPLICAS = ("num_replicas", "num_processes", "world_size", "data_parallel_size")
RANDOM = ("Random", "Shuffle")
PLAIN_NAMES = frozenset(["len", "int", "min", "max", "math", "ceil", "floor", "sum"])
DEPTH_MAX = 8


class Description(NamedTuple):
    """Fingerprints, and the same as text."""

    values: Values
    text: str


def inner_loader(loader: Any) -> Any:
    for _ in range(DEPTH_MAX):
        inside = first_kept([loader], INNER_LOADERS)
        if inside is None:
            break
        loader = inside
    return loader


def describe_sampler(source: Any) -> Description | None:
    """The sampler of a loader, or the sampler itself; None if there is no sampler with known
    settings.

    A seed counts only if the sampler takes one rank's share: ranks that each traverse the whole
    dataset should have seeds of their own.
    """
    chain = list(_chain(inner_loader(source)))
    if not chain:
        return None
    names = "(".join(type(part).__name__ for part in chain) + ")" * (len(chain) - 1)
    settings: dict[str, Any] = {
        "epoch": first_kept(chain, ("epoch", "_epoch")),
        "rank": first_kept(chain, ("rank", "process_index", "data_parallel_rank")),
        "replicas": first_kept(chain, REPLICAS),
        "length": _sampler_length(chain),
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
    words = {"seed": seed, **known, "replacement": first_kept(chain, ("replacement",))}
    shown = ", ".join(f"{k}={v}" for k, v in words.items() if v is not None and k != "epoch")
    return Description(values, f"{names}: {shown}")


def _chain(source: Any) -> Iterator[Any]:
    """Samplers from the outermost one inward; for an iterable dataset, the part that shards it."""
    if isinstance(source, DataLoader):
        iterable = isinstance(source.dataset, torch.utils.data.IterableDataset)
        source = source.dataset if iterable else first_kept([source], INNER_SAMPLERS)
    for _ in range(DEPTH_MAX):
        if source is None:
            return
        yield source
        stages = kept(source, "pipeline")  # of WebDataset
        inner = first_kept([source], (*INNER_SAMPLERS, "_distributed"))
        source = stages[0] if inner is None and isinstance(stages, list) and stages else inner


def kept(thing: Any, name: str) -> Any:
    """An attribute in the object's own dictionary, or None. Reading it runs no code."""
    return getattr(thing, "__dict__", {}).get(name)


def first_kept(parts: list[Any], names: tuple[str, ...]) -> Any:
    """The first attribute with one of these names in one of the parts."""
    found = (kept(part, name) for part in parts for name in names)
    return next((value for value in found if value is not None), None)


def _seed(chain: list[Any]) -> int | None:
    seed = first_kept(chain, ("seed", "initial_seed", "_seed"))
    if isinstance(seed, int):
        return seed
    generator = first_kept(chain, ("generator",))
    return generator.initial_seed() if isinstance(generator, torch.Generator) else None


def _shuffles(chain: list[Any]) -> bool | None:
    shuffle = first_kept(chain, ("shuffle", "_shuffle"))
    if isinstance(shuffle, bool):
        return shuffle
    names = [base.__name__ for base in type(chain[-1]).__mro__]
    if "SequentialSampler" in names:
        return False
    random = any(word in name for name in names for word in RANDOM)
    # Only a sampler that shuffles uses an epoch.
    keeps_epoch = hasattr(type(chain[-1]), "set_epoch") and kept(chain[-1], "epoch") is not None
    return True if random or keeps_epoch else None


def _drop_last(chain: list[Any]) -> int | None:
    """One bit for each part that has the setting."""
    bits = [kept(part, "drop_last") for part in chain]
    known = [bool(bit) for bit in bits if bit is not None]
    return sum(bit << place for place, bit in enumerate(known)) if known else None


def _sampler_length(chain: list[Any]) -> int | None:
    """The length in samples. A single sampler may yield batches, and count these."""
    sampler = chain[-1]
    indices = kept(sampler, "indices")
    if isinstance(indices, (list, range, torch.Tensor)):
        return len(indices)
    length = first_kept([sampler], ("num_samples", "_num_samples", "total_size"))
    if isinstance(length, int):
        return length
    return _own_length(sampler) if len(chain) > 1 else None


def _own_length(sampler: Any) -> int | None:
    """The result of the program's own ``__len__``, if it computes only with the sampler's
    attributes: another may draw, or wait for other ranks."""
    length = getattr(type(sampler), "__len__", None)
    of_torch = str(getattr(length, "__module__", "")).startswith("torch.utils.data.")
    if not of_torch and not _only_computes(length, sampler):
        return None
    try:
        return len(sampler)
    except Exception:
        return None


def _only_computes(method: Any, sampler: Any, depth: int = 0) -> bool:
    """Whether the method uses only data of the sampler and of the program, and methods of the
    sampler that do the same."""
    code = getattr(method, "__code__", None)
    if code is None or depth > 2:
        return False
    held, around = getattr(sampler, "__dict__", {}), method.__globals__
    for name in set(code.co_names) - PLAIN_NAMES:
        kept_here = held if name in held else around
        if name in kept_here:
            if callable(kept_here[name]):
                return False
        elif not _only_computes(getattr(type(sampler), name, None), sampler, depth + 1):
            return False
    return True
