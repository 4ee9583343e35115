# SPDX-License-Identifier: Apache-2.0
"""attach(reduction=...) on FSDP2 with one worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import presum
from helpers.two_parts import TwoParts
from presum.parallel.fsdp import CAN_STAND_IN

pytestmark = [
    pytest.mark.usefixtures("one_worker"),
    pytest.mark.skipif(not CAN_STAND_IN, reason="needs torch 2.9"),
]


def attach(model: nn.Module, run: Path, *, mean: bool = False) -> presum.Monitor:
    reduction = presum.Reduction(microbatch_mean=mean)
    return presum.attach(model, run=run, reduction=reduction, record=presum.Record(quiet=True))


@pytest.fixture
def sharded() -> TwoParts:
    model = TwoParts()
    for part in (model.first, model.second, model):
        fully_shard(part)
    return model


@pytest.fixture
def summed(sharded: TwoParts, tmp_path: Path) -> Iterator[TwoParts]:
    """Its gradients presum sums."""
    with attach(sharded, tmp_path):
        yield sharded


def pass_of(model: Any, *, last: bool, **how: Any) -> None:
    model.set_requires_gradient_sync(last)
    model(torch.ones(1, 3), **how).sum().backward()


def gradient(layer: nn.Linear) -> torch.Tensor:
    return layer.weight.grad.full_tensor()  # type: ignore[union-attr, operator]


def test_fsdp2_keeps_leaves_of_parts_that_some_passes_do_not_use(
    sharded: TwoParts, tmp_path: Path
) -> None:
    with attach(sharded, tmp_path):
        pass_of(sharded, last=False, second=False)
        pass_of(sharded, last=False)
        pass_of(sharded, last=True)
    assert torch.equal(gradient(sharded.first), torch.full((3, 3), 3.0))
    assert torch.equal(gradient(sharded.second), torch.full((3, 3), 2.0))
    norms = presum.load(tmp_path).workers.grad_norm
    assert norms.tolist() == [pytest.approx((9 * 9 + 9 * 4) ** 0.5)]


def test_fsdp2_says_that_a_sum_comes_on_top_of_a_sum(
    summed: TwoParts, caplog: pytest.LogCaptureFixture
) -> None:
    for set_to_none in (True, False):
        pass_of(summed, last=True)
        summed.zero_grad(set_to_none=set_to_none)
    pass_of(summed, last=True)
    assert caplog.text == ""
    pass_of(summed, last=True)
    assert caplog.text.count("on top of reduced gradients") == 1


def test_fsdp2_refuses_a_mean_on_top_of_a_mean(sharded: TwoParts, tmp_path: Path) -> None:
    with attach(sharded, tmp_path, mean=True):
        pass_of(sharded, last=True)
        with pytest.raises(RuntimeError, match="there is no correct divisor"):
            pass_of(sharded, last=True)


def test_fsdp2_parts_of_one_leaf_are_one_leaf(summed: TwoParts) -> None:
    pass_of(summed, last=False, times=2)
    with pytest.raises(RuntimeError, match="ran twice in one forward pass"):
        pass_of(summed, last=True, times=2)


def test_fsdp2_refuses_to_lose_leaves_of_modules_that_do_not_reduce(summed: TwoParts) -> None:
    summed.second.set_requires_gradient_sync(False)  # type: ignore[operator]
    with pytest.raises(RuntimeError, match="recurse=False"):
        summed(torch.ones(1, 3)).sum().backward()


def test_fsdp2_is_refused_where_it_divides_by_itself(sharded: TwoParts, tmp_path: Path) -> None:
    doubles = fully_shard(nn.Linear(3, 3).double())
    with pytest.raises(ValueError, match="divides fp16 and fp64"):
        attach(doubles, tmp_path)
    with attach(sharded, tmp_path):
        sharded.first.set_gradient_divide_factor(1.0)  # type: ignore[operator]
        with pytest.raises(RuntimeError, match="set_gradient_divide_factor"):
            pass_of(sharded, last=True)
    with pytest.raises(ValueError, match="since an earlier attach"):
        attach(sharded, tmp_path / "b")
