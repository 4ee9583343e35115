# SPDX-License-Identifier: Apache-2.0
"""presum doctor where something is broken."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import presum.doctor

COMMAND = [sys.executable, "-m", "presum", "doctor"]


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> dict[str, str]:
    """Why what is not there is not, while importing torch raises this."""

    def fails(name: str) -> object:
        if name == "torch":
            raise request.param
        return sys.modules[name]

    monkeypatch.setattr(presum.doctor.importlib, "import_module", fails)
    return {row.name: row.detail for row in presum.doctor.capabilities() if not row.available}


@pytest.mark.parametrize("rows", [OSError("libcudart.so: no such file")], indirect=True)
def test_a_torch_that_cannot_be_imported_is_not_called_missing(rows: dict[str, str]) -> None:
    assert rows["anything"] == (
        "torch is installed, but cannot be imported: libcudart.so: no such file"
    )


@pytest.mark.parametrize("rows", [ModuleNotFoundError("no", name="torch")], indirect=True)
def test_a_missing_torch_is(rows: dict[str, str]) -> None:
    assert rows["anything"].startswith("torch is not installed: pip install 'presum[torch]'")


def test_an_instruction_set_that_is_not_there_is_a_row(tmp_path: Path) -> None:
    done = subprocess.run(
        COMMAND, capture_output=True, text=True, env={"PRESUM_SIMD": "none"}, check=False
    )
    assert "Traceback" not in done.stderr and "no   PRESUM_SIMD" in done.stdout


def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(COMMAND, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "presum: cannot write to standard output\n")


def test_an_old_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.__version__", "2.7.1+cpu")
    row = next(row for row in presum.doctor.capabilities() if row.name == "DDP, passive")
    assert (row.available, row.detail) == (False, "torch 2.7.1+cpu is older than 2.8")


def test_it_says_which_python_it_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "trl":
            raise PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(presum.doctor.metadata, "version", version)
    python = f"{platform.python_version()}, {sys.executable}"
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    for path, said in [
        (Path(sys.executable).parent, python),
        (tmp_path, f"{python}; the first on PATH is {other}"),
        (tmp_path / "none", python),
    ]:
        monkeypatch.setenv("PATH", str(path))
        rows = {row.name: row for row in presum.doctor.capabilities()}
        assert rows["python"].detail == said
        missing = f"not in this Python: {sys.executable} -m pip install trl"
        assert rows["trl"] == ("installed", "trl", False, missing)
