# SPDX-License-Identifier: Apache-2.0
"""The pass over gradients, fingerprints and row hashes in torch operations, for devices without
kernels. docs/packet_format.md has the definitions.

Nothing is read back or waits, and no shape depends on data. Gradients are concatenated, so that the
number of operations depends on their bytes and not on their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import torch

CHUNK = 1 << 22  # elements per iteration; limits temporary memory to about 100 MB
ZERO_RUN, ZERO_PERIOD = 64, 960  # elements examined for zeros, out of how many
FINGERPRINT_BLOCK = 1024
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
ROW_PLACES = 4096  # elements read per row
FINGERPRINT_SEED = 0x70726573756D6670
GOLDEN = 0x9E3779B97F4A7C15


def signed(word: int) -> int:
    """The int64 with the same 64 bits."""
    return word - (1 << 64) if word >= 1 << 63 else word


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix64(x: torch.Tensor) -> torch.Tensor:
    """docs/packet_format.md, "mix64", for int64 tensors."""
    x = (x ^ _shift_right(x, 30)) * signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift_right(x, 27)) * signed(0x94D049BB133111EB)
    return x ^ _shift_right(x, 31)


def _splitmix64(x: torch.Tensor) -> torch.Tensor:
    return mix64(x + signed(GOLDEN))


def _all_keys() -> torch.Tensor:
    index = torch.arange(2 * FINGERPRINT_BLOCK, dtype=torch.int64)
    return _splitmix64(index + FINGERPRINT_SEED) & 0xFFFFFFFF


@cache
def _keys(device: torch.device) -> torch.Tensor:
    """A block's keys, the bits of each in an int32, so that sums with words wrap around."""
    return _all_keys().to(torch.int32).to(device)


@cache
def _keys_behind(device: torch.device, words: int) -> torch.Tensor:
    """By the number of a block's pairs that belong to the buffer: the sum that zeros after them
    give."""
    products = _all_keys()[:words].view(-1, 2).prod(1)
    total = products.sum()
    return torch.cat([total.view(1), total - products.cumsum(0)]).to(device)


@cache
def _signs_of_bytes(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """[256, 8]: -1 where a bit is set."""
    bits = torch.arange(256)[:, None] >> torch.arange(8) & 1
    return (1 - 2 * bits).to(dtype).to(device)


def fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """The fingerprint of one block of memory."""
    return fingerprints([tensor])[0]


def fingerprints(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The fingerprints of blocks of memory on one device, with elements of the same size: 2, 4 or 8
    bytes. Returns an int64 per block, on that device."""
    integer = INTEGERS[tensors[0].element_size()]
    flat = [one.as_strided((one.numel(),), (1,)).view(integer) for one in tensors]
    found = torch.zeros(len(flat), dtype=torch.int64, device=flat[0].device)
    for parts in _packs(flat, [0] * len(flat), FINGERPRINT_BLOCK):
        x = _side_by_side(parts, FINGERPRINT_BLOCK)
        blocks = _blocks(parts, FINGERPRINT_BLOCK, x.device)
        found.index_add_(0, blocks.gradient, _fingerprints(x, blocks))
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
    """The number of places in each row before a run of equal values at its end."""
    count = bits.shape[1]
    left = torch.where(bits != bits[:, -1:], places + 1, 0).amax(1)
    return torch.where(left == count - 1, count, left.clamp(min=1))


def _bits(x: torch.Tensor) -> torch.Tensor:
    """The bits of each element in an int64, zero-extended."""
    width = x.element_size()
    bits = x.view(INTEGERS[width]).to(torch.int64)
    return bits if width == 8 else bits & ((1 << 8 * width) - 1)


# ---- many gradients


class Sums(NamedTuple):
    """The results of n gradients."""

    reals: torch.Tensor  # [n, 2]: sum of squares, largest finite magnitude
    integers: torch.Tensor  # [n, 3] int64: non-finite elements, fingerprint, zeros
    sketch: torch.Tensor  # of all gradients together


class _Part(NamedTuple):
    """Elements of one gradient starting at ``first``, which starts a block."""

    gradient: int
    first: int
    elements: torch.Tensor
    seed: int


def sums_of(
    gradients: Sequence[torch.Tensor], seeds: Sequence[int], real: torch.dtype, size: int
) -> Sums:
    """The results of the pass over flat gradients of one dtype; ``size`` is the sketch's, 0 for
    none. The order of additions is fixed."""
    device, count = gradients[0].device, len(gradients)
    sums = Sums(
        torch.zeros((count, 2), dtype=real, device=device),
        torch.zeros((count, 3), dtype=torch.int64, device=device),
        torch.zeros(size, device=device),
    )
    width = max(FINGERPRINT_BLOCK, size)
    for parts in _packs(gradients, seeds, width):
        _add(parts, width, size, sums)
    return sums


def _packs(
    gradients: Sequence[torch.Tensor], seeds: Sequence[int], width: int
) -> Iterator[list[_Part]]:
    """Lists of parts with at most ``CHUNK`` elements together, each padded to a multiple of
    ``width``."""
    chunk = max(CHUNK // width, 1) * width
    parts: list[_Part] = []
    room = chunk
    for index, (gradient, seed) in enumerate(zip(gradients, seeds, strict=True)):
        first = 0
        while first < gradient.numel():
            taken = min(gradient.numel() - first, room)
            parts.append(_Part(index, first, gradient[first : first + taken], seed))
            first += taken
            room -= -(-taken // width) * width
            if room == 0:
                yield parts
                parts, room = [], chunk
    if parts:
        yield parts


class _Blocks(NamedTuple):
    """Blocks of 1,024 elements, int64: the values of each block, then those of each part."""

    gradient: torch.Tensor
    number: torch.Tensor  # within its gradient
    elements: torch.Tensor  # those of the gradient, at most 1,024
    seed: torch.Tensor
    part_gradient: torch.Tensor
    # [parts, most]: the places of its blocks, or the place after the last
    part_blocks: torch.Tensor


def _add(parts: Sequence[_Part], width: int, size: int, sums: Sums) -> None:
    x = _side_by_side(parts, width)
    blocks = _blocks(parts, width, x.device)
    finite = torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)
    real = sums.reals.dtype
    squares = torch.linalg.vector_norm(x, dim=1, dtype=real).square()
    by_part = torch.nn.functional.pad(squares, (0, 1))[blocks.part_blocks].sum(1)
    sums.reals[:, 0].index_add_(0, blocks.part_gradient, by_part)
    largest = torch.linalg.vector_norm(finite, torch.inf, dim=1).to(real)
    by_part = torch.nn.functional.pad(largest, (0, 1))[blocks.part_blocks].amax(1)
    sums.reals[:, 1].index_copy_(
        0,
        blocks.part_gradient,
        torch.maximum(sums.reals[:, 1].index_select(0, blocks.part_gradient), by_part),
    )
    counts = [(x != finite).sum(1), _fingerprints(x, blocks), _zeros(x, blocks)]
    sums.integers.index_add_(0, blocks.gradient, torch.stack(counts, 1))
    if size:
        sums.sketch.add_(_sketch(x.view(-1, size), blocks, size))


def _side_by_side(parts: Sequence[_Part], width: int) -> torch.Tensor:
    """The parts as rows of 1,024 elements, with zeros between them."""
    like = parts[0].elements
    zeros = like.new_zeros(width)
    laid: list[torch.Tensor] = []
    for part in parts:
        laid += [part.elements, zeros[: -part.elements.numel() % width]]
    return torch.cat(laid).view(-1, FINGERPRINT_BLOCK)


def _blocks(parts: Sequence[_Part], width: int, device: torch.device) -> _Blocks:
    each = width // FINGERPRINT_BLOCK
    counts = [-(-part.elements.numel() // width) * each for part in parts]
    starts = [*accumulate(counts, initial=0)]
    told = zip(counts, starts, parts, strict=False)
    table = torch.tensor(
        [(n, at, p.gradient, p.first, p.elements.numel(), signed(p.seed)) for n, at, p in told]
    )
    if device.type == "cuda":
        table = table.pin_memory()
    table = table.to(device, non_blocking=True)
    rows = torch.repeat_interleave(table, table[:, 0], 0, output_size=starts[-1])
    within = torch.arange(starts[-1], device=device) - rows[:, 1]
    most = torch.arange(max(counts), device=device)
    return _Blocks(
        gradient=rows[:, 2],
        number=within + rows[:, 3] // FINGERPRINT_BLOCK,
        elements=(rows[:, 4] - within * FINGERPRINT_BLOCK).clamp(0, FINGERPRINT_BLOCK),
        seed=rows[:, 5],
        part_gradient=table[:, 2],
        part_blocks=torch.where(most < table[:, :1], table[:, 1:2] + most, starts[-1]),
    )


def _block_sums(x: torch.Tensor) -> torch.Tensor:
    """For each row with all words of a block: the sum of the products of keyed pairs."""
    if x.element_size() == 2:
        words = x.view(torch.int16).to(torch.int32).bitwise_and_(0xFFFF)
    else:
        words = x.view(torch.int32)
    pairs = (words + _keys(x.device)[: words.shape[1]]).view(torch.int64)
    low = pairs & 0xFFFFFFFF
    high = (pairs >> 32).bitwise_and_(0xFFFFFFFF)
    return high.mul_(low).sum(1)


def _fingerprints(x: torch.Tensor, blocks: _Blocks) -> torch.Tensor:
    """Each block's contribution to its gradient's fingerprint."""
    per_element = 2 if x.element_size() == 8 else 1
    inside = (blocks.elements * per_element + 1) // 2  # pairs with at least one word of the buffer
    sums = _block_sums(x) - _keys_behind(x.device, x.shape[1] * per_element)[inside]
    mixed = mix64(sums + mix64((blocks.number << 11) + blocks.elements))
    return torch.where(blocks.elements > 0, mixed, 0)


def _zeros(x: torch.Tensor, blocks: _Blocks) -> torch.Tensor:
    """The zeros of each block in the first 64 of every 960 elements (``src/observe/zeros.h``). One
    run begins in each block; if it begins at 0, the next run does too."""
    begin = (-blocks.number * FINGERPRINT_BLOCK) % ZERO_PERIOD
    run = torch.arange(ZERO_RUN, device=x.device)
    places = begin[:, None] + run
    found = (x.gather(1, places) == 0) & (places < blocks.elements[:, None])
    second = (x[:, ZERO_PERIOD:] == 0) & (run + ZERO_PERIOD < blocks.elements[:, None])
    return found.sum(1) + torch.where(begin == 0, second.sum(1), 0)


def _sketch(x: torch.Tensor, blocks: _Blocks, size: int) -> torch.Tensor:
    """The sketch of all rows of ``size`` elements."""
    device = x.device
    if size >= FINGERPRINT_BLOCK:
        each = size // FINGERPRINT_BLOCK
        seed, row = blocks.seed[::each], blocks.number[::each] // each
    else:
        each = FINGERPRINT_BLOCK // size
        seed = blocks.seed.repeat_interleave(each)
        row = (blocks.number[:, None] * each + torch.arange(each, device=device)).view(-1)
    words = row[:, None] * (size // 64) + torch.arange(size // 64, device=device)
    signs = _splitmix64(words + seed[:, None]).view(torch.uint8).to(torch.int32)
    table = _signs_of_bytes(device, x.dtype)
    flipped = table.index_select(0, signs.view(-1)).view(-1, size).mul_(x)
    rotation = _splitmix64(seed ^ (2 * row + 1)) & (size - 1)
    source = (torch.arange(size, device=device) - rotation[:, None]) & (size - 1)
    return flipped.gather(1, source).sum(0, dtype=torch.float32)
