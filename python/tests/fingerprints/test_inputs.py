# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch

from helpers.values import real
from presum.fingerprints.inputs import STEPS, VALUED, InputForms

CPU = torch.device("cpu")


def test_form_is_told_at_once_and_sizes_that_do_not_change_later() -> None:
    told: dict[str, str] = {}
    forms = InputForms(CPU, told.update)
    for n in range(STEPS):
        tokens = torch.ones(2, 5 + n % 2, dtype=torch.int64)
        forms([("x", torch.randn(2, 3, 4)), ("", tokens)], 0)
        forms.step_ends()
        assert told["input.x"] == "float32 in 3 dimensions"
        assert told["input.1"] == "int64 in 2 dimensions"
        assert ("input.x.size_1" in told) == (n == STEPS - 1)
    assert told["input.x.size_1"] == "3" and told["input.x.size_2"] == "4"
    assert not {"input.1.size_1", "input.x.size_0"} & told.keys()
    assert forms([("x", torch.randn(2, 3, 4))], 0) == []


def test_other_numbers_of_dimensions_have_no_size_in_common() -> None:
    told: dict[str, str] = {}
    forms = InputForms(CPU, told.update)
    for n in range(STEPS):
        forms([("x", torch.randn(2, 3) if n else torch.randn(2, 3, 4))], 0)
        forms.step_ends()
    assert list(told) == ["input.x"]


def values_of(samples: torch.Tensor) -> list[dict[str, int]]:
    """Step by step."""
    forms, out = InputForms(CPU, lambda _: None), []
    for _ in range(STEPS + 1):
        out.append({kind.name: int(value) for kind, value in forms([("x", samples)], 0)})
        forms.step_ends()
    return out


def test_mean_and_spread_are_those_of_real_samples() -> None:
    *steps, after = values_of(torch.randn(200, 3000) * 2 + 5)
    assert [bool(step) for step in steps] == [n >= STEPS - VALUED for n in range(STEPS)]
    assert after == {}
    for step in steps[-VALUED:]:
        assert real(step["INPUT_MEAN"]) == pytest.approx(5, abs=0.1)
        assert real(step["INPUT_SPREAD"]) == pytest.approx(2, abs=0.1)
    for plain in (torch.ones(2, 3, dtype=torch.int64), torch.ones(3)):
        assert not any(values_of(plain))
