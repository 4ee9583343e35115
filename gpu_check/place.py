# SPDX-License-Identifier: Apache-2.0
"""The place where a section runs: a GPU, or with --dry the host, with the kernels' grid in host
memory."""

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
    """The rows of a section, as text; the section is ok if all rows are. Calls ``written`` after
    each row."""

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
        """A context in which kernels read and sum tensors on this device."""
        if not self.dry:
            yield
            return
        with kernels_on_host():
            yield


@contextlib.contextmanager
def kernels_on_host() -> Iterator[None]:
    """A context in which host memory counts as a device's memory."""
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
    """Join a process group of one rank."""
    backend = "gloo" if place.dry else "nccl"
    where = f"tcp://127.0.0.1:{free_port()}"
    dist.init_process_group(backend, init_method=where, rank=0, world_size=1)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """NaNs with the same bits are equal."""
    a, b = a.cpu().contiguous().view(torch.uint8), b.cpu().contiguous().view(torch.uint8)
    return torch.equal(a, b)


HOST_CYCLES = 5_000_000  # of the GPU, while the host queues work: a few milliseconds


def milliseconds(work: Callable[[], object]) -> float:
    """The time on the GPU between two events. The host's time for queuing does not count."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda._sleep(HOST_CYCLES)  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


class Measured(NamedTuple):
    """A median, and the interval of 95 % of the medians of resamples."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def ratio_of(first: Callable[[], object], second: Callable[[], object], rounds: int) -> Measured:
    """The ratio of their times, measured alternately."""
    first(), second()
    ratios = [milliseconds(first) / milliseconds(second) for _ in range(rounds)]
    generator = torch.Generator().manual_seed(0)
    medians = sorted(
        statistics.median(ratios[i] for i in picked)
        for picked in torch.randint(rounds, (400, rounds), generator=generator).tolist()
    )
    return Measured(statistics.median(ratios), medians[10], medians[389])
