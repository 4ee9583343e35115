# SPDX-License-Identifier: Apache-2.0
"""Detects updates of 16-bit parameters that round to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch.optim import Optimizer

from presum.devices.blocks import dense
from presum.devices.readable import readable
from presum.fingerprints.families import KIND, LateValues, real_bits

EVERY = 10  # optimizer steps
PARAMETERS = 8
VALUES = 512  # per parameter
HALVES = (torch.bfloat16, torch.float16)
# The state that torch's own optimizers keep per parameter. Other optimizers may keep a copy in more
# bits, or the rounding error.
MOMENTS = frozenset(
    (
        *("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "sum"),
        *("square_avg", "grad_avg", "acc_delta", "prev", "step_size", "eta", "mu", "ax"),
        *("mu_product", "row_var", "col_var", "variance"),
    )
)


class Before(NamedTuple):
    """A part of a parameter and of its gradient."""

    parameter: torch.Tensor
    values: torch.Tensor
    moves: torch.Tensor  # where the gradient is not zero


class RoundedUpdates:
    """Compares a sample of an optimizer's parameters before and after its step."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}  # by id, to avoid another weak reference
        self._before: list[Before] = []

    def before(self, optimizer: Optimizer) -> None:
        """Before the optimizer's step."""
        self._before = []
        steps = self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        if steps % EVERY == 1:
            halves = list(_halves(optimizer))
            kept = (_kept(one) for one in halves[:: max(1, len(halves) // PARAMETERS)])
            self._before = [one for one in kept if one is not None]

    def after(self, optimizer: Optimizer) -> LateValues:
        """After the step: the share of unchanged elements, as a fingerprint, if a sample was
        taken."""
        before, self._before = self._before, []
        if not before or _rounds_by_chance(optimizer):
            return []
        if any(not optimizer.state.get(x.parameter, {}).keys() <= MOMENTS for x in before):
            return []
        still, moving = [], []
        for one in before:
            now = some_values(one.parameter)
            if now is None or now.shape != one.values.shape or now.device != one.values.device:
                return []
            still.append(((now == one.values) & one.moves).sum())
            moving.append(one.moves.sum())
        if len({count.device for count in moving}) > 1:
            return []
        total = torch.stack(moving).sum().double()
        share = torch.stack(still).sum() / total
        if not share.is_cpu:
            # With no moving elements this is NaN, which exceeds no threshold.
            return [(KIND["unchanged_share"], share.reshape(1).view(torch.int64))]
        return [(KIND["unchanged_share"], real_bits(float(share)))] if total > 0 else []


def _halves(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        rate = group.get("lr", 0)
        if isinstance(rate, torch.Tensor) or rate > 0:
            yield from (p for p in group["params"] if p.dtype in HALVES and p.grad is not None)


def _kept(parameter: torch.Tensor) -> Before | None:
    values = some_values(parameter)
    gradient = None if parameter.grad is None else some_values(parameter.grad)
    if values is None or gradient is None or gradient.shape != values.shape:
        return None
    return Before(parameter, values.clone(), gradient != 0)


def some_values(tensor: torch.Tensor) -> torch.Tensor | None:
    """A few elements, in memory order; of a DTensor, those of this rank."""
    plain = readable(tensor.detach())
    if plain is None or plain.numel() == 0:
        return None
    block = dense(plain)
    flat = block.as_strided((block.numel(),), (1,))
    return flat[:: max(1, flat.numel() // VALUES)][:VALUES]


def _rounds_by_chance(optimizer: Optimizer) -> bool:
    """Whether the optimizer rounds stochastically: elements that stay in one step move in others.
    Recognized by the name of a setting, such as torchao's ``bf16_stochastic_round``, or of the
    class."""
    settings = {**vars(optimizer), **optimizer.defaults}
    named = [name for name, value in settings.items() if value is True]
    return any("stochastic" in name.lower() for name in (*named, type(optimizer).__name__))
