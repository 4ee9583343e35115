# SPDX-License-Identifier: Apache-2.0
"""The gradient pass for gradients outside host memory: CUDA kernels where they can run, else torch
operations.

Everything is queued on the gradient's device; nothing is read back or waits. At the end of a step
all numbers go to the host in one copy, through pinned memory for CUDA; when it has arrived, a
background thread makes the packet. docs/packet_format.md has the definitions: fingerprints, maxima
and counts equal those of the C++ pass bit for bit; sums of squares agree within 1e-12 and sketches
within 1e-5 (relative), because the order of additions differs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch

from presum.devices.kernel_pass import WORDS, KernelPass, why_not
from presum.devices.torch_pass import sums_of


def _batches(queue: list[Queued]) -> list[list[Queued]]:
    """Groups of gradients that one launch can read."""

    def kind(one: Queued) -> tuple[str, bool]:
        return str(one.flat.dtype), one.reduced

    return [[*batch] for _, batch in groupby(sorted(queue, key=kind), key=kind)]


Read = tuple[int, int, bool]
"""Place, number of elements, and whether it is reduced."""
FoundGradient = tuple[int, int, bool, float, float, int, int, int]
"""The same, then sum of squares, maximum, non-finite elements, fingerprint, zeros."""


class StreamOrder:
    """Orders the streams on which gradients were read before the stream that fetches the
    numbers."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: dict[torch.cuda.Stream, torch.cuda.Event] = {}

    def read(self, gradients: list[torch.Tensor]) -> None:
        """The pass over the gradients has been queued on the current stream."""
        stream = torch.cuda.current_stream(self._device)
        for grad in gradients:
            grad.record_stream(stream)
        if stream not in self._events:
            self._events[stream] = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._events[stream].record(stream)

    def join(self, numbers: list[torch.Tensor]) -> None:
        """The current stream is about to use the numbers; their memory is kept until it has."""
        stream = torch.cuda.current_stream(self._device)
        for event in self._events.values():
            stream.wait_event(event)
        for tensor in numbers:
            tensor.record_stream(stream)


@dataclass(frozen=True)
class Queued:
    """A gradient to read."""

    index: int
    flat: torch.Tensor
    seed: int
    reduced: bool

    @property
    def read(self) -> Read:
        """What is kept after reading: the program owns the gradient's memory again."""
        return self.index, self.flat.numel(), self.reduced


class DeviceStep:
    """The numbers of one step while they are on a device. For the training thread."""

    def __init__(
        self,
        device: torch.device,
        sketch_size: int,
        *,
        apart: set[int] | None = None,
        kernels: KernelPass | None = None,
    ) -> None:
        self._device = device
        self._real = torch.float32 if device.type == "mps" else torch.float64
        self._streams = StreamOrder(device) if device.type == "cuda" else None
        self._sketch_size = sketch_size
        if kernels is None and why_not(device) is None:
            kernels = KernelPass(device, sketch_size)
        self._kernels = kernels
        self._queue: dict[tuple[int, bool], Queued] = {}
        self._queued_on: torch.cuda.Stream | None = None
        self._with_sketch: set[int] = set()  # of gradients that are read
        self._apart = set() if apart is None else apart
        self._by_kernels: list[Read] = []
        self._by_torch: list[Read] = []
        self._reals: list[torch.Tensor] = []
        self._integers: list[torch.Tensor] = []
        self._sketches: list[torch.Tensor] = []  # of batches
        self._sketches_apart: dict[int, torch.Tensor] = {}
        self.repeated = False  # a sketch includes a gradient that was replaced
        self.queued_bytes = 0

    def observe(self, index: int, grad: torch.Tensor, *, seed: int, reduced: bool) -> None:
        """Queue a gradient, to be read at the next flush() at the latest. Its elements, which must
        fill one block of memory, are read in memory order. A second report of a gradient replaces
        the first (the aggregator keeps the last)."""
        if self._streams is not None:
            stream = torch.cuda.current_stream(self._device)
            if self._queue and stream != self._queued_on:
                self.flush()
            self._queued_on = stream
        flat = grad.detach().as_strided((grad.numel(),), (1,))
        if (index, reduced) not in self._queue:
            self.queued_bytes += flat.numel() * flat.element_size()
        self._queue[index, reduced] = Queued(index, flat, seed, reduced)

    def flush(self) -> None:
        """Queue the pass over the gradients observed since the last flush, on the stream that was
        current then."""
        queue, self._queue, self.queued_bytes = [*self._queue.values()], {}, 0
        if not queue:
            return
        on = nullcontext() if self._queued_on is None else torch.cuda.stream(self._queued_on)
        with on:
            together = []
            for one in queue:
                if self._is_apart(one):
                    self._sketches_apart[one.index] = self._read_by_torch([one])
                else:
                    together.append(one)
            for batch in _batches(together):
                if self._kernels is None:
                    self._sketches.append(self._read_by_torch(batch))
                else:
                    self._read_by_kernels(batch)
            if self._streams is not None:
                self._streams.read([one.flat for one in queue])
        self._with_sketch |= {one.index for one in queue if not one.reduced}

    def _is_apart(self, one: Queued) -> bool:
        """Whether the gradient's sketch is kept separate. The sketches of a batch are added up;
        that of a gradient that is reported again, now or in an earlier step, must be
        replaceable."""
        if one.reduced:
            return False
        if one.index in self._with_sketch and one.index not in self._apart:
            self._apart.add(one.index)
            self.repeated = True
        return one.index in self._apart

    def _read_by_torch(self, batch: list[Queued]) -> torch.Tensor:
        """The batch's sketch; empty for reduced gradients."""
        size = 0 if batch[0].reduced else self._sketch_size
        flat, seeds = [one.flat for one in batch], [one.seed for one in batch]
        sums = sums_of(flat, seeds, self._real, size)
        self._by_torch += [one.read for one in batch]
        self._reals.append(sums.reals)
        self._integers.append(sums.integers)
        return sums.sketch

    def _read_by_kernels(self, batch: list[Queued]) -> None:
        assert self._kernels is not None
        sketched = not batch[0].reduced and self._sketch_size > 0
        self._kernels.read([(one.flat, one.seed) for one in batch], sketched=sketched)
        self._by_kernels += [one.read for one in batch]

    def fetch(self, extra: list[torch.Tensor], words: Sequence[torch.Tensor] = ()) -> HostCopy:
        """Start the single copy to the host. ``extra`` are numbers on the device to copy along,
        ``words`` int64 tensors."""
        self.flush()
        if self._streams is not None:
            kept = [] if self._kernels is None else self._kernels.tensors()
            self._streams.join([*self._reals, *self._integers, *self._all_sketches(), *kept])
        integers = [x.view(-1) for x in self._integers]
        sketches = self._all_sketches()
        if self._kernels is not None and self._by_kernels:
            found, sketch = self._kernels.finish()
            integers.insert(0, found.view(-1))
            sketches.append(sketch)
        none = torch.zeros(self._sketch_size, device=self._device)
        summed = torch.stack(sketches).sum(0) if sketches else none
        scalars = [x.detach().reshape(-1).to(self._device, self._real) for x in extra]
        reals = torch.cat([*(x.view(-1) for x in self._reals), *scalars, summed.to(self._real)])
        nothing = torch.zeros(0, dtype=torch.int64, device=self._device)
        flat = [x.reshape(-1).to(self._device) for x in words]
        integers = [*integers, *flat, nothing]
        extras = sum(len(x) for x in scalars)
        return HostCopy(self, reals, torch.cat(integers), extras, [x.numel() for x in flat])

    def _all_sketches(self) -> list[torch.Tensor]:
        found = [*self._sketches, *self._sketches_apart.values()]
        return [sketch for sketch in found if len(sketch)]

    def gradients_of(self, reals: torch.Tensor, integers: torch.Tensor) -> list[FoundGradient]:
        """The results for each gradient, from the first numbers on the host, in the order of
        reading."""
        of_kernels, of_torch = len(self._by_kernels), len(self._by_torch)
        words = integers[: WORDS * of_kernels].view(of_kernels, WORDS)
        pairs = words[:, :2].contiguous().view(torch.float64).tolist()
        pairs += reals[: 2 * of_torch].view(of_torch, 2).tolist()
        counts = words[:, 2:].tolist()
        counts += integers[WORDS * of_kernels :][: 3 * of_torch].view(of_torch, 3).tolist()
        read = [*self._by_kernels, *self._by_torch]
        return [
            (*one, *pair, nonfinite, print_ % (1 << 64), zeros)
            for one, pair, (nonfinite, print_, zeros) in zip(read, pairs, counts, strict=True)
        ]

    @property
    def numbers(self) -> tuple[int, int]:
        """How many doubles and integers in the host's copy belong to gradients."""
        return 2 * len(self._by_torch), WORDS * len(self._by_kernels) + 3 * len(self._by_torch)


class HostCopy:
    """A step's numbers on their way to the host. For the background thread."""

    def __init__(
        self,
        step: DeviceStep,
        reals: torch.Tensor,
        integers: torch.Tensor,
        extra: int,
        words: list[int],
    ) -> None:
        pinned = reals.is_cuda
        self._device = reals.device
        self._step, self._extra, self._words = step, extra, words
        self._reals = torch.empty_like(reals, device="cpu", pin_memory=pinned)
        self._integers = torch.empty_like(integers, device="cpu", pin_memory=pinned)
        self._reals.copy_(reals, non_blocking=pinned)
        self._integers.copy_(integers, non_blocking=pinned)
        self._arrived = not pinned
        self._failed: Exception | None = None
        if pinned:
            self.follow(torch.cuda.Event())  # type: ignore[no-untyped-call]

    def follow(self, event: torch.cuda.Event) -> None:
        """Record the event now; the copy is done when it has happened."""
        on_gpu = self._device.type == "cuda"
        event.record(torch.cuda.current_stream(self._device) if on_gpu else None)
        self._arrived = False
        _on_their_way.append((self, event))

    def arrive(self) -> None:
        """The copy is done. The calling thread must release the pinned memory: torch records an
        event when it is freed, and a capture on another thread would include that event."""
        self._reals, self._integers = self._reals.clone(), self._integers.clone()
        self._arrived = True

    def ready(self) -> bool:
        """Whether the copy is known to be done. Does not query the device."""
        return self._arrived

    def __call__(self) -> FetchedStep:
        """The numbers. Requires ``ready()``. Raises errors that occurred on the device."""
        if self._failed is not None:
            raise self._failed
        first, integer = self._step.numbers
        last = first + self._extra
        words = torch.split(self._integers[integer:], self._words)
        return FetchedStep(
            gradients=self._step.gradients_of(self._reals, self._integers),
            repeated=self._step.repeated,
            words=[[word % (1 << 64) for word in part.tolist()] for part in words],
            extra=self._reals[first:last].tolist(),
            sketch=self._reals[last:].float(),
        )


_on_their_way: deque[tuple[HostCopy, torch.cuda.Event]] = deque()  # of this process
_polled = threading.Lock()


def poll_host_copies() -> None:
    """Check which copies are done. For training threads, outside a graph capture: a query from
    another thread would end the capture of a CUDA graph. Never waits."""
    if not _on_their_way or not _polled.acquire(blocking=False):
        return
    try:
        while _on_their_way and not torch.cuda.is_current_stream_capturing():
            fetch, event = _on_their_way[0]
            try:
                if not event.query():  # type: ignore[no-untyped-call]
                    return
            except Exception as error:  # from an earlier failure on the device
                fetch._failed = error
            _on_their_way.popleft()
            fetch.arrive()
    finally:
        _polled.release()


class FetchedStep(NamedTuple):
    """The numbers of one step on the host, as ``Observer`` takes them."""

    gradients: list[FoundGradient]
    repeated: bool
    words: list[list[int]]
    extra: list[float]
    sketch: torch.Tensor
