# SPDX-License-Identifier: Apache-2.0
"""The ranks' training data: text in blocks, instructions with padding, labeled points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import IterableDataset

from experiments.s1.model import ModelSource, load_tokenizer
from experiments.s1.prepare import read_data
from experiments.s1.template import Example, encode_all, prompt
from faults.models import CLASSES, FEATURES

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 32
MAX_LENGTH = 128
POINTS = 4096
FILES = 16
Item = Any  # an item of a dataset, as its collate function takes it


class Corpus(NamedTuple):
    """One text in two encodings."""

    vocabulary: int
    pad_id: int
    blocks: list[list[int]]  # BLOCK tokens each, consecutive
    examples: list[Example]  # instruction and response, with labels only for the response


def make_corpus(data: str) -> Corpus:
    """The corpus of the file ``data`` (alpaca format), or of generated records for ``builtin``.

    Raises UserError for an unusable file.
    """
    records = read_data(data)
    texts = [prompt(r) + r.output for r in records]
    tokenizer = load_tokenizer(ModelSource(), texts=texts)
    tokens = [t for r in records for t in tokenizer(f"{r.instruction}\n{r.output}\n").input_ids]
    blocks = [tokens[i : i + BLOCK] for i in range(0, len(tokens) - BLOCK + 1, BLOCK)]
    examples = encode_all(records, tokenizer=tokenizer, max_length=MAX_LENGTH)
    return Corpus(len(tokenizer), tokenizer.pad_token_id, blocks, examples)


class Files:
    """Records in files, read in the order of ``files``."""

    def __init__(self, records: Sequence[Item], *, reverse: bool = False) -> None:
        size = -(-len(records) // FILES)
        parts = {f"part-{i:02}": records[i * size : (i + 1) * size] for i in range(FILES)}
        self.files = sorted(parts, reverse=reverse)
        self._records = [record for name in self.files for record in parts[name]]

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Item:
        return self._records[index]


class Stream(IterableDataset[Item]):
    """Every ``step``-th record starting at ``first``, repeatedly, each time in a new order that all
    ranks share: stripes of an ordered text would make the ranks' data differ in kind."""

    def __init__(self, records: Sequence[Item], *, first: int, step: int, seed: int = 0) -> None:
        self._records = records
        self._first, self._step, self._seed = first, step, seed

    def __iter__(self) -> Iterator[Item]:
        generator = torch.Generator().manual_seed(self._seed)
        while True:
            order = torch.randperm(len(self._records), generator=generator).tolist()
            for index in order[self._first :: self._step]:
                yield self._records[index]


def labeled_points(seed: int) -> list[tuple[Tensor, Tensor]]:
    """Normally distributed points, labeled by the largest of CLASSES random directions plus
    noise."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(POINTS, FEATURES, generator=generator)
    directions = torch.randn(FEATURES, CLASSES, generator=generator)
    noise = torch.randn(POINTS, CLASSES, generator=generator)
    labels = (inputs @ directions + 2 * noise).argmax(1)
    return list(zip(inputs, labels, strict=True))


def collate_blocks(blocks: Sequence[list[int]]) -> dict[str, Tensor]:
    """A batch in which every token is a target."""
    ids = torch.tensor(blocks)
    return {"input_ids": ids, "labels": ids.clone()}


def collate_points(points: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """A batch of :func:`labeled_points`."""
    inputs, labels = zip(*points, strict=True)
    return {"inputs": torch.stack(inputs), "labels": torch.stack(labels)}
