# SPDX-License-Identifier: Apache-2.0
"""Faults in each way of training."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fault_outcomes import fault, finding, judged
from faults import by_mpi, command, ways
from faults.catalog import choose
from faults.ways import Tried


def tried(name: str, way: str, *, found: bool = False, reason: str = "") -> Tried:
    injected = ways.in_way(fault(name), way)
    right = finding(injected.expects, injected.severity, [5])
    return Tried(way, injected, judged(name, *([right] if found else [])), reason)


def test_one_fault_that_is_found_is_enough_for_a_check() -> None:
    some = [tried("sign-flip", "ddp", found=True), tried("doubled-gradient", "ddp")]
    (cell,) = ways.cells(some)["rank-outlier"].values()
    assert cell.text == "found"
    assert cell.found == ("sign-flip",) and cell.missed == ("doubled-gradient",)


def test_what_a_run_says_that_it_cannot_see_is_not_missed() -> None:
    found = ways.cells(
        [
            tried("sign-flip", "fsdp2", reason="No sketch."),
            tried("other-learning-rate", "fsdp2"),
            tried("no-set-epoch", "fsdp2")._replace(outcome=None),
            tried("skipped-update", "fsdp2", reason="Nobody can.")._replace(outcome=None),
        ]
    )
    text = {check: cell["fsdp2"].text for check, cell in found.items()}
    assert text == {
        "rank-outlier": "No sketch.",
        "optimizer-mismatch": "missed: other-learning-rate",
        "epoch-not-set": "-",
        "parameter-desync": "Nobody can.",
    }
    assert "0 cells are faults that were found; 1 are" in ways.markdown(found, ["fsdp2"])


def test_what_a_check_missed_beside_what_it_found_is_listed() -> None:
    found = ways.cells([tried("sign-flip", "ddp", found=True), tried("doubled-gradient", "ddp")])
    assert "- `rank-outlier`, DDP: doubled-gradient\n" in ways.markdown(found, ["ddp"])


@pytest.mark.deep
@pytest.mark.parametrize("way", ways.WAYS)
def test_some_are_found_in_every_way(way: str, tmp_path: Path) -> None:
    some = "other-learning-rate,duplicated-pair,smoothed-labels,nan-gradient"
    assert command.main(["--ways", way, "--faults", some, "--out", str(tmp_path)]) == 0


@pytest.mark.skipif(
    shutil.which("mpirun") is None or not by_mpi.PROGRAM.exists(), reason="there is no MPI here"
)
def test_programs_in_cpp_inject_faults_of_the_catalog(tmp_path: Path) -> None:
    assert by_mpi.names() - {"none"} <= {one.name for one in choose([])}
    some = "own-sum,lost-optimizer-state,layer-left-out"
    assert command.main(["--ways", "mpi", "--faults", some, "--out", str(tmp_path)]) == 0
    assert "3 cells are faults that were found" in (tmp_path / "ways.md").read_text("utf-8")


def test_a_way_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(command.UserError, match=r"--ways tpu: unknown way \(known: ddp"):
        command.main(["--ways", "tpu", "--out", str(tmp_path)])
