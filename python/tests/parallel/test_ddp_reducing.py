# SPDX-License-Identifier: Apache-2.0
"""attach(reduction=...) on DDP with one worker: leaves, what adds to them, what is refused."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import presum
from helpers.two_parts import TwoParts

pytestmark = pytest.mark.usefixtures("one_worker")


PARTS = (1e8, 1.0, -1e8)  # of which the sum is 1


def attach(model: nn.Module, run: Path, *, mean: bool = False) -> presum.Monitor:
    reduction = presum.Reduction(microbatch_mean=mean)
    return presum.attach(model, run=run, reduction=reduction, record=presum.Record(quiet=True))


@pytest.fixture
def summed(model: DistributedDataParallel, tmp_path: Path) -> Iterator[DistributedDataParallel]:
    """A model whose gradients presum sums."""
    with attach(model, tmp_path):
        yield model


@pytest.fixture
def averaged(model: DistributedDataParallel, tmp_path: Path) -> Iterator[DistributedDataParallel]:
    """Likewise, over leaves."""
    with attach(model, tmp_path, mean=True):
        yield model


def backward(model: nn.Module, *values: float) -> None:
    for value in values:
        model(torch.full((1, 3), value)).sum().backward()


def accumulate(model: DistributedDataParallel, *values: float) -> None:
    """All but the last under ``no_sync()``."""
    with model.no_sync():
        backward(model, *values[:-1])
    backward(model, values[-1])


def expect(model: DistributedDataParallel, value: float) -> None:
    assert torch.equal(model.module.weight.grad, torch.full((2, 3), float(value)))


def test_micro_batches_are_added_without_rounding_in_between(
    summed: DistributedDataParallel,
) -> None:
    accumulate(summed, *PARTS)
    expect(summed, 1)
    assert torch.equal(summed.module.bias.grad, torch.full((2,), 3.0))


@pytest.mark.parametrize("passes", [accumulate, backward])
def test_a_mean_is_over_all_leaves_since_zero_grad_and_rounded_once(
    averaged: DistributedDataParallel, passes: Any
) -> None:
    passes(averaged, 1.0, 1.0, 2.0)
    expect(averaged, 4 / 3)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_micro_batches_before_zero_grad_are_forgotten(
    summed: DistributedDataParallel, set_to_none: bool
) -> None:
    optimizer = torch.optim.SGD(summed.parameters(), lr=1.0)
    with summed.no_sync():
        backward(summed, 5.0)
    optimizer.zero_grad(set_to_none=set_to_none)
    accumulate(summed, 1.0, 2.0)
    expect(summed, 3)


@pytest.mark.parametrize("static_graph", [False, True])
def test_leaves_are_summed_where_no_pass_is_under_no_sync(
    tmp_path: Path, static_graph: bool
) -> None:
    model = DistributedDataParallel(nn.Linear(3, 2), static_graph=static_graph)
    with attach(model, tmp_path):
        for _ in range(3):
            model.zero_grad()
            backward(model, *PARTS)
            expect(model, 1)


def test_a_pass_that_ddp_reduces_under_no_sync_is_a_leaf_too(
    summed: DistributedDataParallel,
) -> None:
    for _ in range(3):
        summed.zero_grad()
        summed(torch.ones(1, 3))  # a look, without a backward: DDP reduces the next pass
        accumulate(summed, *PARTS)
        expect(summed, 1)


def test_a_static_graph_cannot_begin_under_no_sync_in_ddp_itself(tmp_path: Path) -> None:
    models = [DistributedDataParallel(nn.Linear(3, 2), static_graph=True) for _ in range(2)]
    attach(models[1], tmp_path).close()
    for model, says in zip(
        models, ("INTERNAL ASSERT", "let the first pass synchronize"), strict=True
    ):
        with model.no_sync(), pytest.raises(RuntimeError, match=says):
            backward(model, 1.0)


def test_a_sum_whose_leaves_are_gone_is_said_once_and_then_kept(
    summed: DistributedDataParallel, caplog: pytest.LogCaptureFixture
) -> None:
    for values, said in (((1.0,), 0), ((1.0,), 0), (PARTS, 1), (PARTS, 1)):
        summed.zero_grad()
        backward(summed, *values)
        assert caplog.text.count("on top of reduced gradients") == said
    expect(summed, 1)


def test_a_mean_without_its_leaves_is_refused(averaged: DistributedDataParallel) -> None:
    for _ in range(2):
        averaged.zero_grad()
        backward(averaged, 1.0)
    with pytest.raises(RuntimeError, match="there is no correct divisor"):
        backward(averaged, 1.0)


def by_none(parameter: nn.Parameter) -> None:
    parameter.grad = None


def by_zero(parameter: nn.Parameter) -> None:
    assert parameter.grad is not None
    parameter.grad.zero_()


@pytest.mark.parametrize("zero", [by_none, by_zero])
def test_gradients_that_were_zeroed_by_hand_are_no_leaves_any_more(
    summed: DistributedDataParallel, zero: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for value in (5.0, 4.0, 3.0):
        backward(summed, value)
        expect(summed, value)
        for parameter in summed.parameters():
            zero(parameter)
    assert caplog.text == ""


def test_leaves_that_were_not_reduced_go_with_their_gradient(
    summed: DistributedDataParallel,
) -> None:
    with summed.no_sync():
        backward(summed, 5.0)
    for parameter in summed.parameters():
        parameter.grad = None
    backward(summed, 3.0)
    expect(summed, 3)


def test_a_step_on_micro_batches_that_were_not_reduced_is_refused(
    summed: DistributedDataParallel,
) -> None:
    optimizer = torch.optim.SGD(summed.parameters(), lr=1.0)
    out = summed(torch.ones(1, 3)).sum()
    with summed.no_sync():
        out.backward()  # DDP reduces it, because of the forward
    optimizer.step()
    optimizer.zero_grad()
    with summed.no_sync():
        backward(summed, 5.0)
    with pytest.raises(RuntimeError, match="before the micro-batches of passes"):
        optimizer.step()


@pytest.mark.parametrize("views", [False, True])
def test_parts_that_a_later_pass_does_not_use_are_added_once(tmp_path: Path, views: bool) -> None:
    model = DistributedDataParallel(
        TwoParts(), find_unused_parameters=True, gradient_as_bucket_view=views
    )
    with attach(model, tmp_path, mean=True):
        for _ in range(2):
            model.zero_grad()
            for second in (True, False, True, False):
                model(torch.ones(1, 3), second=second).sum().backward()
            assert torch.equal(model.module.first.weight.grad, torch.full((3, 3), 1.0))
            assert torch.equal(model.module.second.weight.grad, torch.full((3, 3), 0.5))


def penalty(model: DistributedDataParallel) -> None:
    (model.module.weight * 10).sum().backward()


def again(model: DistributedDataParallel) -> None:
    out = model(torch.ones(1, 3)).sum()
    out.backward(retain_graph=True)
    out.backward()


def around(model: DistributedDataParallel) -> None:
    backward(model, 1.0)
    (model.module(torch.ones(1, 3)) * 5).sum().backward()


def loss_and_penalty(model: DistributedDataParallel) -> None:
    backward(model, 1.0)
    penalty(model)


def penalty_and_loss(model: DistributedDataParallel) -> None:
    penalty(model)
    backward(model, 1.0)


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize(
    ("step", "gradient"),
    [(loss_and_penalty, 11), (penalty_and_loss, 11), (again, 2), (around, 6)],
)
def test_passes_that_ddp_takes_no_part_in_add_what_they_add_without_presum(
    model: DistributedDataParallel,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    step: Any,
    gradient: float,
    mean: bool,
) -> None:
    with attach(model, tmp_path, mean=mean):
        for _ in range(4):
            step(model)
            expect(model, gradient)
            model.zero_grad()
    assert caplog.text == ""


def test_a_sum_and_a_penalty_are_not_a_sum_of_leaves(
    summed: DistributedDataParallel, caplog: pytest.LogCaptureFixture
) -> None:
    loss_and_penalty(summed)
    backward(summed, 2.0)
    expect(summed, 13)
    assert "on top of reduced gradients" in caplog.text


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("two", [False, True])
def test_parameters_that_are_zeroed_at_other_times_are_as_without_presum(
    tmp_path: Path, two: bool, mean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """An optimizer for a part of the model, or one for each part."""
    model = DistributedDataParallel(TwoParts())
    parts = [model.module.first, model.module.second]
    own = [torch.optim.SGD(part.parameters(), lr=0.0) for part in parts]
    monitor = attach(model, tmp_path, mean=mean)
    alive = []
    for round_ in range(20):
        if round_ in (5, 19):
            gc.collect()
            alive.append(sum(type(one) is torch.Tensor for one in gc.get_objects()))
        for part, optimizer in list(zip(parts, own, strict=True))[: 1 + two]:
            optimizer.zero_grad()
            backward(model, 1.0)
            optimizer.step()
            assert torch.equal(part.weight.grad, torch.ones(3, 3))
    monitor.close()
    assert alive[1] < alive[0] + 10, "leaves are not kept for ever"
    assert caplog.text.count("on top of reduced gradients") == 1


@pytest.mark.parametrize("change", [torch.Tensor.mul_, torch.Tensor.div_])
def test_a_sum_that_was_changed_stays_as_it_is(
    summed: DistributedDataParallel, change: Any
) -> None:
    wanted = 0.0
    for _ in range(4):
        backward(summed, 1.0)
        for parameter in summed.parameters():
            assert parameter.grad is not None
            change(parameter.grad, 2)
        wanted = float(change(torch.tensor(wanted + 1), 2))
        expect(summed, wanted)


def test_a_sum_that_is_zero_counts(averaged: DistributedDataParallel) -> None:
    for value in (0.0, 3.0):
        (averaged(torch.full((1, 3), value)) * value).sum().backward()
    expect(averaged, 4.5)


def test_an_exception_in_a_pass_loses_no_sum(summed: DistributedDataParallel) -> None:
    def fail(_gradient: torch.Tensor) -> None:
        raise ValueError("planted")

    backward(summed, 1.0)
    weight, bias = summed.module.parameters()
    handle = bias.register_hook(fail)
    with pytest.raises(ValueError, match="planted"):
        (weight.sum() + bias.sum()).backward()
    handle.remove()
    penalty(summed)
    assert (weight.grad >= 11).all()


def test_the_model_is_freed(tmp_path: Path) -> None:
    model = DistributedDataParallel(nn.Linear(3, 2))
    attach(model, tmp_path).close()
    backward(model, 1.0)
    parameter, state = weakref.ref(model.module.weight), weakref.ref(model._comm_hooks[0][1])
    del model
    gc.collect()
    assert parameter() is None and state() is None


def test_a_parameter_that_was_frozen_at_attach_does_not_accumulate(tmp_path: Path) -> None:
    model = DistributedDataParallel(nn.Linear(3, 2))
    model.module.bias.requires_grad_(False)
    with attach(model, tmp_path):
        model.module.bias.requires_grad_(True)
        backward(model, 1.0)
        model.zero_grad()
        with model.no_sync():
            backward(model, 1.0)
        with pytest.raises(RuntimeError, match="was frozen at presum"):
            backward(model, 1.0)


def test_it_outlives_its_monitor(model: DistributedDataParallel, tmp_path: Path) -> None:
    attach(model, tmp_path).close()
    accumulate(model, *PARTS)
    expect(model, 1)


def test_models_copy_and_pickle(summed: DistributedDataParallel) -> None:
    inside = copy.deepcopy(summed.module)
    assert pickle.loads(pickle.dumps(summed._forward_hooks))
    inside(torch.ones(1, 3)).sum().backward()
    assert torch.equal(inside.weight.grad, torch.ones(2, 3))


def test_no_other_hook_may_follow(summed: DistributedDataParallel) -> None:
    with pytest.raises(RuntimeError, match="register_comm_hook"):
        summed.register_comm_hook(None, fp16_compress_hook)


def test_leaves_go_where_ddp_puts_a_gradient_whose_memory_format_changed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(2, 3, 3)
    models = [DistributedDataParallel(copy.deepcopy(plain)) for _ in range(2)]
    attach(models[1], tmp_path).close()
    x = torch.randn(2, 2, 5, 5)
    for model in models:
        model.to(memory_format=torch.channels_last)
        with model.no_sync():
            model(x).sum().backward()
        model(x * x).sum().backward()
    found = [model.module.weight.grad for model in models]
    assert torch.allclose(*found, rtol=1e-5)


def test_a_forward_that_ddp_prepared_for_is_not_taken_back(summed: DistributedDataParallel) -> None:
    with summed.no_sync():
        backward(summed, 1.0)
    summed(torch.ones(1, 3))  # a look, without a backward
    with summed.no_sync():
        backward(summed, 2.0)
    expect(summed, 3)


def test_parameters_frozen_before_attach_stay_in_their_buckets(tmp_path: Path) -> None:
    layers = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model = DistributedDataParallel(layers, find_unused_parameters=True)
    layers[0].requires_grad_(False)
    with attach(model, tmp_path):
        backward(model, 1.0)
    assert layers[1].weight.grad is not None


def test_a_static_graph_divides_by_leaves_too(tmp_path: Path) -> None:
    model = DistributedDataParallel(nn.Linear(3, 2), static_graph=True)
    with attach(model, tmp_path, mean=True):
        for _ in range(2):
            model.zero_grad()
            backward(model, 3.0)
    expect(model, 3)


def test_a_second_attach_says_that_the_first_one_stays(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    attach(model, tmp_path).close()
    with pytest.raises(ValueError, match="stays for as long as the model lives"):
        attach(model, tmp_path / "b")


def test_parameters_that_ddp_reduces_by_itself_are_refused(tmp_path: Path) -> None:
    layers = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    delayed = [("0.weight", layers[0].weight)]
    model = DistributedDataParallel(
        layers, delay_all_reduce_named_params=delayed, param_to_hook_all_reduce=layers[1].weight
    )
    with pytest.raises(ValueError, match="delay_all_reduce_named_params"):
        attach(model, tmp_path)


def test_a_hook_that_is_there_already_is_not_replaced(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    model.register_comm_hook(None, fp16_compress_hook)
    with pytest.raises(ValueError, match="has a communication hook already"):
        attach(model, tmp_path)
