# SPDX-License-Identifier: Apache-2.0
"""Norms that a program computes: one worker, its packets read back."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_

from helpers.training import Training
from helpers.values import real
from presum.fingerprints.clipping import norm_of, norm_values, share_of

pytestmark = pytest.mark.usefixtures("one_worker")
CPU = torch.device("cpu")


def test_a_step_tells_the_norm_that_it_is_clipped_by(training: Training) -> None:
    model, optimizer = training.model, training.optimizer
    norms = []
    with training.watched() as monitor:
        for step in range(30):
            optimizer.zero_grad()
            model(torch.full((2, 4), 1.0 + step))["loss"].backward()
            norms.append(float(clip_grad_norm_(model.parameters(), 0.5)))
            monitor.grad_norm(norms[-1])
            optimizer.step()
    values = [step.values for step in training.steps]
    assert [real(v["clip_norm"]) for v in values] == norms
    assert [real(v["grad_norm_told"]) for v in values] == norms
    assert {real(v["clip_limit"]) for v in values} == {0.5}
    for name in ("clipped_norm", "grad_norm_then"):
        assert [at for at, v in enumerate(values) if name in v] == [0, 25]
    assert real(values[0]["grad_norm_then"]) <= 0.501
    assert real(values[0]["clipped_norm"]) == pytest.approx(norms[0], rel=1e-6)


@pytest.mark.parametrize("kind", [math.inf, 1.0, 3.0])
def test_a_norm_of_another_type_comes_with_the_gradients_own_of_that_type(
    kind: float, training: Training
) -> None:
    model, optimizer = training.model, training.optimizer
    with training.watched():
        for clip in (
            lambda: clip_grad_norm_(model.parameters(), 0.5, kind),
            lambda: clip_grads_with_norm_(model.parameters(), 0.5, torch.tensor(7.0)),
            lambda: clip_grad_norm_(model.parameters(), 0.5, 0.5),
            lambda: clip_grad_norm_(model.parameters(), 0.5),
        ):
            optimizer.zero_grad()
            model(torch.ones(2, 4))["loss"].backward()
            clip()
            optimizer.step()
    own, unknown, below_one, plain = (step.values for step in training.steps)
    assert real(own["clip_norm_type"]) == kind
    assert real(own["clipped_norm"]) == pytest.approx(real(own["clip_norm"]), rel=1e-6)
    assert math.isnan(real(unknown["clip_norm_type"])) and real(unknown["clip_norm"]) == 7
    assert math.isnan(real(below_one["clip_norm_type"]))
    assert "clip_norm_type" not in plain


def test_clipping_a_part_or_more_than_the_model_is_not_told(training: Training) -> None:
    model, optimizer = training.model, training.optimizer
    other = nn.Parameter(torch.ones(1))
    other.grad = torch.ones(1)
    with training.watched():
        for parameters in ([*model.parameters(), other], list(model.parameters())[:1]):
            optimizer.zero_grad()
            model(torch.ones(2, 4))["loss"].backward()
            clip_grad_norm_(parameters, 0.5)
            optimizer.step()
    assert training.values("clip_norm") == [None, None]


@pytest.mark.parametrize("bad", ["1.0", torch.ones(2), None, torch.ones(1, device="meta")])
def test_what_holds_no_norm_is_refused(training: Training, bad: Any) -> None:
    with training.watched() as monitor:
        with pytest.raises(ValueError, match="a norm must be one number"):
            monitor.grad_norm(bad)
        monitor.grad_norm(math.nan)
        monitor.grad_norm(torch.tensor([math.inf]))
    monitor.grad_norm(1.0)


def test_the_norm_is_that_of_all_gradients() -> None:
    generator = torch.Generator().manual_seed(1)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        gradients = [torch.randn(n, generator=generator).to(dtype) for n in (1, 100, 1000)]
        expected = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
        found = norm_of(gradients)
        assert found is not None and float(found) == pytest.approx(expected, rel=1e-6)
    assert norm_of([torch.ones(3), torch.ones(3).to_sparse()]) is None
    assert norm_of([torch.ones(3), torch.ones(3, device="meta")]) is None
    assert norm_of([]) is None
    assert norm_of([torch.ones(3)], 0.5) is None
    assert norm_of([torch.ones(3)], math.nan) is None
    assert float(norm_of([torch.ones(3), -2 * torch.ones(1)], math.inf)) == 2  # type: ignore[arg-type]
    assert float(norm_of([torch.ones(3), -2 * torch.ones(1)], 1.0)) == 5  # type: ignore[arg-type]


def test_norms_that_are_not_this_rank_s_own_are_left_out() -> None:
    ((kind, bits),) = norm_values("clip_norm", torch.tensor(2.5), CPU)
    assert (kind, real(int(bits))) == (64, 2.5)
    assert norm_values("clip_norm", 3, CPU)[0][1] == norm_values("clip_norm", 3.0, CPU)[0][1]
    for nothing in (None, "1", torch.ones(2), torch.ones((), device="meta")):
        assert norm_values("clip_norm", nothing, CPU) == []


def test_of_several_calls_in_a_step_the_last_counts(training: Training) -> None:
    model, optimizer = training.model, training.optimizer
    with training.watched():
        optimizer.zero_grad()
        for micro in range(2):
            model.require_backward_grad_sync = micro == 1
            model(torch.full((2, 4), 1.0 + micro))["loss"].backward()
            last = float(clip_grad_norm_(model.parameters(), 1e6))
        optimizer.step()
    assert real(training.steps[0].values["clip_norm"]) == last
    assert "clipped_norm" not in training.steps[0].values  # it was the first call's


def test_shares_of_parts_add_up_and_count_copies_once() -> None:
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicas", "shards"))
    part = DTensor.from_local(torch.tensor([3.0, 4.0]), mesh, [Replicate(), Shard(0)])
    share = share_of([part, torch.tensor([12.0])], 1)
    assert share is not None and float(share) == 169
    assert share_of([torch.ones(3)], 1) is None, "nothing is in parts"
    assert share_of([part], 2) is None, "its mesh is not the model's ranks"
    partial = DTensor.from_local(torch.ones(2), mesh, [Replicate(), Partial()])
    assert share_of([partial], 1) is None
