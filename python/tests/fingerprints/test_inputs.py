# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch

from helpers.values import real
from presum.fingerprints.inputs import STEPS, InputForms

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


def test_mean_and_spread_are_those_of_real_samples() -> None:
    samples = torch.randn(200, 3000) * 2 + 5
    values = dict(InputForms(CPU, lambda _: None)([("x", samples)], 0))
    named = {kind.name.lower(): int(value) for kind, value in values.items()}
    assert real(named["input_mean"]) == pytest.approx(5, abs=0.1)
    assert real(named["input_spread"]) == pytest.approx(2, abs=0.1)
    for plain in (torch.ones(2, 3, dtype=torch.int64), torch.ones(3)):
        assert InputForms(CPU, lambda _: None)([("x", plain)], 0) == []
