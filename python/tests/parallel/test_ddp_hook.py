# SPDX-License-Identifier: Apache-2.0
"""The communication hook: gradients whose products are taken where they lie."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import presum
from presum.parallel.ddp_hook import OwnGradients


class Bucket:
    """As DDP's, of some parameters."""

    def __init__(self, parameters: list[torch.nn.Parameter], dtype: torch.dtype) -> None:
        self._parameters = parameters
        count = sum(parameter.numel() for parameter in parameters)
        self._buffer = torch.arange(count).to(dtype)

    def parameters(self) -> list[torch.nn.Parameter]:
        return self._parameters

    def buffer(self) -> torch.Tensor:
        return self._buffer


def parameters() -> list[torch.nn.Parameter]:
    found = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((2, 3), (5,))]
    for parameter in found:
        parameter.grad = torch.ones_like(parameter)
    return found


def own(of: list[torch.nn.Parameter], dtype: torch.dtype = torch.float32) -> OwnGradients | None:
    bucket: Any = Bucket(of, dtype)
    return OwnGradients.of(bucket, lambda parameter: parameter.grad)


def test_the_product_is_that_of_the_bucket() -> None:
    gradients = own(parameters())
    assert gradients is not None
    assert gradients.product(torch.arange(11.0)) == 55.0


def test_gradients_that_changed_since_have_no_product() -> None:
    held = parameters()
    gradients = own(held)
    assert gradients is not None and held[1].grad is not None
    held[1].grad.mul_(2)
    assert gradients.product(torch.arange(11.0)) is None


def test_what_is_reduced_to_another_dtype_has_no_product() -> None:
    gradients = own(parameters())
    assert gradients is not None
    assert gradients.product(torch.arange(11.0, dtype=torch.float64)) is None


@pytest.mark.parametrize("case", ["none", "strided", "strided-parameter", "dtype", "sparse"])
def test_what_is_not_as_in_the_bucket_is_copied_instead(case: str) -> None:
    held = parameters()
    if case == "none":
        held[0].grad = None
    elif case == "strided":
        held[0].grad = torch.ones(3, 2).t()
    elif case == "strided-parameter":
        held[0] = torch.nn.Parameter(torch.zeros(3, 2).t())
        held[0].grad = torch.ones(2, 3)
    elif case == "sparse":
        held[0].grad = torch.ones(2, 3).to_sparse()
    assert own(held, torch.bfloat16 if case == "dtype" else torch.float32) is None


# ---- a program that changes gradients between their copy into a bucket and its reduction


def scale(parameter: torch.nn.Parameter) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


def replace(parameter: torch.nn.Parameter) -> None:
    assert parameter.grad is not None
    parameter.grad = parameter.grad * 0.5


def lose(parameter: torch.nn.Parameter) -> None:
    parameter.grad = None


def leave(_parameter: torch.nn.Parameter) -> None:
    pass


@pytest.mark.usefixtures("one_worker")
@pytest.mark.parametrize("change", [leave, scale, replace, lose])
def test_what_changes_gradients_after_ddp_copied_them_changes_no_product(
    change: Callable[[torch.nn.Parameter], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[bool] = []
    of = OwnGradients.of

    def noted(bucket: Any, take: Any) -> OwnGradients | None:
        own = of(bucket, take)
        taken.append(own is not None)
        return own

    monkeypatch.setattr(OwnGradients, "of", noted)
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
    model = DistributedDataParallel(layers)  # one bucket: the first layer's gradients come last
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = presum.attach(
        model,
        optimizer=optimizer,
        run=tmp_path,
        mode="hook",
        record=presum.Record(quiet=True),
    )
    early, last = layers[2].weight, layers[0].weight
    last.register_post_accumulate_grad_hook(lambda _: change(early))  # type: ignore[no-untyped-call]
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        gradient = weakref.ref(early.grad)  # type: ignore[arg-type]
        early.grad = None
        assert gradient() is None, "it is kept"
    monitor.close()
    steps = presum.load(tmp_path).steps
    assert taken == [change is leave] * 6
    assert steps.reduced_norm.to_numpy() == pytest.approx(steps.grad_norm_mean.to_numpy(), 1e-6)
    assert not steps.reduced_disagrees.any()
