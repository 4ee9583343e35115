# SPDX-License-Identifier: Apache-2.0
"""Compares the kernels with the same threads on the host, bit for bit: gradients of every dtype and
many lengths, fingerprints, rows of batches, sums."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gpu_check.place import HOST, Findings, Place, kernels_on_host, same_bits
from presum import _core, reduce
from presum.devices import torch_pass
from presum.devices.hashes import fingerprints_by_kernels, row_hashes_by_kernel
from presum.devices.kernel_pass import KernelPass

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
COUNTS = (0, 1, 2, 63, 1023, 1024, 1025, 4095, 4097, 50_001, 1_000_003)
SKETCHES = (0, 64, 4096, 16_384)
ROWS = ((1, 1), (64, 1024), (3, 9000), (1024, 7))


def check(place: Place, findings: Findings, *, small: bool = False) -> None:
    counts = COUNTS[:6] if small else COUNTS[:-1] if place.dry else COUNTS
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        tensors = [_values(count, dtype) for count in counts]
        tensors += [_values(5003, dtype)[1:], _strange(4097, dtype)]
        ok = all(_same_pass(place, tensors, size) for size in SKETCHES)
        sizes = f"{len(tensors)} gradients, sketches of {SKETCHES}"
        findings.say(f"pass over {name}", sizes, ok=ok)
        same = torch.equal(_fingerprints(place, tensors), torch_pass.fingerprints(tensors))
        findings.say(f"fingerprints of {name}", f"{len(tensors)} tensors", ok=same)
        same = _same_sums(place, dtype, small=small)
        findings.say(f"sums of {name}", "the bits of the host", ok=same)
    same = all(_same_rows(place, *shape) for shape in ROWS)
    findings.say("rows of batches: the hashes of the host", f"{len(ROWS)} shapes", ok=same)
    many = [_values(1 + i % 300, DTYPES[i % 2]) for i in range(200 if small else 10_000)]
    findings.say("many gradients", len(many), ok=_same_pass(place, many, 4096))
    if not place.dry and torch.cuda.device_count() > 1:
        same = _same_pass(Place(dry=False, index=1), many, 4096)
        findings.say("many gradients on the second GPU, the first being current", same, ok=same)


def _values(count: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return (torch.randn(count, generator=generator) * 3).to(dtype)


def _strange(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Arbitrary bits: infinities, NaNs, denormals."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    bits = torch.iinfo(integer)
    generator = torch.Generator().manual_seed(9)
    return torch.randint(bits.min, bits.max, (count,), generator=generator, dtype=integer).view(
        dtype
    )


Found = tuple[torch.Tensor, torch.Tensor]


def _found(device: torch.device, tensors: Sequence[torch.Tensor], size: int) -> Found:
    kernels = KernelPass(device, size)
    for dtype in DTYPES:
        of_dtype = [(at, one) for at, one in enumerate(tensors) if one.dtype == dtype]
        batch = [(_on(device, one), 7 * at) for at, one in of_dtype]
        if batch:
            kernels.read(batch, sketched=size > 0)
    found, sketch = kernels.finish()
    return found.cpu(), sketch.cpu()


def _on(device: torch.device, one: torch.Tensor) -> torch.Tensor:
    """A copy with the same misalignment, in elements."""
    room = torch.empty(one.numel() + 1, dtype=one.dtype, device=device)
    copy = room[one.storage_offset() :][: one.numel()]
    return copy.copy_(one)


def _same_pass(place: Place, tensors: Sequence[torch.Tensor], size: int) -> bool:
    """Compares the GPU with the host's grid; dry, the host's grid with torch operations."""
    with kernels_on_host():
        wanted = _found(HOST, tensors, size)
    if not place.dry:
        found = _found(place.device, tensors, size)
        return all(_same_or_nan(a, b) for a, b in zip(found, wanted, strict=True))
    by_dtype = [[t for t in tensors if t.dtype == dtype] for dtype in DTYPES]
    sums = [torch_pass.sums_of(t, [0] * len(t), torch.float64, 0) for t in by_dtype if t]
    integers = torch.cat([one.integers for one in sums])
    return torch.equal(integers, wanted[0][:, 2:])


def _same_or_nan(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The processor determines which NaN a sum of several NaNs gives."""
    if a.dtype == torch.int64:
        doubles = [one[:, :2].contiguous().view(torch.float64) for one in (a, b)]
        return _same_or_nan(*doubles) and torch.equal(a[:, 2:], b[:, 2:])
    return same_bits(a.nan_to_num(nan=0.0), b.nan_to_num(nan=0.0)) and torch.equal(
        a.isnan(), b.isnan()
    )


def _fingerprints(place: Place, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    with place.kernels():
        return fingerprints_by_kernels([one.to(place.device, copy=True) for one in tensors]).cpu()


def _same_rows(place: Place, rows: int, columns: int) -> bool:
    x = torch.randint(3, (rows, columns), generator=torch.Generator().manual_seed(rows))
    mask = x > 0
    same = True
    for given in (None, mask):
        wanted = _core.hash_rows(x, given)
        with place.kernels():
            moved = None if given is None else given.to(place.device)
            found = row_hashes_by_kernel(x.to(place.device), moved)
        same &= [value % (1 << 64) for value in found.tolist()] == wanted
    return same


def _same_sums(place: Place, dtype: torch.dtype, *, small: bool) -> bool:
    same = True
    for leaves in (1, 8) if small or place.dry else (1, 8, 64, 200):
        terms = [_strange(3001, dtype), *(_values(3001, dtype) for _ in range(leaves - 1))]
        for mean in (False, True):
            wanted = reduce.sum(terms, mean=mean)
            with place.kernels():
                moved = [one.to(place.device) for one in terms]
                found = reduce.sum(moved, mean=mean)
            same &= same_bits(found, wanted)
    return same
