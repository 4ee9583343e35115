# SPDX-License-Identifier: Apache-2.0
"""The gradient pass for gradients that do not live in host memory: CUDA kernels where they can run,
else torch operations.

Everything is queued on the gradient's device: no value is read back, nothing waits. At the end of a
step all numbers travel in one copy, through pinned memory where the device is CUDA; once it has
arrived, a background thread makes the packet. Definitions are those of docs/packet_format.md:
fingerprints, maxima and counts equal the C++ pass bit for bit, sums of squares within 1e-12 and
sketches within 1e-5 of their size (relative), because the order of additions is another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import NamedTuple

import torch

from presum.devices.dtypes import CODES
from presum.devices.kernel_pass import KernelPass, why_not
from presum.devices.readable import readable

DTYPES = {getattr(torch, name): code for name, code in CODES.items()}
CHUNK = 1 << 22  # elements handled at once: bounds the temporary memory to about 100 MB
ZERO_RUN, ZERO_PERIOD = 64, 960  # looked at for zeros, of how many
FINGERPRINT_BLOCK = 1024
ROW_PLACES = 4096  # elements of a row that are read
FINGERPRINT_SEED = 0x70726573756D6670
GOLDEN = 0x9E3779B97F4A7C15


def signed(word: int) -> int:
    """The int64 of the same 64 bits."""
    return word - (1 << 64) if word >= 1 << 63 else word


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix64(x: torch.Tensor) -> torch.Tensor:
    """docs/packet_format.md, "mix64", of int64 tensors."""
    x = (x ^ _shift_right(x, 30)) * signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift_right(x, 27)) * signed(0x94D049BB133111EB)
    return x ^ _shift_right(x, 31)


def _splitmix64(x: torch.Tensor) -> torch.Tensor:
    return mix64(x + signed(GOLDEN))


@cache
def _keys(device: torch.device) -> torch.Tensor:
    index = torch.arange(2 * FINGERPRINT_BLOCK, dtype=torch.int64)
    return (_splitmix64(index + FINGERPRINT_SEED) & 0xFFFFFFFF).to(device)


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where its elements fill one block of memory, else a contiguous copy."""
    if tensor.is_contiguous():
        return tensor
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    channels_last = formats.get(tensor.dim())
    if channels_last is not None and tensor.is_contiguous(memory_format=channels_last):
        return tensor
    return tensor.contiguous()


def block_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Its values in one block of memory, complex ones as pairs; None where it cannot be read."""
    plain = readable(tensor)
    if plain is None:
        return None
    plain = plain.detach()
    return dense(torch.view_as_real(plain.resolve_conj()) if plain.is_complex() else plain)


def _words(part: torch.Tensor) -> torch.Tensor:
    if part.element_size() == 2:
        return part.view(torch.int16).to(torch.int64) & 0xFFFF
    return part.view(torch.int32).to(torch.int64) & 0xFFFFFFFF


def _fingerprint(part: torch.Tensor, first: int) -> torch.Tensor:
    """The fingerprint's share of the elements from ``first`` (a multiple of 1,024) on."""
    count, per_element = part.numel(), 2 if part.element_size() == 8 else 1
    width = FINGERPRINT_BLOCK * per_element
    blocks = -(-count // FINGERPRINT_BLOCK)
    words = torch.nn.functional.pad(_words(part), (0, blocks * width - count * per_element))
    keyed = (words.view(blocks, width) + _keys(part.device)[:width]) & 0xFFFFFFFF
    products = keyed[:, 0::2] * keyed[:, 1::2]
    inside = -(-count * per_element // 2)  # pairs with at least one word of the buffer
    products = torch.where(
        torch.arange(products.numel(), device=part.device).view_as(products) < inside, products, 0
    )
    index = torch.arange(blocks, device=part.device) + first // FINGERPRINT_BLOCK
    elements = (count + first - index * FINGERPRINT_BLOCK).clamp(max=FINGERPRINT_BLOCK)
    return mix64(products.sum(1) + mix64((index << 11) + elements)).sum()


def fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """The fingerprint of a block of elements of 2, 4 or 8 bytes, as an int64 on its device."""
    flat = tensor.as_strided((tensor.numel(),), (1,))
    found = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for first in range(0, flat.numel(), CHUNK):
        found += _fingerprint(flat[first : first + CHUNK], first)
    return found


def row_hashes(x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """docs/packet_format.md, "Row hash", of each row of a contiguous matrix, as int64."""
    stride = max(1, -(-x.shape[1] // ROW_PLACES))
    rows = max(1, CHUNK // -(-x.shape[1] // stride))
    parts = range(0, x.shape[0], rows)
    hashes = [
        _row_hashes(_bits(x[at : at + rows, ::stride]), kept, stride)
        for at in parts
        for kept in [_bits(mask[at : at + rows, ::stride]) != 0 if mask is not None else None]
    ]
    return torch.cat(hashes)


def _row_hashes(bits: torch.Tensor, kept: torch.Tensor | None, stride: int) -> torch.Tensor:
    places = torch.arange(bits.shape[1], device=bits.device)
    if kept is None:
        kept = places < _without_padding(bits, places)[:, None]
    mixed = torch.where(kept, mix64(bits ^ _splitmix64(places * stride)), 0)
    return mix64(mixed.sum(1) ^ mix64(kept.sum(1)))


def _without_padding(bits: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """How many places of each row are left when a run of equal ones at its end is taken away."""
    count = bits.shape[1]
    left = torch.where(bits != bits[:, -1:], places + 1, 0).amax(1)
    return torch.where(left == count - 1, count, left.clamp(min=1))


def _bits(x: torch.Tensor) -> torch.Tensor:
    """The bits of each element in an int64, zeros above."""
    width = x.element_size()
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width]
    bits = x.view(integer).to(torch.int64)
    return bits if width == 8 else bits & ((1 << 8 * width) - 1)


def _sketch(part: torch.Tensor, first: int, size: int, seed: int) -> torch.Tensor:
    """The sketch of the elements from ``first`` (a multiple of ``size``) on."""
    device = part.device
    blocks = -(-part.numel() // size)
    values = torch.nn.functional.pad(part.float(), (0, blocks * size - part.numel()))
    words = torch.arange(blocks * size // 64, device=device) + first // 64
    signs = (_splitmix64(words + signed(seed))[:, None] >> torch.arange(64, device=device)) & 1
    flipped = torch.where(signs.view(-1).bool(), -values, values).view(blocks, size)
    block = torch.arange(blocks, device=device) + first // size
    rotation = _splitmix64(signed(seed) ^ (2 * block + 1)) & (size - 1)
    source = (torch.arange(size, device=device) - rotation[:, None]) & (size - 1)
    return flipped.gather(1, source).sum(0)


def _zeros(flat: torch.Tensor) -> torch.Tensor:
    """The zeros in the first 64 of every 960 elements (``src/observe/zeros.h``)."""
    whole = flat.numel() // ZERO_PERIOD * ZERO_PERIOD
    runs = flat[:whole].view(-1, ZERO_PERIOD)[:, :ZERO_RUN]
    return (runs == 0).sum() + (flat[whole:][:ZERO_RUN] == 0).sum()


def _torch_pass(
    flat: torch.Tensor, real: torch.dtype, size: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sum of squares and maximum; non-finite elements, fingerprint and zeros; sketch."""
    reals = torch.zeros(2, dtype=real, device=flat.device)
    counts = torch.zeros(3, dtype=torch.int64, device=flat.device)
    counts[2] = _zeros(flat)
    sketch = torch.zeros(size, device=flat.device)
    for first in range(0, flat.numel(), CHUNK):
        part = flat[first : first + CHUNK]
        wide = part.to(real)
        finite = torch.isfinite(part)
        reals[0] += wide.square().sum()
        reals[1] = torch.maximum(reals[1], torch.where(finite, wide.abs(), 0).max())
        counts[0] += (~finite).sum()
        counts[1] += _fingerprint(part, first)
        if size:
            sketch += _sketch(part, first, size, seed)
    return reals, counts, sketch


def _batches(queue: list[Queued]) -> list[list[Queued]]:
    """Those that one launch can read."""

    def kind(one: Queued) -> tuple[str, bool]:
        return str(one.flat.dtype), one.reduced

    return [[*batch] for _, batch in groupby(sorted(queue, key=kind), key=kind)]


FoundGradient = tuple[int, int, bool, float, float, int, int, int]
"""Place, elements, whether reduced; sum of squares, maximum; non-finite, fingerprint, zeros."""


class StreamOrder:
    """Orders the streams on which gradients were read before the one that fetches the numbers."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: dict[torch.cuda.Stream, torch.cuda.Event] = {}

    def read(self, gradients: list[torch.Tensor]) -> None:
        """The pass over gradients is queued on the current stream."""
        stream = torch.cuda.current_stream(self._device)
        for grad in gradients:
            grad.record_stream(stream)
        if stream not in self._events:
            self._events[stream] = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._events[stream].record(stream)

    def join(self, numbers: list[torch.Tensor]) -> None:
        """The current stream is about to use them; their memory is kept until it has."""
        stream = torch.cuda.current_stream(self._device)
        for event in self._events.values():
            stream.wait_event(event)
        for tensor in numbers:
            tensor.record_stream(stream)


@dataclass(frozen=True)
class Queued:
    """A gradient that is to be read."""

    index: int
    flat: torch.Tensor
    seed: int
    reduced: bool


class Read(NamedTuple):
    """One that was: its memory is the program's again."""

    place: int
    elements: int
    reduced: bool

    @classmethod
    def of(cls, one: Queued) -> Read:
        return cls(one.index, one.flat.numel(), one.reduced)


class DeviceStep:
    """The numbers of one step while they are on a device. Used by the training thread."""

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
        self._with_sketch: set[int] = set()  # of those that are read
        self._apart = set() if apart is None else apart
        self._by_kernels: list[Read] = []
        self._by_torch: list[Read] = []
        self._reals: list[torch.Tensor] = []
        self._integers: list[torch.Tensor] = []
        self._sketches: dict[int, torch.Tensor] = {}
        self.repeated = False  # whether a sketch stands for a gradient that was replaced
        self.queued_bytes = 0

    def observe(self, index: int, grad: torch.Tensor, *, seed: int, reduced: bool) -> None:
        """A gradient is to be read, in the order in which its elements, which fill one block of
        memory, lie there: at the next flush() at the latest. A second report of one replaces the
        first (the aggregating side keeps the last)."""
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
        """Queues the pass over what was observed since the last time, on the stream that was
        current then."""
        queue, self._queue, self.queued_bytes = [*self._queue.values()], {}, 0
        if not queue:
            return
        on = nullcontext() if self._queued_on is None else torch.cuda.stream(self._queued_on)
        with on:
            for_kernels = []
            for one in queue:
                if self._is_for_torch(one):
                    self._read_by_torch(one)
                else:
                    for_kernels.append(one)
            for batch in _batches(for_kernels):
                self._read_by_kernels(batch)
            if self._streams is not None:
                self._streams.read([one.flat for one in queue])
        self._with_sketch |= {one.index for one in queue if not one.reduced}

    def _is_for_torch(self, one: Queued) -> bool:
        """Kernels add all sketches up. That of a gradient which is reported again, now or in an
        earlier step, is kept apart, so that it can be replaced."""
        if self._kernels is None or one.reduced:
            return self._kernels is None
        if one.index in self._with_sketch and one.index not in self._apart:
            self._apart.add(one.index)
            self.repeated = True
        return one.index in self._apart

    def _read_by_torch(self, one: Queued) -> None:
        size = 0 if one.reduced else self._sketch_size
        reals, integers, sketch = _torch_pass(one.flat, self._real, size, one.seed)
        self._by_torch.append(Read.of(one))
        self._reals.append(reals)
        self._integers.append(integers)
        if size:
            self._sketches[one.index] = sketch

    def _read_by_kernels(self, batch: list[Queued]) -> None:
        assert self._kernels is not None
        sketched = not batch[0].reduced and self._sketch_size > 0
        self._kernels.read([(one.flat, one.seed) for one in batch], sketched=sketched)
        self._by_kernels += map(Read.of, batch)

    def fetch(self, extra: list[torch.Tensor], words: Sequence[torch.Tensor] = ()) -> HostCopy:
        """Start the one copy to the host. ``extra`` are numbers on the device that travel
        along, ``words`` int64 tensors."""
        self.flush()
        if self._streams is not None:
            kept = [] if self._kernels is None else self._kernels.tensors()
            self._streams.join([*self._reals, *self._integers, *self._sketches.values(), *kept])
        integers, sketches = [*self._integers], [*self._sketches.values()]
        if self._kernels is not None and self._by_kernels:
            found, sketch = self._kernels.finish()
            integers.insert(0, found.view(-1))
            sketches.append(sketch)
        none = torch.zeros(self._sketch_size, device=self._device)
        summed = torch.stack(sketches).sum(0) if sketches else none
        scalars = [x.detach().reshape(-1).to(self._device, self._real) for x in extra]
        reals = torch.cat([*self._reals, *scalars, summed.to(self._real)])
        nothing = torch.zeros(0, dtype=torch.int64, device=self._device)
        flat = [x.reshape(-1).to(self._device) for x in words]
        integers = [*integers, *flat, nothing]
        extras = sum(len(x) for x in scalars)
        return HostCopy(self, reals, torch.cat(integers), extras, [x.numel() for x in flat])

    def gradients_of(self, reals: torch.Tensor, integers: torch.Tensor) -> list[FoundGradient]:
        """What the first of the numbers on the host say of each gradient, in the order of
        reading."""
        count = len(self._by_kernels)
        words = integers[: 5 * count].view(count, 5)
        numbers = words[:, :2].contiguous().view(torch.float64).tolist()
        found = [
            (*one, *real, *integer)
            for one, real, integer in zip(
                self._by_kernels, numbers, words[:, 2:].tolist(), strict=True
            )
        ]
        of_torch = len(self._by_torch)
        pairs = reals[: 2 * of_torch].view(of_torch, 2).tolist()
        counts = integers[5 * count :][: 3 * of_torch].view(of_torch, 3).tolist()
        found += [
            (*one, *real, *integer)
            for one, real, integer in zip(self._by_torch, pairs, counts, strict=True)
        ]
        return [
            (*rest, nonfinite, print_ % (1 << 64), zeros)
            for *rest, nonfinite, print_, zeros in found
        ]

    @property
    def numbers(self) -> tuple[int, int]:
        """How many doubles and integers of the host's copy are of gradients."""
        return 2 * len(self._by_torch), 5 * len(self._by_kernels) + 3 * len(self._by_torch)


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
        """The copy is done once this has happened; it is recorded now."""
        event.record()
        self._arrived = False
        _on_their_way.append((self, event))

    def ready(self) -> bool:
        """Whether the copy is known to be done; asks nobody."""
        return self._arrived

    def __call__(self) -> FetchedStep:
        """The numbers. Requires ``ready()``. Raises what went wrong on the device."""
        if self._failed is not None:
            raise self._failed
        return FetchedStep(self._step, self._reals, self._integers, self._extra, self._words)


_on_their_way: deque[tuple[HostCopy, torch.cuda.Event]] = deque()  # of this process


def poll_host_copies() -> None:
    """Which copies are done. For the training thread, outside of a captured graph: a question of
    another thread's would end the capture of a CUDA graph. Never waits."""
    while _on_their_way and not torch.cuda.is_current_stream_capturing():
        fetch, event = _on_their_way[0]
        try:
            if not event.query():  # type: ignore[no-untyped-call]
                return
        except Exception as error:  # of something that failed on the device before
            fetch._failed = error
        _on_their_way.popleft()
        fetch._arrived = True


class FetchedStep:
    """The numbers of one step on the host: what ``Observer`` takes."""

    def __init__(
        self,
        step: DeviceStep,
        reals: torch.Tensor,
        integers: torch.Tensor,
        extra: int,
        words: list[int],
    ) -> None:
        first, integer = step.numbers
        parts = torch.split(integers[integer:], words)
        self.words = [[word % (1 << 64) for word in part.tolist()] for part in parts]
        self.gradients = step.gradients_of(reals, integers)
        self.repeated = step.repeated
        self.extra: list[float] = reals[first : first + extra].tolist()
        self.sketch: list[float] = reals[first + extra :].tolist()
