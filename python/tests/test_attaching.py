# SPDX-License-Identifier: Apache-2.0
"""presum.attach and presum.load on one worker: arguments, mistakes, the life of a monitor."""

from __future__ import annotations

import array
import contextlib
import gc
import pickle
import sqlite3
import subprocess
import sys
import threading
import time
import weakref
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import presum
from helpers.cuda_events import FakeEvent
from presum._core import Observer
from presum.devices.gradient_pass import DeviceStep, HostCopy
from presum.parallel.ddp import DdpCollector
from presum.transport.channel import Channel
from presum.transport.session import open_sessions
from presum.transport.store_queue import StoreQueue

pytestmark = pytest.mark.usefixtures("one_worker")


class LossModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 1)])

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, object]:
        for layer in self.layers:
            x = layer(x)
        return {"loss": x.square().mean()}


@pytest.fixture
def model() -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(LossModel())


def train(model: nn.Module, steps: int, *, nan_at: int | None = None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(steps):
        optimizer.zero_grad()
        x = torch.ones(2, 4) * (float("nan") if step == nan_at else 1 + step)
        model(x, labels=torch.tensor([[1, -100], [2, 3]]))["loss"].backward()


def test_one_worker_is_recorded_with_an_undefined_cosine(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    with presum.attach(model, run=tmp_path / "run"):
        train(model, 3)
    run = presum.load(tmp_path / "run")
    assert run.steps.step.tolist() == [0, 1, 2]
    assert (run.steps.loss_std == 0).all() and (run.steps.grad_norm_std == 0).all()
    assert run.steps.cosine_mean.isna().all()
    assert run.cosines(1).tolist() == [[1.0]]
    assert run.workers.tokens.tolist() == [3, 3, 3]
    assert set(run.groups.group) == {"layers.0", "layers.1"}
    assert run.facts.set_index("key").value["world_size"] == "1"
    assert {"step", "segment", "module", "rank", "grad_norm", "grad_max"} <= set(run.groups)


def test_nonfinite_values_are_recorded_and_check_names_them(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    with presum.attach(model, run=tmp_path):
        train(model, 3, nan_at=1)
    workers = presum.load(tmp_path).workers
    assert workers.nonfinite.tolist() == [0, 25, 0]
    assert workers.loss_nonfinite.tolist() == [0, 1, 0]
    done = presum_command("check", tmp_path, "--fail-on", "warning")
    assert done.returncode == 1
    assert "Rank 0 had a gradient that was not finite" in done.stdout


def presum_command(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "presum", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_explicit_losses_replace_the_model_s_and_are_weighted(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    with presum.attach(model, run=tmp_path) as monitor:
        train(model, 1)
        monitor.loss(1.0, weight=3)
        monitor.loss(torch.tensor([5.0]), weight=1)
    workers = presum.load(tmp_path).workers
    assert workers.loss.tolist() == [2.0]
    assert workers.weight.tolist() == [4.0]


def test_a_loss_that_the_user_changes_in_place_is_recorded_as_it_was(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    with presum.attach(model, run=tmp_path):
        loss = model(torch.ones(2, 4))["loss"]
        was = loss.item()
        loss.backward()
        loss.detach().div_(8)
    assert presum.load(tmp_path).workers.loss.tolist() == [pytest.approx(was)]


def test_what_a_program_keeps_of_a_forward_pass_does_not_keep_the_model(tmp_path: Path) -> None:
    model = DistributedDataParallel(LossModel())
    with presum.attach(model, run=tmp_path):
        kept = model(torch.ones(2, 4))
        kept["loss"].backward()
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None and kept["loss"].grad_fn is not None


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
        def note(self, *_: object) -> bytes:
            raise RuntimeError("planted failure")

    monkeypatch.setattr("presum.attaching.Observer", Broken)
    monitor = presum.attach(model, run=tmp_path)
    train(model, 2)
    monitor.close()
    assert "planted failure" in caplog.text
    assert len(presum.load(tmp_path).steps) == 2


class Store:
    """Answers as told, then fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def queue_len(self, _name: str) -> int:
        return 2

    def queue_pop(self, _name: str, *, block: bool) -> bytes:
        raise self._error


@pytest.mark.parametrize("lost", [False, True])
def test_a_queue_that_somebody_else_emptied_is_no_reason_to_give_up(
    lost: bool, model: DistributedDataParallel, tmp_path: Path
) -> None:
    error = dist.DistNetworkError("planted") if lost else dist.QueueEmptyError("empty")
    with presum.attach(model, run=tmp_path):
        recorder = open_sessions()[0].recorder
        recorder.queue = StoreQueue(Store(error), "key")
        deadline = time.monotonic() + 5
        while lost and not recorder.others_lost and time.monotonic() < deadline:
            time.sleep(0.01)
        train(model, 2)
        time.sleep(0.2)
        assert recorder.others_lost == lost
        recorder.queue = None
    assert presum.load(tmp_path).steps.step.tolist() == [0, 1]


def test_a_closed_monitor_lets_the_model_go(tmp_path: Path) -> None:
    model = DistributedDataParallel(LossModel())
    with presum.attach(model, run=tmp_path) as monitor:
        train(model, 2)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    monitor.loss(1.0)  # after close: ignored


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
    monkeypatch.setattr("presum.steps.collector.in_host_memory", lambda device: False)
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
    monitor = presum.attach(model, run=tmp_path, quiet=True)
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
    monitor = presum.attach(model, run=tmp_path, quiet=True)
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
    monitor = presum.attach(model, run=tmp_path, quiet=True)
    with monkeypatch.context() as full:
        full.setattr("presum.transport.outbox.PACKETS_MAX", 0)
        train(model, 3)
    began = time.monotonic()
    monitor.close()
    assert time.monotonic() - began < 0.9


class GivesAParameter(nn.Module):
    """As models with a learned temperature do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.temperature, self.layer(x)


def test_a_model_that_returns_a_parameter_gets_no_hook_on_it(tmp_path: Path) -> None:
    model = DistributedDataParallel(GivesAParameter())
    with presum.attach(model, run=tmp_path):
        for _ in range(5):
            temperature, scores = model(torch.ones(2, 4))
            (scores.square().mean() * temperature).backward()
        assert not model.module.temperature._backward_hooks
    workers = presum.load(tmp_path).workers
    assert len(workers) == 5 and workers.loss.between(0, 100).all()
    assert not (workers.loss == 1).any()  # the temperature is no loss


def test_an_output_that_is_given_again_keeps_one_hook(tmp_path: Path) -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)
            self.kept: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.kept is None:
                self.kept = self.layer(x).square().mean()
            return self.kept

    model = DistributedDataParallel(Cached(), find_unused_parameters=True)
    with presum.attach(model, run=tmp_path):
        for _ in range(4):
            loss = model(torch.ones(2, 4))
            loss.backward(retain_graph=True)
        assert len(loss._backward_hooks or ()) == 1
    assert len(presum.load(tmp_path).workers) == 4


def test_losses_of_two_forwards_belong_to_their_own_backward_passes(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    with presum.attach(model, run=tmp_path):
        first = model.module(torch.ones(2, 4))["loss"]
        second = model(torch.ones(2, 4))["loss"]
        second.backward()
        first.backward()
    losses = presum.load(tmp_path).workers.loss
    assert losses.tolist() == [pytest.approx(second.item()), pytest.approx(first.item())]


def test_gradients_of_inputs_alone_are_no_step(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    x = torch.ones(2, 4, requires_grad=True)
    with presum.attach(model, run=tmp_path):
        loss = model(x)["loss"]
        torch.autograd.grad(loss, x, retain_graph=True)
        loss.backward()
    workers = presum.load(tmp_path).workers
    assert len(workers) == 1
    assert workers.micro_batches.tolist() == [1]
    assert workers.loss.notna().all()


def test_a_failing_error_report_does_not_reach_training(
    model: DistributedDataParallel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object, **_kwargs: object) -> None:
        raise RuntimeError("lone surrogate \udc80")

    monkeypatch.setattr(DdpCollector, "read", broken)
    monkeypatch.setattr(Channel, "complain", broken)
    with presum.attach(model, run=tmp_path):
        train(model, 2)
    assert presum.load(tmp_path).steps.empty


def test_ignored_parameters_are_not_watched(tmp_path: Path) -> None:
    inner = LossModel()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        inner, ["layers.1.weight", "layers.1.bias"]
    )
    model = DistributedDataParallel(inner)
    with presum.attach(model, run=tmp_path):
        train(model, 1)
    assert set(presum.load(tmp_path).groups.group) == {"layers.0"}


def test_a_validation_forward_is_not_a_loss(model: DistributedDataParallel, tmp_path: Path) -> None:
    with presum.attach(model, run=tmp_path):
        train(model, 1)
        with torch.no_grad():
            model(torch.ones(2, 4) * 100)
        model(torch.ones(2, 4) * 100)
        train(model, 1)
    losses = presum.load(tmp_path).workers.loss
    assert losses[0] == losses[1]


def test_every_and_reduced_every_thin_out_the_record(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    with presum.attach(model, run=tmp_path, every=3, reduced_every=6, sketch=0, groups=False):
        train(model, 14)
    run = presum.load(tmp_path)
    assert run.steps.step.tolist() == [0, 3, 6, 9, 12]
    assert run.steps.reduced_norm.notna().tolist() == [True, False, True, False, True]
    assert set(run.groups.group) == {"all"}


def test_groups_by_pattern(model: DistributedDataParallel, tmp_path: Path) -> None:
    with presum.attach(model, run=tmp_path, groups=[r"layers\.0", "bias"]):
        train(model, 1)
    assert set(presum.load(tmp_path).groups.group) == {"layers.0", "bias", "other"}


def test_grad_scaler_is_taken_out_of_the_norms(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with presum.attach(model, run=tmp_path, scaler=scaler):
        for scale in (scaler.scale, lambda loss: loss / 1024):
            model.zero_grad()
            scale(model(torch.ones(2, 4))["loss"]).backward()
    norms = presum.load(tmp_path).workers.grad_norm
    assert norms[0] == pytest.approx(1024 * 1024 * norms[1], rel=1e-6)


def test_a_second_attach_to_the_same_run_is_a_new_segment(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    for steps in (2, 3):
        with presum.attach(model, run=tmp_path):
            train(model, steps)
    run = presum.load(tmp_path)
    assert run.steps.segment.tolist() == [1, 1, 2, 2, 2]
    assert run.steps.step.tolist() == [0, 1, 0, 1, 2]


def test_two_models_share_a_run(model: DistributedDataParallel, tmp_path: Path) -> None:
    other = DistributedDataParallel(LossModel())
    with presum.attach(model, run=tmp_path), presum.attach(other, run=tmp_path):
        train(model, 2)
        train(other, 1)
    steps = presum.load(tmp_path).steps
    assert steps.module.tolist() == [0, 0, 1]


def test_attached_models_copy_and_pickle(model: DistributedDataParallel, tmp_path: Path) -> None:
    with presum.attach(model, run=tmp_path):
        copy = deepcopy(model.module)
        again = pickle.loads(pickle.dumps(model._forward_hooks))
        assert len(again) == 1
        train(copy, 1)
    with pytest.raises(presum.UserError, match="no such run"):
        presum.load(tmp_path / "elsewhere")
    assert presum.load(tmp_path).steps.empty


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every": 0}, "every must be"),
        ({"reduced_every": 2.5}, "reduced_every must be"),
        ({"sketch": "big"}, "sketch must be"),
        ({"sketch": 100}, "not 0 or a power of two"),
        ({"sketch": -1}, "sketch must be"),
        ({"process_group": "x"}, "process_group must be of type ProcessGroup, not str"),
        ({"optimizer": nn.Linear(1, 1)}, "optimizer must be of type Optimizer, not Linear"),
    ],
)
def test_bad_arguments_are_one_clear_line(
    model: DistributedDataParallel, tmp_path: Path, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        presum.attach(model, run=tmp_path, **arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    with presum.attach(model, run=tmp_path):
        train(model, 1)
    assert len(presum.load(tmp_path).steps) == 1


def test_user_mistakes(model: DistributedDataParallel, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="attach after wrapping"):
        presum.attach(model.module, run=tmp_path)  # type: ignore[arg-type]
    with presum.attach(model, run=tmp_path) as monitor:
        with pytest.raises(ValueError, match="attached already"):
            presum.attach(model, run=tmp_path)
        with pytest.raises(ValueError, match="at least 0"):
            monitor.loss(1.0, weight=-1)
        with pytest.raises(ValueError, match="one number"):
            monitor.loss(torch.ones(3))
    monitor.close()


def test_a_backward_that_raises_does_not_confuse_the_next_step(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    def explode(_grad: torch.Tensor) -> None:
        raise RuntimeError("user's own")

    with presum.attach(model, run=tmp_path):
        x = torch.ones(2, 4, requires_grad=True)
        x.register_hook(explode)
        with model.no_sync(), pytest.raises(RuntimeError, match="user's own"):
            model(x)["loss"].backward()
        train(model, 2)
    losses = presum.load(tmp_path).workers.loss
    assert np.isfinite(losses).all()
    assert len(losses) == 2


def test_bad_runs_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "presum.db").write_bytes(b"not a database" * 100)
    for verb in ("summary", "check", "export"):
        for run in (tmp_path, tmp_path / "nothing", tmp_path.parent):
            done = presum_command(verb, run)
            assert done.returncode == 2
            assert len(done.stderr.splitlines()) == 1, done.stderr
    with pytest.raises(presum.UserError, match="not a presum run log"):
        presum.load(tmp_path)


def test_a_loss_outside_the_model_is_what_backward_is_called_on(tmp_path: Path) -> None:
    model = DistributedDataParallel(nn.Linear(4, 2))
    with presum.attach(model, run=tmp_path, quiet=True):
        loss = model(torch.ones(3, 4)).square().mean()
        loss.backward()
        torch.autograd.backward([model(torch.ones(3, 4)).sum()])  # no single tensor: not known
    losses = presum.load(tmp_path).workers.loss
    assert losses[0] == pytest.approx(loss.item()) and np.isnan(losses[1])


def test_a_scaler_counts_for_the_model_whose_loss_it_scaled(tmp_path: Path) -> None:
    models = [DistributedDataParallel(LossModel()) for _ in range(2)]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    monitors = [presum.attach(model, run=tmp_path, quiet=True) for model in models]
    for _ in range(2):
        scaler.scale(models[0](torch.ones(2, 4))["loss"]).backward()
        models[1](torch.ones(2, 4))["loss"].backward()
        plain = models[1].module.layers[0].weight.grad.norm().item()
        for model in models:
            model.zero_grad()
    for monitor in monitors:
        monitor.close()
    norms = presum.load(tmp_path).workers.groupby("module").grad_norm.last()
    assert plain <= norms[1] < 100 * plain
    assert norms[0] < 100 * plain


def test_a_hook_on_a_copied_model_is_the_user_s_own(tmp_path: Path) -> None:
    model = DistributedDataParallel(LossModel())
    calls = []

    def hook(state, bucket):  # DDP compares annotations with types
        calls.append(bucket.index())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    with presum.attach(model, run=tmp_path, mode="hook", quiet=True):
        copied = deepcopy(model)
        copied.register_comm_hook(None, hook)
        copied(torch.ones(2, 4))["loss"].backward()
        assert calls == [0]
        model.register_comm_hook(None, hook)
        model(torch.ones(2, 4))["loss"].backward()
        assert calls == [0, 0]
    model(torch.ones(2, 4))["loss"].backward()
    assert calls == [0, 0, 0]


def test_mistakes_are_one_line(model: DistributedDataParallel, tmp_path: Path) -> None:
    bad = {
        "attach after wrapping": lambda: presum.attach(nn.Linear(2, 2), run=tmp_path),
        "needs a module": lambda: presum.attach(3, run=tmp_path),
        "for DistributedDataParallel": lambda: presum.attach(
            nn.Linear(2, 2), run=tmp_path, mode="hook"
        ),
        "nobody else reduces": lambda: presum.attach(model, run=tmp_path, mode="manual"),
        "gram_every needs": lambda: presum.attach(model, run=tmp_path, gram_every=2),
        "mode must be": lambda: presum.attach(model, run=tmp_path, mode="other"),
    }
    for text, call in bad.items():
        with pytest.raises(ValueError, match=text) as raised:
            call()
        assert "\n" not in str(raised.value)
    with presum.attach(model, run=tmp_path, quiet=True) as monitor:
        with pytest.raises(ValueError, match="attached already"):
            presum.attach(model, run=tmp_path)
        with pytest.raises(ValueError, match="manual"):
            monitor.before_reduction([])
    with presum.attach(nn.Linear(2, 2), run=tmp_path, mode="manual", quiet=True) as monitor:
        with pytest.raises(ValueError, match="'odd' is not a parameter"):
            monitor.before_reduction([("odd", torch.ones(2))])
        with pytest.raises(ValueError, match="has 3 elements"):
            monitor.before_reduction([("bias", torch.ones(3))])
    monitor.before_reduction([("bias", torch.ones(2))])  # after close: ignored


def test_a_step_is_the_backward_pass_that_synchronises(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    """Several forwards under no_sync, then their backwards, of which the last is told to reduce."""
    accelerator = pytest.importorskip("accelerate").Accelerator
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with presum.attach(model, optimizer=optimizer, run=tmp_path):
        for _ in range(3):
            with model.no_sync():
                losses = [model(torch.ones(2, 4))["loss"] for _ in range(3)]
            for loss in losses[:-1]:
                loss.backward()
            with accelerator.trigger_sync_in_backward(model):
                losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
    workers = presum.load(tmp_path).workers
    assert workers.step.tolist() == [0, 1, 2]
    assert workers.micro_batches.tolist() == [3, 3, 3]


def test_a_forward_without_gradients_before_the_backward_changes_nothing(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    with presum.attach(model, run=tmp_path):
        for _ in range(2):
            loss = model(torch.ones(2, 4))["loss"]
            with torch.no_grad():
                model(torch.ones(2, 4))
            loss.backward()
    assert presum.load(tmp_path).workers.micro_batches.tolist() == [1, 1]


def test_passes_that_never_synchronise_cost_no_memory(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    blocks = {}
    with presum.attach(model, run=tmp_path) as monitor:
        losses = array.array("d")
        with model.no_sync():
            for step in range(5000):
                loss = model(torch.full((2, 4), step % 7 + 1.0))["loss"]
                loss.backward()
                losses.append(loss.item())
                monitor.loss(loss, weight=1 + step % 2)
                if step in (2100, 4200):
                    gc.collect()
                    blocks[step] = sys.getallocatedblocks()
        assert blocks[4200] < blocks[2100] + 1000
        loss = model(torch.ones(2, 4))["loss"]
        loss.backward()
        monitor.loss(loss, weight=1)
        losses.append(loss.item())
    (worker,) = presum.load(tmp_path).workers.to_dict("records")
    weights = [1 + step % 2 for step in range(5000)] + [1]
    assert worker["loss"] == pytest.approx(np.average(losses, weights=weights), rel=1e-9)
    assert worker["weight"] == sum(weights)


def test_the_mean_loss_of_many_micro_batches_is_that_of_all(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    losses = []
    with presum.attach(model, run=tmp_path):
        for step in range(3000):
            context = model.no_sync() if step < 2999 else contextlib.nullcontext()
            with context:
                loss = model(torch.full((2, 4), step % 5 + 1.0))["loss"]
                loss.backward()
            losses.append(loss.item())
    (worker,) = presum.load(tmp_path).workers.to_dict("records")
    assert worker["loss"] == pytest.approx(np.mean(losses), rel=1e-9)
    assert worker["weight"] == worker["micro_batches"] == 3000


def test_functions_stay_functions_after_others_are_used() -> None:
    code = "import presum; presum.Run; presum.Monitor; import presum.frameworks.auto; "
    code += "import presum.attaching, presum.loading; assert callable(presum.attach), presum.attach"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; assert callable(presum.load)"], check=False
    )
    assert done.returncode == 0
