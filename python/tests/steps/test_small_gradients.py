# SPDX-License-Identifier: Apache-2.0
"""Gradients that are too small for fp16."""

from __future__ import annotations

import struct

import pytest
import torch
from torch import nn

from presum._core import FingerprintKind
from presum.steps.small_gradients import SmallGradients


def look(*gradients: torch.Tensor, workers: int = 1, scale: float = 1.0, step: int = 2) -> float:
    parameters = [nn.Parameter(torch.zeros_like(one)) for one in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    small = SmallGradients(workers)
    for _ in range(step - 1):
        small.look(optimizer, scale)
    told = small.look(optimizer, scale)
    if not told:
        return -1
    ((kind, bits),) = told
    assert kind == FingerprintKind.BELOW_FP16 and isinstance(bits, int)
    (share,) = struct.unpack("<d", struct.pack("<Q", bits))
    return float(share)


def normal(size: float, seed: int = 0) -> torch.Tensor:
    return size * torch.randn(64, 8, generator=torch.Generator().manual_seed(seed))


TINY = 2.0**-24


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_what_fp16_has_left_nothing_of_is_told(dtype: torch.dtype) -> None:
    assert look(normal(TINY / 2).half().to(dtype)) == 1
    assert look(normal(2 * TINY).half().to(dtype), normal(2 * TINY, 1).half().to(dtype)) > 0.9


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
def test_means_over_workers_are_too(workers: int) -> None:
    parts = [normal(TINY, seed).half().float() / workers for seed in range(workers)]
    mean = torch.stack(parts).sum(0)
    assert look(mean, workers=workers) > 0.9


def test_gradients_of_other_formats_are_not() -> None:
    for size in (1.0, 1e-3, TINY, TINY / 100):
        assert look(normal(size)) == 0
        assert look(normal(size).bfloat16().float()) == 0
    assert look(normal(TINY).bfloat16()) == -1


def test_neither_are_large_ones_in_fp16_nor_sparse_ones() -> None:
    assert look(normal(1e-2).half()) == 0
    sparse = normal(1e-3) * (torch.arange(512).view(64, 8) % 50 == 0)
    assert look(sparse.half()) == 0
    assert look(torch.zeros(64, 8).half()) == 0


def test_a_layer_whose_gradient_is_large_does_not_hide_many_that_are_small() -> None:
    small = [normal(TINY, seed).half() for seed in range(7)]
    assert 0.8 < look(*small, normal(1e-2).half()) < 0.9


def test_it_is_looked_at_now_and_then_and_not_where_the_loss_is_scaled() -> None:
    gradient = normal(TINY).half()
    told = [look(gradient, step=step) >= 0 for step in range(1, 22)]
    assert [step for step, one in enumerate(told, 1) if one] == [2, 3, 4, 12]
    assert look(gradient, scale=1024.0) == -1
