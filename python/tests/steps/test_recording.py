# SPDX-License-Identifier: Apache-2.0
"""The life of a recording, on one worker."""

from __future__ import annotations

import contextlib
import gc
import sqlite3
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import presum
from gpu_check.place import kernels_on_host
from helpers.cuda_events import FakeEvent
from helpers.loss_model import LossModel, train
from presum._core import Observer
from presum.devices.gradient_pass import DeviceStep, HostCopy
from presum.transport.session import open_sessions

pytestmark = pytest.mark.usefixtures("one_worker")


def test_the_process_group_is_held_until_the_recording_ends(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    """DDP's reducer must not be the last to hold it: see presum/steps/recording.py."""
    group = model.process_group
    before = sys.getrefcount(group)
    monitor = presum.attach(model, run=tmp_path)
    assert sys.getrefcount(group) > before
    monitor.close()
    assert sys.getrefcount(group) == before


def test_an_end_that_cannot_be_told_does_not_reach_the_program(
    model: DistributedDataParallel,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(Observer):
        def goodbye(self, *_: object) -> bytes:
            raise RuntimeError("planted failure")

    monkeypatch.setattr("presum.attaching.Observer", Broken)
    monitor = presum.attach(model, run=tmp_path)
    train(model, 2)
    monitor.close()
    assert "planted failure" in caplog.text
    assert len(presum.load(tmp_path).steps) == 2


def test_a_closed_monitor_lets_the_model_go(tmp_path: Path) -> None:
    model = DistributedDataParallel(LossModel())
    with presum.attach(model, run=tmp_path) as monitor:
        train(model, 2)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    monitor.loss(1.0)  # after close: ignored


def test_where_a_graph_is_captured_the_record_ends_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    captures = False
    monkeypatch.setattr("presum.steps.step_recorder.capturing", lambda _device: captures)
    model = DistributedDataParallel(LossModel())
    with (
        kernels_on_host(),
        presum.attach(model, run=tmp_path, record=presum.Record(quiet=True)),
    ):
        train(model, 3)
        captures = True
        train(model, 1)
        captures = False
        train(model, 2)
    run = presum.load(tmp_path)
    assert run.steps.step.tolist() == [0, 1]  # the next one was still open
    assert "a CUDA graph is captured" in run.segments.incomplete[0]
    assert "a CUDA graph is captured" in caplog.text


@pytest.fixture
def arrivals(monkeypatch: pytest.MonkeyPatch) -> list[FakeEvent]:
    """Of the numbers of steps, as if gradients were not in host memory."""
    found: list[FakeEvent] = []
    original = HostCopy.__init__

    def begin(fetch: HostCopy, *args: Any) -> None:
        original(fetch, *args)
        found.append(FakeEvent(after=3))
        fetch.follow(found[-1])  # type: ignore[arg-type]

    monkeypatch.setattr(HostCopy, "__init__", begin)
    monkeypatch.setattr("presum.attaching.in_host_memory", lambda device: False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr("presum.transport.session.ORPHAN_SECONDS", 0.02)
    return found


def recording() -> Any:
    """The only one of this process."""
    (session,) = open_sessions()
    (found,) = session.recordings
    return found


def test_of_a_model_that_goes_the_steps_on_a_device_are_recorded_but_the_open_one(
    tmp_path: Path, arrivals: list[FakeEvent], caplog: pytest.LogCaptureFixture
) -> None:
    model = DistributedDataParallel(LossModel())
    monitor = presum.attach(model, run=tmp_path, record=presum.Record(quiet=True))
    recorded = recording()
    train(model, 3)
    del model
    gc.collect()
    while not recorded.ended:
        time.sleep(0.01)
    monitor.close()
    gc.collect()
    assert not any(type(one) is DeviceStep for one in gc.get_objects())
    assert presum.load(tmp_path).steps.step.tolist() == [0, 1] and not caplog.text
    assert {name for one in arrivals for name in one.asked} == {threading.current_thread().name}


def test_states_of_a_step_that_did_not_end_are_no_final_ones(tmp_path: Path) -> None:
    def fails(_: torch.Tensor) -> None:
        raise RuntimeError("planted")

    model = DistributedDataParallel(LossModel())
    monitor = presum.attach(model, run=tmp_path, record=presum.Record(quiet=True))
    recorded = recording()
    model.module.layers[0].bias.register_hook(fails)
    with pytest.raises(RuntimeError, match="planted"):
        train(model, 1)
    del model
    gc.collect()
    while not recorded.ended:
        time.sleep(0.01)
    monitor.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "presum.db")) as db:
        assert db.execute("SELECT count(*) FROM final_state").fetchone() == (0,)


def test_what_is_dropped_on_a_device_is_not_waited_for(
    model: DistributedDataParallel,
    tmp_path: Path,
    arrivals: list[FakeEvent],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monitor = presum.attach(model, run=tmp_path, record=presum.Record(quiet=True))
    with monkeypatch.context() as full:
        full.setattr("presum.transport.outbox.PACKETS_MAX", 0)
        train(model, 3)
    monkeypatch.setattr("presum.steps.ended_steps.LAST_NUMBERS_SECONDS", 3600.0)
    monitor.close()
