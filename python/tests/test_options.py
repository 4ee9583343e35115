# SPDX-License-Identifier: Apache-2.0
"""Options by their names: flags, environment, files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import presum
from presum import run
from presum.options import NAMES, arguments_of, check_names, from_file

needs_toml = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 reads no TOML")


def test_a_row_becomes_the_arguments_of_attach() -> None:
    row = {"reduction": "exact", "microbatch_mean": True, "audit": 50, "every": 2}
    assert arguments_of(row) == {
        "reduction": presum.Reduction(microbatch_mean=True),
        "audit": presum.Audit(50),
        "record": presum.Record(every=2),
    }
    assert arguments_of({}) == {}


@pytest.mark.parametrize("row", [{"microbatch_mean": True}, {"audit_elements": 5}])
def test_what_needs_another_option_says_so(row: dict[str, Any]) -> None:
    with pytest.raises(presum.UserError, match="needs"):
        arguments_of(row)


def test_an_unknown_name_is_an_error_with_the_nearest_one() -> None:
    with pytest.raises(presum.UserError, match="no option reduce_every; did you mean reduced"):
        check_names({"reduce_every": 5}, "here")
    with pytest.raises(presum.UserError, match="no option xyzzy; options: run, preflight"):
        check_names({"xyzzy": 5}, "here")


@needs_toml
def test_presum_toml_comes_before_pyproject(tmp_path: Path) -> None:
    assert from_file(tmp_path) == {}
    (tmp_path / "pyproject.toml").write_text("[tool.presum]\nevery = 5\n[tool.other]\nx = 1\n")
    assert from_file(tmp_path) == {"every": 5}
    (tmp_path / "presum.toml").write_text('every = 7\nfingerprints = ["rng"]\n')
    assert from_file(tmp_path) == {"every": 7, "fingerprints": ["rng"]}


@needs_toml
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("every = ", "is not valid TOML"),
        ("evry = 5", "did you mean every"),
        ("[tool]\npresum = 3", ""),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    name = "presum.toml" if message else "pyproject.toml"
    (tmp_path / name).write_text(text)
    with pytest.raises(presum.UserError, match=message or "tool.presum must be a table") as caught:
        from_file(tmp_path)
    assert "\n" not in str(caught.value) and name in str(caught.value)


@needs_toml
def test_a_flag_comes_before_the_environment_and_that_before_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, Any]] = []
    monkeypatch.setattr("presum.frameworks.auto.start", lambda row, _words: started.append(row))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train"])
    (tmp_path / "presum.toml").write_text("every = 2\nreduced_every = 3\nsketch = 64\n")
    (tmp_path / "train.py").write_text("")
    monkeypatch.setenv("PRESUM_OPTIONS", "--reduced-every 4 --sketch 128")
    run.main(["--sketch", "256", "--fingerprints", "data,rng", "train.py"])
    assert started == [
        {"every": 2, "reduced_every": 4, "sketch": 256, "fingerprints": ["data", "rng"]}
    ]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--reduction sideways", 'reduction must be "exact"'),
        ("--every 5 --preflight 3", "records only one step"),
        ("--fingerprints sideways", "sideways"),
        ("--sketch 100", "0 or a power of two from 64 to 65536"),
    ],
)
def test_values_that_no_model_takes_are_refused_before_the_program_runs(
    flags: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "train.py"
    program.write_text("raise AssertionError")
    with pytest.raises(SystemExit) as ended:
        run.main([*flags.split(), str(program)])
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("presum.run: ") and said in last


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("other.py", "PRESUM_OPTIONS: unknown option: other.py"),
        ("every=2", "PRESUM_OPTIONS: unknown option: every=2"),
        ("--groups 'x", "PRESUM_OPTIONS: No closing quotation"),
    ],
)
def test_the_environment_holds_options_only(
    told: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PRESUM_OPTIONS", told)
    with pytest.raises(SystemExit) as ended:
        run.main(["train.py"])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_every_option_is_a_flag_of_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(["--help"])
    said = capsys.readouterr().out
    assert [name for name in NAMES if f"--{name.replace('_', '-')}" not in said] == []


@pytest.mark.parametrize(
    ("allowed", "message"),
    [("data-covrage=so", "did you mean data-coverage"), ("stall=", "has no reason")],
)
def test_what_cannot_be_allowed_is_said_before_anything_starts(
    capsys: pytest.CaptureFixture[str], allowed: str, message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main(["--allow", allowed, "train.py"])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
