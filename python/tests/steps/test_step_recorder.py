# SPDX-License-Identifier: Apache-2.0
"""What of a training becomes steps, on one worker."""

from __future__ import annotations

import array
import gc
import sys
import threading
import weakref
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import presum
from helpers.loss_model import LossModel, train
from presum.parallel.ddp import DdpSource
from presum.steps.step_recorder import StepRecorder
from presum.transport.channel import Channel

pytestmark = pytest.mark.usefixtures("one_worker")


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
    assert {"step", "segment", "model_index", "rank", "grad_norm", "grad_max"} <= set(run.groups)


def test_what_a_program_keeps_of_a_forward_pass_does_not_keep_the_model(tmp_path: Path) -> None:
    model = DistributedDataParallel(LossModel())
    with presum.attach(model, run=tmp_path):
        kept = model(torch.ones(2, 4))
        kept["loss"].backward()
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None and kept["loss"].grad_fn is not None


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
    """The forward around the wrapper arms no reduction."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with presum.attach(model, optimizer=optimizer, run=tmp_path):
        first = model.module(torch.ones(2, 4))["loss"]
        second = model(torch.ones(2, 4) * 2)["loss"]
        second.backward()
        first.backward()
        optimizer.step()
    workers = presum.load(tmp_path).workers
    assert workers.loss.tolist() == [pytest.approx(second.item()), pytest.approx(first.item())]
    assert workers.reduced.tolist() == [1, 0]
    assert workers.use.tolist() == ["kept", "used"]


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
    calls = []

    def broken(*_args: object, **_kwargs: object) -> None:
        calls.append(1)
        raise RuntimeError("lone surrogate \udc80")

    monkeypatch.setattr(StepRecorder, "before_backward", broken)
    monkeypatch.setattr(Channel, "complain", broken)
    with presum.attach(model, run=tmp_path):
        train(model, 2)
    assert len(calls) == 2  # the second time of the complaint
    assert presum.load(tmp_path).steps.empty


@pytest.mark.parametrize("given", [True, False])
def test_grad_scaler_is_taken_out_of_the_norms(
    model: DistributedDataParallel, tmp_path: Path, given: bool
) -> None:
    """One that is not given, of the losses that it scaled."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    record = presum.Record(scaler=scaler if given else None)
    with presum.attach(model, run=tmp_path, record=record):
        for scale in (scaler.scale, lambda loss: loss / 1024):
            model.zero_grad()
            scale(model(torch.ones(2, 4))["loss"]).backward()
    norms = presum.load(tmp_path).workers.grad_norm
    assert norms[0] == pytest.approx(1024 * (1024 if given else 1) * norms[1], rel=1e-6)


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


def test_a_loss_outside_the_model_is_what_backward_is_called_on(tmp_path: Path) -> None:
    model = DistributedDataParallel(nn.Linear(4, 2))
    with presum.attach(model, run=tmp_path, record=presum.Record(quiet=True)):
        loss = model(torch.ones(3, 4)).square().mean()
        loss.backward()
        two = [model(torch.ones(3, 4)).sum(), model(torch.zeros(3, 4)).sum()]
        torch.autograd.backward(two)
        model(torch.ones(3, 4)).backward(torch.ones(3, 2))  # no number: not known
    losses = presum.load(tmp_path).workers.loss
    assert losses[:2].tolist() == pytest.approx([loss.item(), sum(two).item()])
    assert np.isnan(losses[2])


def test_several_forwards_and_one_backward_are_one_micro_batch(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    """As contrastive and preference losses are; whatever the outputs are called."""
    plain = DistributedDataParallel(nn.Linear(4, 2))
    with presum.attach(plain, run=tmp_path / "outside", record=presum.Record(quiet=True)):
        views = [plain(torch.full((3, 4), float(k))) for k in (1, 2)]
        outside = (views[0] - views[1]).square().mean()
        outside.backward()
    with presum.attach(model, run=tmp_path / "inside", record=presum.Record(quiet=True)):
        inside = model(torch.ones(2, 4))["loss"] - 0.5 * model(torch.zeros(2, 4))["loss"]
        inside.backward()
    for name, loss in (("outside", outside), ("inside", inside)):
        (worker,) = presum.load(tmp_path / name).workers.to_dict("records")
        assert worker["micro_batches"] == 1 and worker["weight"] == 1
        assert worker["loss"] == pytest.approx(loss.item())


def test_a_scaler_counts_for_the_model_whose_loss_it_scaled(tmp_path: Path) -> None:
    models = [DistributedDataParallel(LossModel()) for _ in range(2)]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    monitors = [
        presum.attach(model, run=tmp_path, record=presum.Record(quiet=True)) for model in models
    ]
    for _ in range(2):
        scaler.scale(models[0](torch.ones(2, 4))["loss"]).backward()
        models[1](torch.ones(2, 4))["loss"].backward()
        plain = models[1].module.layers[0].weight.grad.norm().item()
        for model in models:
            model.zero_grad()
    for monitor in monitors:
        monitor.close()
    norms = presum.load(tmp_path).workers.groupby("model_index").grad_norm.last()
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

    with presum.attach(model, run=tmp_path, audit=1, record=presum.Record(quiet=True)):
        copied = deepcopy(model)
        copied.register_comm_hook(None, hook)
        copied(torch.ones(2, 4))["loss"].backward()
        assert calls == [0]
        model.register_comm_hook(None, hook)
        model(torch.ones(2, 4))["loss"].backward()
        assert calls == [0, 0]
    model(torch.ones(2, 4))["loss"].backward()
    assert calls == [0, 0, 0]


def test_a_step_is_the_backward_pass_that_synchronizes(
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


def test_passes_that_never_synchronize_cost_no_memory(
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


class Waits(torch.autograd.Function):
    inside = threading.Event()
    done = threading.Event()

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor) -> torch.Tensor:
        return loss * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        Waits.inside.set()
        Waits.done.wait(30)
        return gradient


def test_nobody_reads_gradients_that_another_thread_is_about_to_write(
    model: DistributedDataParallel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its pass has reached the model's output."""
    looked_from: list[threading.Thread] = []
    held = DdpSource.held

    def noted(source: DdpSource) -> Any:
        looked_from.append(threading.current_thread())
        return held(source)

    monkeypatch.setattr(DdpSource, "held", noted)

    def step() -> None:
        Waits.apply(model(torch.ones(2, 4))["loss"]).backward()

    with presum.attach(model, run=tmp_path):
        thread = threading.Thread(target=step)
        thread.start()
        assert Waits.inside.wait(30)
        other = torch.ones(1, requires_grad=True)
        other.sum().backward()
        Waits.done.set()
        thread.join(30)
        assert set(looked_from) == {thread}
    assert len(presum.load(tmp_path).steps) == 1
