# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator

import pytest

from helpers.sums import PATHS, on_path


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Which implementation the test runs on."""
    with on_path(request.param):
        yield str(request.param)
