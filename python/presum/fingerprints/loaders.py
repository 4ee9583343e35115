# SPDX-License-Identifier: Apache-2.0
"""Observes every batch that a torch DataLoader yields in this process, and the indices of its
samples.

Methods of torch's classes are replaced while there is a listener. They return and raise what the
originals do; an error in this module ends the observation. Data loader worker processes are not
touched.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from presum._core import hash_bytes
from presum.devices.readable import readable
from presum.fingerprints.datasets import describe_data
from presum.fingerprints.families import KIND, WORD, Values
from presum.fingerprints.rows import (
    OTHERS_MAX,
    NamedTensors,
    hash_tensor,
    samples_among,
    tensors_among,
)
from presum.fingerprints.samplers import Description, describe_sampler, kept
from presum.torch_events.taps import TappedFunction

LOADERS_MAX = 64
ENDED_MAX = 4
RECENT_MAX = 8
CANDIDATES_MAX = 4
ELEMENTS_MAX = 1 << 16  # hashed per tensor that a loader yields: enough to recognize it
LABEL_BYTES_MAX = 1 << 14  # hashed per tensor besides the samples
Indices = tuple[int, ...]


class BatchListener(Protocol):
    """Receives batches, on the thread that draws them."""

    def offer(self, batch: Batch) -> None: ...

    def fail(self, error: Exception) -> None: ...

    @property
    def trains(self) -> bool:
        """Whether its model still exists."""


class Passes:
    """The passes over one dataset, by all loaders over it."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended: deque[LoaderPass] = deque(maxlen=ENDED_MAX)  # the last ones


class Loader:
    """A DataLoader, or a sampler that the user gave."""

    def __init__(
        self, source: Any, data: Description | None, earlier: Loader | None, training: int
    ) -> None:
        dataset = kept(source, "dataset")
        self.training = training
        self._source = _reference(source)
        self._dataset = _reference(dataset)
        self._sampler: Description | None = None
        self.passes: Passes = earlier.passes if earlier else Passes()
        self.places: frozenset[int] = frozenset()  # of samples among a batch's tensors, once known
        self.data = data

    def of(self, source: Any) -> bool:
        return self._source is not None and self._source() is source

    def over(self, dataset: Any) -> bool:
        return dataset is not None and self._dataset is not None and self._dataset() is dataset

    def was_over(self, data: Description | None) -> bool:
        """Whether its dataset is gone and was like this one: some programs create a new one for
        each pass."""
        gone = self._dataset is not None and self._dataset() is None
        return gone and data is not None and self.data == data

    def sampler(self) -> Description | None:
        """The sampler's present state or, when the loader is gone, its last one."""
        source = self._source() if self._source is not None else None
        if source is not None:
            self._sampler = describe_sampler(source)
        return self._sampler


class LoaderPass:
    """One iteration of a loader, with the state of its sampler at the start.

    It gets its number among the passes over the dataset when it is first trained on: in between, a
    single rank may look at a batch, or sum the losses of all batches.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.sampler = loader.sampler()
        self.handed_out = 0  # batches
        self._number: int | None = None
        self._trained = -1  # the last batch that was trained on

    def trains(self, batch: int) -> None:
        """A batch of this pass was trained on."""
        self._trained = max(self._trained, batch)

    def is_whole(self) -> bool:
        """Whether training reached its last batch, as far as known: a model's input may stop to be
        the loader's batch."""
        return self._number is not None and self._trained + 1 >= self.handed_out

    def number(self) -> int:
        if self._number is None:
            self._number = self.loader.passes.begun
            self.loader.passes.begun += 1
        return self._number


def _last_of(ended: Iterable[LoaderPass]) -> Values:
    """The last of these passes that was trained on to its end; 0: none."""
    trained = [one.number() + 1 for one in ended if one.is_whole()]
    return [(KIND["data_ended"], trained[-1] if trained else 0)]


class TensorHashes(NamedTuple):
    """Hashes of some of a batch's tensors, by place."""

    rows: dict[int, list[int]]  # the first rows of those that may be the samples
    beside: dict[int, int]  # of each that may be a label


class Batch:
    """A batch that a loader yielded."""

    def __init__(
        self, of: LoaderPass, number: int, indices: Indices | None, hashes: TensorHashes
    ) -> None:
        self.of = of
        self.number = number
        self.indices = indices
        self.rows = hashes.rows
        self._beside = hashes.beside
        self._ended = tuple(of.loader.passes.ended)  # when it was yielded

    def position(self, *, now: bool = False) -> Values:
        """The batch's position in the loader's passes, for a batch that is trained on; with the
        pass that had ended last when the batch was yielded, or by ``now``."""
        number = self.of.number()
        position = [(KIND["data_pass"], number), (KIND["data_batch"], self.number)]
        return [*position, *_last_of(self.of.loader.passes.ended if now else self._ended)]

    def labels(self) -> int:
        """One hash of the tensors besides the samples."""
        beside = (p for p in self._beside if p not in self.of.loader.places)
        return sum((2 * p + 1) * self._beside[p] for p in beside) & WORD


class _Iteration:
    """An iterator over a loader, with indices that were drawn before their batches."""

    def __init__(self) -> None:
        self.indices: deque[Indices | None] = deque()
        self.of: LoaderPass | None = None


class ActiveIterators(threading.local):
    """The iterators from which this thread is taking a batch, possibly nested."""

    def __init__(self) -> None:
        self.iterators: list[Any] = []


class LoaderEvents:
    """All loaders of this process."""

    def __init__(self) -> None:
        self._listeners: list[BatchListener] = []
        self._at_next: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._ahead = False  # keep batches for later listeners
        self._recent: deque[Batch] = deque(maxlen=RECENT_MAX)
        self._loaders: deque[Loader] = deque(maxlen=LOADERS_MAX)
        self._iterations: weakref.WeakKeyDictionary[Any, _Iteration] = weakref.WeakKeyDictionary()
        self._patches = [
            TappedFunction(DataLoader, "__iter__", before=self._about_to_begin, after=self._begun),
            TappedFunction(_BaseDataLoaderIter, "_next_index", after=self._index_drawn),
            TappedFunction(
                _BaseDataLoaderIter,
                "__next__",
                before=self._about_to_take,
                after=self._next_batch,
                always=self._took,
            ),
        ]
        self._taking = ActiveIterators()
        self._trainings = 0  # of this process, in sequence
        self._pid = 0

    def watch_ahead(self) -> None:
        """Start to observe now, for listeners that come after the first batches."""
        self._ahead = True
        self._apply()

    def forget_recent(self) -> None:
        """A model or optimizer was constructed: earlier batches belong to an earlier training."""
        self._recent.clear()
        if not any(listener.trains for listener in self._listeners):
            self._trainings += 1

    def add(self, listener: BatchListener) -> None:
        self._apply()
        if not self._listeners and not self._ahead:
            self._trainings += 1
        self._listeners.append(listener)
        for batch in self._recent:
            listener.offer(batch)

    def _apply(self) -> None:
        self._pid = os.getpid()
        for patch in self._patches:
            patch.apply()

    def remove(self, listener: BatchListener) -> None:
        """Remove a listener. Removing the last one restores torch's classes."""
        if listener not in self._listeners:
            return
        self._listeners.remove(listener)
        if not self._listeners and not self._ahead:
            for patch in self._patches:
                patch.undo()
            self._iterations.clear()

    def loader(self, source: Any) -> Loader:
        """The record of a loader. A loader over the dataset of an earlier one continues its
        passes."""
        for known in self._loaders:
            if known.of(source):
                return known
        dataset = kept(source, "dataset")
        newest = list(reversed(self._loaders))
        earlier = next((known for known in newest if known.over(dataset)), None)
        data = earlier.data if earlier is not None else None
        if data is None and isinstance(source, DataLoader):
            data = describe_data(dataset)
            same = (known for known in newest if known.training == self._trainings)
            earlier = earlier or next((known for known in same if known.was_over(data)), None)
        self._loaders.append(Loader(source, data, earlier, self._trainings))
        return self._loaders[-1]

    def _watching(self) -> bool:
        return (self._ahead or bool(self._listeners)) and os.getpid() == self._pid

    def _guarded(self, call: Callable[..., None], *args: Any) -> None:
        try:
            call(*args)
        except Exception as error:
            for listener in list(self._listeners):
                listener.fail(error)
                self.remove(listener)

    def at_next_beginning(self, call: Callable[[], None]) -> None:
        """Call a method when the next loader is about to begin, while loaders are observed."""
        self._at_next.append(weakref.WeakMethod(call))

    def _about_to_begin(self, loader: Any) -> None:
        if self._watching():
            self._guarded(self._tell_beginning)
            self._guarded(self._forget, loader)

    def _tell_beginning(self) -> None:
        told, self._at_next = self._at_next, []
        for held in told:
            if (call := held()) is not None:
                call()

    def _begun(self, iterator: Any, loader: Any) -> None:
        if self._watching():
            self._guarded(self._begin, loader, iterator)

    def _forget(self, loader: Any) -> None:
        """A persistent iterator begins again, and draws ahead before it is returned."""
        persistent = getattr(loader, "_iterator", None)
        if persistent is not None:
            self._iterations.pop(persistent, None)

    def _begin(self, loader: Any, iterator: Any) -> None:
        if isinstance(iterator, _BaseDataLoaderIter):
            self._iteration(iterator).of = LoaderPass(self.loader(loader))

    def _index_drawn(self, index: Any, iterator: Any) -> None:
        if self._watching():
            self._guarded(self._drawn, iterator, index)

    def _drawn(self, iterator: Any, index: Any) -> None:
        self._iteration(iterator).indices.append(_indices(iterator, index))

    def _about_to_take(self, iterator: Any) -> None:
        self._taking.iterators.append(iterator)

    def _next_batch(self, data: Any, iterator: Any) -> None:
        self._taking.iterators[-1:] = [None]
        if self._watching():
            self._guarded(self._handed_out, iterator, data)

    def _took(self) -> None:
        """A batch was taken, or there was none, so the iterator has ended."""
        iterator = self._taking.iterators.pop() if self._taking.iterators else None
        if iterator is not None and self._watching():
            self._guarded(self._ended, iterator)

    def _ended(self, iterator: Any) -> None:
        iteration = self._iterations.get(iterator)
        if iteration is not None and iteration.of is not None:
            iteration.of.loader.passes.ended.append(iteration.of)

    def _handed_out(self, iterator: Any, data: Any) -> None:
        iteration = self._iteration(iterator)
        indices = iteration.indices.popleft() if iteration.indices else None
        of = iteration.of
        if of is None:
            return  # it began before there was a listener
        batch = Batch(of, of.handed_out, indices, _hashes(data, of.loader.places))
        of.handed_out += 1
        if self._ahead:
            self._recent.append(batch)
        for listener in self._listeners:
            listener.offer(batch)

    def _iteration(self, iterator: Any) -> _Iteration:
        iteration = self._iterations.get(iterator)
        if iteration is None:
            iteration = self._iterations[iterator] = _Iteration()
        return iteration


def _reference(thing: Any) -> Callable[[], Any] | None:
    try:
        return weakref.ref(thing)
    except TypeError:
        return None


def _indices(iterator: Any, index: Any) -> Indices | None:
    """The indices as integers, copied. None if samples have none or are yielded in another
    order."""
    if iterator._dataset_kind == _DatasetKind.Iterable or not getattr(iterator, "_in_order", True):
        return None
    if isinstance(index, torch.Tensor) and (readable(index) is None or not index.is_cpu):
        return None
    if isinstance(index, (torch.Tensor, np.ndarray)):
        index = index.reshape(-1).tolist()
    entries = index if isinstance(index, (list, tuple)) else [index]
    known = all(isinstance(i, (int, np.integer)) and i >= 0 for i in entries)
    return tuple(map(int, entries)) if known else None


def _hashes(data: Any, places: frozenset[int]) -> TensorHashes:
    """The hashes of a batch whose samples are at these places, or at one of the first ones."""
    inside = data if isinstance(data, (list, tuple)) else [data]
    tensors = tensors_among(("", value) for value in inside).readable
    samples = [*tensors, *_without_last_token(tensors)]
    return TensorHashes(_row_hashes(samples, places), _label_hashes(tensors, places))


def _without_last_token(tensors: NamedTensors) -> NamedTensors:
    """The input that a language model is given of a batch that includes its targets."""
    x = tensors[0][1] if len(tensors) == 1 else None
    if x is None or x.dim() != 2 or x.shape[1] < 2 or x.is_floating_point() or x.is_complex():
        return []
    return [("", x[:, :-1])]


def _label_hashes(tensors: NamedTensors, places: frozenset[int]) -> dict[int, int]:
    beside = ((p, x.detach()) for p, (_, x) in enumerate(tensors[:OTHERS_MAX]) if p not in places)
    return {p: _first_bytes(x) for p, x in beside if x.is_cpu and not x.is_complex()}


def _first_bytes(x: torch.Tensor) -> int:
    rows = LABEL_BYTES_MAX // (x[0].numel() * x.element_size()) + 1
    flat = x[:rows].contiguous().view(-1).view(torch.uint8)[:LABEL_BYTES_MAX]
    return hash_bytes(flat.numpy().data)


def _row_hashes(tensors: NamedTensors, places: frozenset[int]) -> dict[int, list[int]]:
    likely = samples_among(tensors)
    candidates = sorted(places) or sorted(range(len(tensors)), key=lambda p: p != likely)
    on_host = [p for p in candidates[:CANDIDATES_MAX] if p < len(tensors) and tensors[p][1].is_cpu]
    hashes = ((p, hash_tensor(tensors, p, elements_max=ELEMENTS_MAX)) for p in on_host)
    return {p: found for p, found in hashes if isinstance(found, list)}


LOADER_EVENTS = LoaderEvents()
