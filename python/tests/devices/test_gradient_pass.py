# SPDX-License-Identifier: Apache-2.0
"""The gradient pass on devices against that in host memory."""

from __future__ import annotations

import struct
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from helpers.cuda_events import FakeEvent
from helpers.gradient_passes import both, expect_equal
from presum.devices import gradient_pass
from presum.devices.blocks import DTYPES
from presum.devices.gradient_pass import DeviceStep, poll_host_copies
from presum.devices.torch_pass import CHUNK

TOTAL, SKETCH, REDUCED = 2, 4, 7


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("count", [0, 1, 2, 3, 63, 64, 1023, 1024, 1025, 4097, 50_001])
@pytest.mark.parametrize("sketch_size", [0, 64, 4096])
@pytest.mark.parametrize("by_kernels", [False, True])
@pytest.mark.usefixtures("on_host")
def test_equals_the_cpp_pass(
    dtype: torch.dtype, count: int, sketch_size: int, by_kernels: bool
) -> None:
    tensor = (torch.randn(count, generator=torch.Generator().manual_seed(count)) * 3).to(dtype)
    expect_equal(*both(tensor, sketch_size, reduced=False, by_kernels=by_kernels))


def test_chunks_do_not_show() -> None:
    tensor = torch.arange(CHUNK + 5000, dtype=torch.float32).remainder(97) - 40
    expect_equal(*both(tensor, 1024, reduced=False))


def test_nonfinite_elements_are_counted_and_left_out_of_the_maximum() -> None:
    tensor = torch.tensor([1.0, float("nan"), -7.0, float("inf")])
    host, device = both(tensor, 64, reduced=False)
    expected, found = struct.unpack("<ddQQQ", host[TOTAL]), struct.unpack("<ddQQQ", device[TOTAL])
    assert np.isnan(found[0]) and np.isnan(expected[0])
    assert found[1:] == expected[1:]
    assert found[2] == 2


def test_the_reduced_gradient_has_no_sketch() -> None:
    host, device = both(torch.randn(2000), 64, reduced=True)
    expected, found = struct.unpack("<ddQQ", host[REDUCED]), struct.unpack("<ddQQ", device[REDUCED])
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    assert found[1:] == expected[1:]
    assert not np.frombuffer(device[SKETCH], "<f4").any()


def test_scalars_travel_along() -> None:
    step = DeviceStep(torch.device("cpu"), 64)
    fetched = step.fetch([torch.tensor(2.5), torch.tensor(7)])()
    assert fetched.extra == [2.5, 7.0]
    assert fetched.gradients == []


def test_elements_are_read_as_they_lie_in_memory() -> None:
    tensor = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    expect_equal(*both(tensor, 64, reduced=False))


class FakeStream:
    """A CUDA stream that writes down what it is told."""

    cuda_stream = 7

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_event(self, event: FakeEvent) -> None:
        self.log.append(f"{self.name} waits for {event.recorded}")


class StreamEvent:
    def __init__(self) -> None:
        self.recorded = ""

    def record(self, stream: FakeStream) -> None:
        stream.log.append(f"event on {stream.name}")
        self.recorded = stream.name


def fake_tensor(log: list[str], name: str) -> Any:
    return SimpleNamespace(record_stream=lambda stream: log.append(f"{stream.name} keeps {name}"))


def test_the_fetching_stream_waits_for_every_stream_that_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    compute, reduce = FakeStream("compute", log), FakeStream("reduce", log)
    current = [reduce]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: current[0])
    monkeypatch.setattr(torch.cuda, "Event", StreamEvent)
    streams = gradient_pass.StreamOrder(torch.device("cuda", 0))
    for current[0], name in ((reduce, "a"), (compute, "b"), (reduce, "c")):
        streams.read([fake_tensor(log, name)])
    current[0] = compute
    streams.join([fake_tensor(log, "numbers")])
    assert log == [
        *("reduce keeps a", "event on reduce", "compute keeps b", "event on compute"),
        *("reduce keeps c", "event on reduce"),
        *("compute waits for reduce", "compute waits for compute", "compute keeps numbers"),
    ]


def test_what_fails_on_the_device_is_raised_where_its_packet_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails() -> bool:
        raise RuntimeError("planted: device-side assert")

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    broken, whole = FakeEvent(), FakeEvent()
    monkeypatch.setattr(broken, "query", fails)
    whole.happened = True
    fetches = [DeviceStep(torch.device("cpu"), 0).fetch([]) for _ in range(2)]
    for fetch, event in zip(fetches, (broken, whole), strict=True):
        fetch.follow(event)  # type: ignore[arg-type]
    poll_host_copies()
    assert [fetch.ready() for fetch in fetches] == [True, True]
    with pytest.raises(RuntimeError, match="planted"):
        fetches[0]()
    assert fetches[1]().gradients == []


def test_only_the_training_thread_asks_and_not_while_a_graph_is_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capturing = False
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    fetches = [DeviceStep(torch.device("cpu"), 0).fetch([]) for _ in range(2)]
    events = [FakeEvent(), FakeEvent()]
    for fetch, event in zip(fetches, events, strict=True):
        fetch.follow(event)  # type: ignore[arg-type]
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.extend(f.ready() for f in fetches))
    thread.start()
    thread.join()
    assert answers == [False, False] and events[0].asked == []
    capturing = True
    poll_host_copies()
    assert events[0].asked == []
    capturing, events[0].happened = False, True
    poll_host_copies()
    assert [fetch.ready() for fetch in fetches] == [True, False]
    events[1].happened = True
    poll_host_copies()
    assert fetches[1].ready() and set(events[1].asked) == {threading.current_thread().name}
