# SPDX-License-Identifier: Apache-2.0
"""Finds which batch of which loader a forward pass was given."""

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
    """A row that a loader yielded."""

    batch: Batch
    place: int  # of the tensor in the batch
    row: int
    in_mode: bool  # the model was in the same mode when the batch was yielded


class SampleOrigin(NamedTuple):
    """Where the samples of a micro-batch came from."""

    loader: Loader
    batch: Batch | None
    indices: tuple[int, ...]
    rows: Sequence[KnownRow] = ()
    again: bool = False  # the program derived them from the batch that was trained on before

    @property
    def changed(self) -> bool:
        """Whether the model was given other rows than the loader yielded."""
        known = self.batch is not None and bool(self.batch.rows)
        return known and not self.rows and not self.again


class ForwardState(NamedTuple):
    """The state at a forward pass that decides which batches it can have been given."""

    offered: int  # batches that loaders had yielded by then
    trains: bool  # the model's mode
    looked_at: int  # rows that it was given without gradients since the last batch


class BatchGuess(NamedTuple):
    """The batch of a forward pass, assuming that batches are used in order."""

    batch: Batch
    alone: bool  # no other was yielded since the previous forward pass


class BatchFinder:
    """Finds the batches of a model's forward passes among those that loaders yielded.

    It matches row hashes (RowMatcher). If all rows of a micro-batch never match (a model may be
    given some of a batch's columns, and where only padding is cut, some rows still match), a batch
    is assumed to be used in order if it is the only one since the previous forward pass, if it has
    no hashes, or if the user named the loader; else only the sampler is reported, and only if there
    is a single loader. Samples that are also evaluated on are
    distinguished by the model's mode when they were yielded. ``offer`` and ``guess`` are for the
    training thread, ``find`` for the thread that makes packets.
    """

    def __init__(self, families: Families, module: nn.Module, data: object) -> None:
        self._families = families
        self._module = weakref.ref(module)
        self._given = [LOADER_EVENTS.loader(inner_loader(source)) for source in _sources(data)]
        self._matcher = RowMatcher()
        # Batches that the matcher knows, and whether the model was training then.
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
        """The model is given these inputs without gradients."""
        given = (x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor) and x.dim())
        self._looked_at += next((x.shape[0] for x in given), 0)

    def _trains(self) -> bool:
        module = self._module()
        return module is None or module.training

    @property
    def trains(self) -> bool:
        return self._module() is not None

    def fail(self, error: Exception) -> None:
        self._families.fail("data", error)

    def guess(self) -> BatchGuess | None:
        """The batch of a forward pass, assuming that batches are used in order."""
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
        """Where the rows of a micro-batch came from; None if unknown. ``guess`` and ``state`` are
        those of its forward pass."""
        found = self._matcher.take(hashes, state.offered, state.trains)
        # The training thread may have dropped a batch since.
        known = [
            KnownRow(dealt[0], place, row, dealt[1] == state.trains)
            for number, place, row in (one for one in found if one is not None)
            if (dealt := self._batches.get(number)) is not None
        ]
        if known:
            known = _of_one_loader(known)
            batch = known[-1].batch
            if len(known) >= min(len(hashes), len(batch.rows[known[-1].place])):
                self._by_hash = True
                self._queue.clear()
            elif not self._by_hash and guess is not None and guess.alone:
                in_order = self._in_order(len(hashes), guess)
                if in_order is not None and in_order.batch is batch:
                    return in_order
            batch.of.loader.places |= {row.place for row in known}
            newest = self._batches.get(state.offered, (None,))[0] is batch
            self._last_used = (state.offered, len(hashes), batch) if newest else None
            return SampleOrigin(batch.of.loader, batch, _indices(known, len(found)), known)
        if self._by_hash:
            return self._used_again(len(hashes), state)
        return self._in_order(len(hashes), guess)

    def _used_again(self, rows: int, state: ForwardState) -> SampleOrigin | None:
        """Possibly the previous batch, whose rows the program has changed, as in adversarial
        training: it has the same number of rows, and no loader has yielded another since."""
        if self._last_used is None or self._last_used[:2] != (state.offered, rows):
            return None
        batch = self._last_used[2]
        return SampleOrigin(batch.of.loader, batch, (), again=True)

    def _in_order(self, rows: int, guess: BatchGuess | None) -> SampleOrigin | None:
        if len(self._loaders) != 1:
            return None
        loader = self._loaders[0]
        if guess is None or guess.batch.of.loader is not loader:
            return SampleOrigin(loader, None, ())
        if not (guess.alone or not guess.batch.rows or self._given):
            return SampleOrigin(loader, None, ())
        indices = guess.batch.indices or ()
        if indices and rows not in (0, len(indices)):
            return SampleOrigin(loader, None, ())  # they belong to something else (prompts, a grid)
        return SampleOrigin(loader, guess.batch, indices)

    def _keep(self, batch: Batch) -> None:
        trains = self._trains()
        self._batches[self._offered] = batch, trains
        oldest = self._matcher.offer(self._offered, batch.rows, trains)
        while (first := next(iter(self._batches))) < oldest:
            del self._batches[first]


def _of_one_loader(known: list[KnownRow]) -> list[KnownRow]:
    """Rows of the loader that yielded the first one in the model's present mode. Only the first
    rows of a batch may be known, and some may also be in a batch that was evaluated on."""
    loader = next((one for one in known if one.in_mode), known[0]).batch.of.loader
    return [one for one in known if one.batch.of.loader is loader]


def _indices(known: Sequence[KnownRow], rows: int) -> tuple[int, ...]:
    """The dataset's indices of this many rows, some of which were found; empty if in doubt."""
    first = known[0]
    indices = first.batch.indices or ()
    whole = [first._replace(row=row) for row in range(len(first.batch.rows[first.place]))]
    if known == whole and rows in (1, len(indices)):
        return indices  # of the whole batch, by its first rows, or of one row
    each = [(r.batch.indices or (), len(r.batch.rows[r.place]), r.row) for r in known]
    if len(known) < rows or any(len(of_batch) != count for of_batch, count, _ in each):
        return ()
    return tuple(of_batch[row] for of_batch, _, row in each)


class UntrainedRows:
    """Counts rows of batches that were only partly trained on."""

    def __init__(self) -> None:
        self._trained: Counter[Batch] = Counter()  # rows, of the last step's batches
        self._chosen_from: set[Batch] = set()  # the model was given all of these before

    def step(self, origins: Iterable[tuple[SampleOrigin, int]]) -> Values:
        """The untrained rows of batches that ended with the previous step. ``origins``: the origins
        of this step's rows, each with the number of rows that the model was given without gradients
        just before."""
        trained: Counter[Batch] = Counter()
        for origin, looked_at in origins:
            batch = origin.batch
            if batch is not None and batch.indices is not None:
                trained[batch] += len(origin.indices) or len(batch.indices)  # or it is unknown
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


def rows_changed(hashes: Sequence[Sequence[int]], sources: Sequence[SampleOrigin | None]) -> int:
    """The rows of a step whose batch is known although the loader yielded other rows."""
    pairs = zip(hashes, sources, strict=True)
    return sum(len(rows) for rows, source in pairs if source is not None and source.changed)


def first_columns(
    hashes: Sequence[Sequence[int]], sources: Sequence[SampleOrigin | None]
) -> list[bool]:
    """For each of a step's micro-batches, whether it is the first with its samples. Two forward
    passes may be given two columns of one batch (pairs of texts), which were drawn once. A
    micro-batch whose rows are not all known, or equal those of an earlier one, also counts as
    first."""
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
    """The loaders and samplers in ``Record(data=)``."""
    if data is None:
        return []
    several = isinstance(data, (list, tuple, set, frozenset))
    return list(data)[:DEPTH_MAX] if several else [data]


def describe(source: SampleOrigin) -> tuple[Values, dict[str, Description]]:
    """A batch's position in its loader's passes, and the description of the loader by family."""
    sampler = source.batch.of.sampler if source.batch else source.loader.sampler()
    found = {"sampler": sampler, "data": source.loader.data}
    position = source.batch.position() if source.batch else []
    return position, {family: about for family, about in found.items() if about is not None}
