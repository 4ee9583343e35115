# SPDX-License-Identifier: Apache-2.0
"""Where a section runs: on a GPU, or, dry, on the host with the kernels' grid in its memory."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist

from experiments.launch import free_port
from presum import _core
from presum.reduce import kernels as sum_kernels

HOST = torch.device("cpu")


@dataclass
class Findings:
    """Rows of a section, in words: all right where all are. Calls ``written`` with each."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    written: Callable[[], None] = lambda: None

    def say(self, what: str, value: object, *, ok: bool = True) -> None:
        self.rows.append({"what": what, "value": value, "ok": ok})
        self.written()
        print(f"   {'' if ok else 'FAILED '}{what}: {value}", flush=True)


@dataclass(frozen=True)
class Place:
    """The device, and whether the host stands in for it."""

    dry: bool
    index: int = 0  # of the GPU

    @property
    def device(self) -> torch.device:
        return HOST if self.dry else torch.device("cuda", self.index)

    @contextlib.contextmanager
    def kernels(self) -> Iterator[None]:
        """Tensors there are read and summed by kernels."""
        if not self.dry:
            yield
            return
        with kernels_on_host():
            yield


@contextlib.contextmanager
def kernels_on_host() -> Iterator[None]:
    """The host's memory is a device's."""
    _core.cuda_on_host(True)
    try:
        with _read_as_on_a_device():
            yield
    finally:
        _core.cuda_on_host(False)


@contextlib.contextmanager
def _read_as_on_a_device() -> Iterator[None]:
    with (
        mock.patch("presum.attaching.in_host_memory", return_value=False),
        mock.patch("presum.devices.gradient_pass.why_not", return_value=None),
        mock.patch("presum.devices.hashes.why_not", return_value=None),
        mock.patch("presum.reduce.tensors.elsewhere", return_value=sum_kernels),
    ):
        yield


def alone(place: Place) -> None:
    """A process group of one."""
    backend = "gloo" if place.dry else "nccl"
    where = f"tcp://127.0.0.1:{free_port()}"
    dist.init_process_group(backend, init_method=where, rank=0, world_size=1)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """NaNs of the same bits are the same."""
    a, b = a.cpu().contiguous().view(torch.uint8), b.cpu().contiguous().view(torch.uint8)
    return torch.equal(a, b)


HOST_CYCLES = 5_000_000  # of the GPU, while the host queues: a few milliseconds


def milliseconds(work: Callable[[], object]) -> float:
    """On the GPU, between two events; what the host needs to queue it does not count."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda._sleep(HOST_CYCLES)  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


class Measured(NamedTuple):
    """A median, and what holds 95 % of medians of resamples."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def ratio_of(first: Callable[[], object], second: Callable[[], object], rounds: int) -> Measured:
    """Of their times, measured in turn."""
    first(), second()
    ratios = [milliseconds(first) / milliseconds(second) for _ in range(rounds)]
    generator = torch.Generator().manual_seed(0)
    medians = sorted(
        statistics.median(ratios[i] for i in picked)
        for picked in torch.randint(rounds, (400, rounds), generator=generator).tolist()
    )
    return Measured(statistics.median(ratios), medians[10], medians[389])
