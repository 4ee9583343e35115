# SPDX-License-Identifier: Apache-2.0
"""attach(audit=N) on real workers: what Gloo does, and what goes wrong with a sum."""

from __future__ import annotations

from typing import Any

import pytest

import presum
from workers.audited import AUDIT_EVERY, CASES, STEPS


@pytest.fixture(scope="module")
def runs(launch: Any) -> dict[str, Any]:
    out = launch("audited", 4, *CASES, silent=True).out
    return {name: presum.load(out / name) for name in CASES}


def found(runs: dict[str, Any], name: str) -> dict[str, Any]:
    return {finding.check: finding for finding in runs[name].findings}


@pytest.mark.parametrize("name", ["plain", "exact", "fsdp", "fsdp-exact"])
def test_a_sound_reduction_has_no_finding(runs: dict[str, Any], name: str) -> None:
    assert found(runs, name) == {}


def test_what_a_sound_reduction_does_is_told(runs: dict[str, Any]) -> None:
    plain, exact = runs["plain"].audits, runs["exact"].audits
    for audits in (plain, exact):
        assert set(audits.step) == set(range(0, STEPS, AUDIT_EVERY))
        assert set(audits.replica) == {0, 1, 2, 3} and not audits.wrong.any()
    assert set(plain.accumulation) == {"fp32"} and set(plain.order) == {"ring-down"}
    assert plain.differing.min() > 0 and set(exact.order) == {"exact"}
    assert not exact.differing.any() and exact.relative_l2.max() < 2**-24


def test_of_fsdp2_every_worker_audits_its_own_shard(runs: dict[str, Any]) -> None:
    checks = runs["fsdp"].checks.set_index("check")
    assert set(checks.state[["reduction-dtype", "reduction-error"]]) == {"passed"}
    finding = found(runs, "fsdp-bf16")["reduction-dtype"]
    assert len(finding.ranks) == 4 and finding.values["accumulation"] == "bf16"


def test_shards_that_come_out_wrong_are_seen(runs: dict[str, Any]) -> None:
    finding = found(runs, "fsdp-broken")["reduction-error"]
    assert finding.severity == "critical" and len(finding.ranks) == 4


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_gloo_adds_16_bit_gradients_in_16_bits_around_a_ring(
    runs: dict[str, Any], name: str
) -> None:
    finding = found(runs, name)["reduction-dtype"]
    assert finding.severity == "info"
    assert finding.values["accumulation"] == name
    assert str(finding.values["order"]).startswith("ring")


def test_a_compressing_hook_is_seen(runs: dict[str, Any]) -> None:
    finding = found(runs, "compressed")["reduction-dtype"]
    assert finding.severity == "warning" and finding.values["accumulation"] == "fp16"
    assert finding.first_step == 0 and finding.last_step >= STEPS - 2 * AUDIT_EVERY


def test_elements_that_come_out_wrong_are_seen(runs: dict[str, Any]) -> None:
    assert found(runs, "broken")["reduction-error"].severity == "critical"
