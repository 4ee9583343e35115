# SPDX-License-Identifier: Apache-2.0
"""The command line of the fault benchmark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fault_outcomes import fault
from faults import command
from faults.catalog import FAULTS
from presum.errors import UserError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "0"], "'0' is not an integer of at least 1"),
        (["--null", "2", "--faults", "1"], "not allowed with argument"),
    ],
)
def test_wrong_command_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_what_cannot_be_run_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--workers 1: must be at least 2"):
        command.main(["--workers", "1"])
    for workers, name, takes in (
        ("4,2", "halves-apart", "--workers 2: halves-apart needs at least 4"),
        ("5", "norm-of-a-shard-hsdp", "--workers 5: norm-of-a-shard-hsdp needs an even number"),
    ):
        faults = f"nan-gradient,{name}"
        with pytest.raises(UserError, match=takes):
            command.main(["--workers", workers, "--faults", faults, "--out", str(tmp_path)])
    assert not [*tmp_path.iterdir()]
    with pytest.raises(UserError, match="--steps 10: no-set-epoch begins at step 20"):
        command.main(["--faults", "6", "--steps", "10"])
    with pytest.raises(UserError, match="No such file"):
        command.main(["--data", str(tmp_path / "none.json"), "--out", str(tmp_path)])


def test_steps_are_those_of_fault_and_twin() -> None:
    changed = command.with_steps(fault("nan-gradient"), 30)
    assert changed.case.configuration.steps == changed.twin.configuration.steps == 30
    assert changed.twin.folder != fault("nan-gradient").twin.folder
    assert changed == replace(fault("nan-gradient"), configuration=changed.configuration)


def test_list_needs_no_training(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    text = capsys.readouterr().out
    for f in FAULTS:
        assert f.name in text
    assert "no difference between ranks" in text
    assert command.main(["--list", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [f["fault"] for f in listed["faults"]] == [f.name for f in FAULTS]
    assert listed["faults"][0]["expected_ranks"] == list(range(8))
