# SPDX-License-Identifier: Apache-2.0
"""Which families of fingerprints are on."""

from __future__ import annotations

import pytest

from presum.fingerprints.families import Families, chosen
from presum.options import FAMILIES


def test_families_are_chosen_by_name() -> None:
    assert "rng" in chosen(FAMILIES) and not chosen([])
    assert chosen(["rng", "data"]) == {"rng", "data"}
    for wrong in ("rng", ["rgn"], 3, True):
        with pytest.raises(ValueError, match="fingerprints must be a collection of names among"):
            chosen(wrong)  # type: ignore[arg-type]


def test_a_family_that_fails_is_switched_off_alone_and_said_once() -> None:
    said: list[str] = []
    families = Families({"rng", "mode"}, said.append)
    for _ in range(2):
        assert families.call("rng", lambda: 1 // 0) is None
    assert families.call("mode", lambda: 7) == 7
    assert families.call("data", lambda: 7) is None
    assert "rng" not in families and "mode" in families
    assert len(said) == 1 and "rng" in said[0] and "ZeroDivisionError" in said[0]
