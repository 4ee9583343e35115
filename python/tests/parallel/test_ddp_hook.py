# SPDX-License-Identifier: Apache-2.0
"""The communication hook: gradients whose products are taken where they lie."""

from __future__ import annotations

from typing import Any

import pytest
import torch

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
    return OwnGradients.of(bucket)


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
