# SPDX-License-Identifier: Apache-2.0
"""Which batch of which loader a forward pass was given."""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from presum._core import RowMatcher
from presum.fingerprints.families import KIND, Families, Values
from presum.fingerprints.loaders import LOADER_EVENTS, LOADERS_MAX, Batch, Loader
from presum.fingerprints.samplers import DEPTH_MAX, Description, inner_loader

QUEUE_MAX = 64


class KnownRow(NamedTuple):
    """One row that a loader handed out."""

    batch: Batch
    place: int  # of the tensor in the batch
    row: int
    in_mode: bool  # the model was in the same mode when the batch was handed out


class SampleOrigin(NamedTuple):
    """Where the samples of a micro-batch came from."""

    loader: Loader
    batch: Batch | None
    indices: tuple[int, ...]
    rows: Sequence[KnownRow] = ()
    again: bool = False  # the program made them of the batch that was trained on before


class ForwardState(NamedTuple):
    """A forward pass, as far as it decides which batches it may have been given."""

    offered: int  # batches that loaders had handed out by then
    trains: bool  # the model's mode
    looked_at: int  # rows that it was given without gradients since the last of them


class BatchGuess(NamedTuple):
    """The batch of a forward pass, if batches are used in their order."""

    batch: Batch
    alone: bool  # no other was handed out since the forward pass before


class BatchFinder:
    """Finds the batches of a model's forward passes among those that loaders handed out.

    By row hashes (RowMatcher). Where those never match (a model may be given a part of a batch's
    columns), a batch is taken to be used in its order if it is the only one handed out since the
    forward pass before, if it has no hashes, or if the user named the loader; else only the sampler
    is told, and only if there is but one loader. Samples that are also evaluated on are told apart
    by the mode in which the model was when they were handed out. ``offer`` and ``guess`` are for
    the training thread, ``find`` for the one that makes packets.
    """

    def __init__(self, families: Families, module: nn.Module, data: object) -> None:
        self._families = families
        self._module = weakref.ref(module)
        self._given = [LOADER_EVENTS.loader(inner_loader(source)) for source in _sources(data)]
        self._matcher = RowMatcher()
        # That the matcher knows, and whether the model trained then.
        self._batches: dict[int, tuple[Batch, bool]] = {}
        self._offered = 0  # batches so far
        self._guessed = 0  # batches offered before the last guess
        self._looked_at = 0  # rows, of the last batch
        self._queue: deque[Batch] = deque(maxlen=QUEUE_MAX)
        self._loaders: deque[Loader] = deque(self._given, maxlen=LOADERS_MAX)
        self._by_hash = False
        # The batch that was found last, if it was the newest: its number and rows.
        self._last_used: tuple[int, int, Batch] | None = None

    def offer(self, batch: Batch) -> None:
        loader = batch.of.loader
        if self._given and loader not in self._given:
            return
        self._offered += 1
        self._looked_at = 0
        if torch.is_grad_enabled() and loader not in self._loaders:
            self._loaders.append(loader)
        self._families.call("data", self._keep, batch)
        if not self._by_hash:
            self._queue.append(batch)

    def now(self) -> ForwardState:
        return ForwardState(self._offered, self._trains(), self._looked_at)

    def looks_at(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model is given these without gradients."""
        given = (x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor) and x.dim())
        self._looked_at += next((x.shape[0] for x in given), 0)

    def _trains(self) -> bool:
        module = self._module()
        return module is None or module.training

    def fail(self, error: Exception) -> None:
        self._families.fail("data", error)

    def guess(self) -> BatchGuess | None:
        """The batch that a forward pass was given if batches are used in their order."""
        alone = self._offered == self._guessed + 1
        self._guessed = self._offered
        if self._by_hash or not self._queue:
            return None
        if not alone:
            return BatchGuess(self._queue.popleft(), alone)
        newest = self._queue.pop()
        self._queue.clear()
        return BatchGuess(newest, alone)

    def find(
        self, hashes: Sequence[int], guess: BatchGuess | None, state: ForwardState
    ) -> SampleOrigin | None:
        """Where the rows of a micro-batch came from; None where that is not known. ``guess`` and
        ``state`` are those of its forward pass."""
        found = self._matcher.take(hashes, state.offered, state.trains)
        # The training thread may have dropped a batch since.
        known = [
            KnownRow(dealt[0], place, row, dealt[1] == state.trains)
            for number, place, row in (one for one in found if one is not None)
            if (dealt := self._batches.get(number)) is not None
        ]
        if known:
            self._by_hash = True
            self._queue.clear()
            known = _of_one_loader(known)
            batch = known[-1].batch
            batch.of.loader.places |= {row.place for row in known}
            newest = self._batches.get(state.offered, (None,))[0] is batch
            self._last_used = (state.offered, len(hashes), batch) if newest else None
            return SampleOrigin(batch.of.loader, batch, _indices(known, len(found)), known)
        if self._by_hash:
            return self._used_again(len(hashes), state)
        if len(self._loaders) != 1:
            return None
        return self._in_order(len(hashes), guess)

    def _used_again(self, rows: int, state: ForwardState) -> SampleOrigin | None:
        """Perhaps the batch of before, of which a program has changed the rows, as adversarial
        training does: as many, and no loader has handed out another since."""
        if self._last_used is None or self._last_used[:2] != (state.offered, rows):
            return None
        batch = self._last_used[2]
        return SampleOrigin(batch.of.loader, batch, (), again=True)

    def _in_order(self, rows: int, guess: BatchGuess | None) -> SampleOrigin:
        loader = self._loaders[0]
        if guess is None or guess.batch.of.loader is not loader:
            return SampleOrigin(loader, None, ())
        if not (guess.alone or not guess.batch.rows or self._given):
            return SampleOrigin(loader, None, ())
        indices = guess.batch.indices or ()
        if indices and rows not in (0, len(indices)):
            return SampleOrigin(loader, None, ())  # they are of something else (prompts, a grid)
        return SampleOrigin(loader, guess.batch, indices)

    def _keep(self, batch: Batch) -> None:
        trains = self._trains()
        self._batches[self._offered] = batch, trains
        oldest = self._matcher.offer(self._offered, batch.rows, trains)
        while (first := next(iter(self._batches))) < oldest:
            del self._batches[first]


def _of_one_loader(known: list[KnownRow]) -> list[KnownRow]:
    """Those of the loader that dealt the first in the mode that the model is in: of a batch only
    the first rows may be known, and some may also be in a batch that was evaluated on."""
    loader = next((one for one in known if one.in_mode), known[0]).batch.of.loader
    return [one for one in known if one.batch.of.loader is loader]


def _indices(known: Sequence[KnownRow], rows: int) -> tuple[int, ...]:
    """The data set's indices of so many rows, of which some were found; none if in doubt."""
    first = known[0]
    indices = first.batch.indices or ()
    whole = [first._replace(row=row) for row in range(len(first.batch.rows[first.place]))]
    if known == whole and rows in (1, len(indices)):
        return indices  # of the whole batch, by its first rows; or it is one row
    each = [(r.batch.indices or (), len(r.batch.rows[r.place]), r.row) for r in known]
    if len(known) < rows or any(len(of_batch) != count for of_batch, count, _ in each):
        return ()
    return tuple(of_batch[row] for of_batch, _, row in each)


class UntrainedRows:
    """Rows of batches of which the others were trained on."""

    def __init__(self) -> None:
        self._trained: Counter[Batch] = Counter()  # rows, of the batches of the last step
        self._chosen_from: set[Batch] = set()  # the model was given all of these before

    def step(self, origins: Iterable[tuple[SampleOrigin, int]]) -> Values:
        """Those of the batches that this step is not of any more. ``origins`` of its rows, each
        with the rows that the model was given without gradients just before."""
        trained: Counter[Batch] = Counter()
        for origin, looked_at in origins:
            batch = origin.batch
            if batch is not None and batch.indices is not None:
                trained[batch] += len(origin.indices) or len(batch.indices)  # or it is not known
                if looked_at >= len(batch.indices):
                    self._chosen_from.add(batch)
        done = self._trained.keys() - trained.keys()
        left = {"rows_cut": 0, "rows_passed_over": 0}
        for batch in done:
            name = "rows_passed_over" if batch in self._chosen_from else "rows_cut"
            left[name] += max(len(batch.indices or ()) - self._trained.pop(batch), 0)
        self._chosen_from -= done
        self._trained += trained
        return [(KIND[name], count) for name, count in left.items() if count]


def first_columns(
    hashes: Sequence[Sequence[int]], sources: Sequence[SampleOrigin | None]
) -> list[bool]:
    """Of a step's micro-batches, whether each is the first that has its samples: two forward
    passes may be given two columns of one batch (pairs of texts), which were drawn once. One
    whose rows are not all known, or are those of an earlier one, is none of these."""
    drawn: set[tuple[int, int]] = set()
    seen: list[Sequence[int]] = []
    first = []
    for rows, source in zip(hashes, sources, strict=True):
        known = source.rows if source is not None else ()
        samples = {(id(one.batch), one.row) for one in known}
        again = len(known) < len(rows) or rows in seen
        first.append(not samples or again or not samples <= drawn)
        drawn |= samples
        seen.append(rows)
    return first


def _sources(data: Any) -> list[Any]:
    """What ``Record(data=)`` names: one loader or sampler, or several."""
    if data is None:
        return []
    several = isinstance(data, (list, tuple, set, frozenset))
    return list(data)[:DEPTH_MAX] if several else [data]


def describe(source: SampleOrigin) -> tuple[Values, dict[str, Description]]:
    """Where in its loader's passes a batch stands, and what is known of the loader, by family."""
    sampler = source.batch.of.sampler if source.batch else source.loader.sampler()
    found = {"sampler": sampler, "data": source.loader.data}
    position = source.batch.position() if source.batch else []
    return position, {family: about for family, about in found.items() if about is not None}
