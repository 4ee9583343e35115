# SPDX-License-Identifier: Apache-2.0
"""The source as others take it: added to a project of theirs, found installed, packed for PyPI."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from programs_started import Ended, run_command

ROOT = Path(__file__).parents[1]
CONSUMERS = Path(__file__).parent / "consumers"
VERSION = (ROOT / "VERSION").read_text().strip()
RELEASE = ["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DPRESUM_WERROR=ON"]
PACK = """
import os, sys
from scikit_build_core.build import build_sdist
os.chdir(sys.argv[1])
print(build_sdist(sys.argv[2]))
"""


def cmake(*arguments: object) -> Ended:
    return run_command(["cmake", *arguments])


def succeed(*arguments: object) -> str:
    done = cmake(*arguments)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def configured(consumer: str, folder: Path, *options: str) -> dict[str, list[str]]:
    """The words that a consumer's own sources are to be compiled with."""
    succeed("-S", CONSUMERS / consumer, "-B", folder, *RELEASE, *options)
    commands = json.loads((folder / "compile_commands.json").read_text())
    words = {Path(c["file"]).name: shlex.split(c["command"]) for c in commands}
    return {name: words[name] for name in ("consumer.cc", "other.cc")}


def flags(words: list[str]) -> set[str]:
    """Without what every compilation has."""
    own = {"-O3", "-DNDEBUG", "-c"}
    return {word for word in words if word.startswith(("-", "/W"))} - own - {"-o"}


def test_a_project_that_adds_the_folder_inherits_nothing(tmp_path: Path) -> None:
    words = configured("subdirectory", tmp_path, f"-DPRESUM={ROOT}")
    assert flags(words["other.cc"]) == set()
    assert flags(words["consumer.cc"]) == {f"-I{ROOT}/include", "-std=gnu++20"}
    tests = run_command(["ctest", "--test-dir", tmp_path, "-N"]).stdout
    assert "Total Tests: 0" in tests
    targets = run_command(["ninja", "-C", tmp_path, "-t", "targets", "all"]).stdout
    assert run_command(["ninja", "-C", tmp_path, "-n", "consumer"]).returncode == 0
    assert "presum_judge" in targets and "_test:" not in targets and "presum_cli" not in targets
    prefix = tmp_path / "prefix"
    succeed("--install", tmp_path, "--prefix", prefix)
    assert not prefix.exists()


def test_a_project_that_finds_the_package_inherits_nothing(tmp_path: Path) -> None:
    release = ROOT / "build" / "release"
    succeed("--build", release, "-j", 2, "--target", "presum", "presum_lib_presum")
    prefix = tmp_path / "prefix"
    succeed("--install", release, "--prefix", prefix)
    words = configured("package", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    assert flags(words["other.cc"]) == set()
    assert flags(words["consumer.cc"]) == {"-isystem", "-std=gnu++20"}
    succeed("--build", tmp_path / "build", "-j", 2, "--target", "consumer", "other")
    said = run_command([tmp_path / "build" / "consumer"])
    assert said.stdout == f"{VERSION} 1 0 3 0\n", said.stderr


@pytest.mark.parametrize(
    ("absent", "named", "installed"),
    [
        (["fmt"], "fmt", ("libfmt-dev", "fmt")),
        (["hwy", "SQLite3"], "hwy, SQLite3", ("libhwy-dev libsqlite3-dev", "libhwy sqlite")),
    ],
)
def test_a_missing_library_is_one_line(
    tmp_path: Path, absent: list[str], named: str, installed: tuple[str, str]
) -> None:
    without = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in absent]
    done = cmake("-S", ROOT, "-B", tmp_path, "-G", "Ninja", *without)
    apt, conda = installed
    line = (
        f"presum needs {named}: apt install {apt} (Debian, Ubuntu), "
        f"or conda install -c conda-forge {conda}"
    )
    assert done.returncode == 1 and line in map(str.strip, done.stderr.splitlines()), done.stderr


# ---- the source distribution


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    done = run_command([sys.executable, "-c", PACK, ROOT, folder])
    assert done.returncode == 0, done.stderr
    archive = folder / done.stdout.split()[-1]
    subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
    return folder / archive.name.removesuffix(".tar.gz")


def test_the_source_distribution_is_complete(sdist: Path) -> None:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    tracked = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    expected = {name for name in tracked.split("\0") if name and (ROOT / name).is_file()}
    packed = {p.relative_to(sdist).as_posix() for p in sdist.rglob("*") if p.is_file()}
    assert packed - expected == {"PKG-INFO"}
    left_out = {name for name in expected - packed if not name.startswith((".ci/", ".git"))}
    assert left_out == set()


def test_the_source_distribution_configures(sdist: Path, tmp_path: Path) -> None:
    python = ["-DPRESUM_PYTHON=ON", "-DPRESUM_TESTS=OFF", f"-DPython_EXECUTABLE={sys.executable}"]
    succeed("-S", sdist, "-B", tmp_path, "-G", "Ninja", *python)
    missing = run_command(["ninja", "-C", tmp_path, "-n"])
    assert missing.returncode == 0, missing.stdout
