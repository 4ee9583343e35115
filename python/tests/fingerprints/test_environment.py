# SPDX-License-Identifier: Apache-2.0
"""Facts of the environment."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from presum.fingerprints.environment import environment_facts

CPU = torch.device("cpu")


def test_environment_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("OMP_NUM_THREADS", "3" * 1000)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "no")
    facts = environment_facts(CPU)
    assert facts["env.NCCL_ALGO"] == "Ring"
    assert len(facts["env.OMP_NUM_THREADS"]) == 200
    assert facts["numpy"] == np.__version__
    assert all(facts.values()) and "no" not in facts.values()
