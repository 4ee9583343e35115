# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from helpers.rational_sums import PATHS
from presum.reduce import tensors


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which implementation the test runs on."""
    if request.param == "torch operations":
        monkeypatch.setattr(tensors, "in_host_memory", lambda device: False)
    return str(request.param)
