# SPDX-License-Identifier: Apache-2.0
"""Right trainings that resemble faults of structure. The faults are in bench/faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from verdicts import OF_THE_CLOCK

import presum
from workers.structure import CASES


@pytest.fixture(scope="module", params=(2, 4))
def out(launch: Any, request: Any) -> Path:
    return launch("structure", request.param).out  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", sorted(CASES))
def test_it_is_fine(out: Path, name: str) -> None:
    run = presum.load(out / name)
    assert [one.title for one in run.findings if one.check not in OF_THE_CLOCK] == []
    states = run.checks.set_index("check").state
    assert states["shared-parameters"] == states["no-reduction"] == "passed"
