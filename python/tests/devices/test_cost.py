# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch

from presum import doctor
from presum.devices import cost

HOST = torch.device("cpu")


def test_every_follows_from_what_pass_and_step_take(monkeypatch: pytest.MonkeyPatch) -> None:
    product = 2 * cost.SIDE**3  # a FLOP a second, and so 60 s a parameter with 10 tokens
    taken = iter([cost.ELEMENTS * 90.0, product])
    monkeypatch.setattr(cost, "least_seconds", lambda *_: next(taken))
    assert cost.every_for(HOST, 0.01, 10) == 150
    taken = iter([cost.ELEMENTS * 0.1, product])
    assert cost.every_for(HOST, 0.01, 10) == 1


def test_doctor_says_what_every_a_device_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "ELEMENTS", 5000)
    monkeypatch.setattr(cost, "SIDE", 64)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch, "device", lambda _name: HOST)
    row = next(row for row in doctor.capabilities() if row.name == "xpu")
    assert row.available
    assert row.detail.startswith("torch operations: with 4,096 tokens a rank and step, every=")
