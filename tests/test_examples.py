# SPDX-License-Identifier: Apache-2.0
"""The installed C++ package and the programs of examples/ that are built against it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import presum
from experiments.launch import free_port
from programs_started import Ended, run_command, run_commands

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
PREFIX = BUILD / "examples" / "prefix"
WARNINGS = "-Wall -Wextra -Wshadow -Wconversion -Wno-missing-field-initializers -Werror"
HEADERS = sorted(p.name for p in (ROOT / "include" / "presum").glob("*.h"))
MPI_COMPILER = shutil.which("mpicxx")
# Open MPI's: more ranks than cores, inside a container too.
MPI_ENVIRONMENT = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_btl": "self,vader,tcp",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def call(*command: object) -> Ended:
    return run_command(command, **MPI_ENVIRONMENT)


def succeed(*command: object) -> str:
    done = call(*command)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def prefix() -> Path:
    """Where the package is installed, from the release build."""
    if not (BUILD / "release" / "build.ninja").exists():
        succeed("cmake", "--preset", "release", "-S", ROOT)
    targets = [
        "presum",
        "presum_lib_presum",
        *(["presum_lib_mpi"] * bool(MPI_COMPILER)),
    ]
    succeed("cmake", "--build", BUILD / "release", "-j", 2, "--target", *targets)
    shutil.rmtree(PREFIX, ignore_errors=True)
    succeed("cmake", "--install", BUILD / "release", "--prefix", PREFIX)
    return PREFIX


Build = Callable[[str], Path]


@pytest.fixture(scope="session")
def build(prefix: Path) -> Build:
    """Builds an example, in a folder that is kept: LibTorch's headers take a minute."""

    def build_example(name: str) -> Path:
        folder = BUILD / "examples" / name
        paths = f"{prefix};{torch.utils.cmake_prefix_path}"
        flags = [f"-DCMAKE_PREFIX_PATH={paths}", f"-DCMAKE_CXX_FLAGS=-O1 {WARNINGS}"]
        ccache = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] * bool(shutil.which("ccache"))
        source = ROOT / "examples" / name
        succeed("cmake", "-S", source, "-B", folder, "-G", "Ninja", *flags, *ccache)
        succeed("cmake", "--build", folder)
        return folder

    return build_example


# ---- the package


def test_public_headers_need_nothing_but_the_package(prefix: Path, tmp_path: Path) -> None:
    """Each by itself is what the source that implements it includes first."""
    source = tmp_path / "source.cc"
    headers = [name for name in HEADERS if MPI_COMPILER or name != "mpi.h"]
    source.write_text("".join(f"#include <presum/{name}>\n" for name in headers))
    compiler = MPI_COMPILER or "c++"
    succeed(compiler, "-std=c++20", "-fsyntax-only", "-I", prefix / "include", source)


def test_the_package_has_the_version_of_the_project(prefix: Path, tmp_path: Path) -> None:
    version = (ROOT / "VERSION").read_text().strip()
    assert succeed(prefix / "bin" / "presum", "--version").split()[1] == version
    for asked, found in (
        (version, True),
        (".".join(version.split(".")[:2]), True),
        ("99", False),
        (f"{version} REQUIRED COMPONENTS telepathy", False),
    ):
        (tmp_path / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(consumer LANGUAGES CXX)\n"
            f"find_package(presum {asked} REQUIRED)\n"
            "get_target_property(type presum::presum TYPE)\n"
        )
        done = call("cmake", "-S", tmp_path, "-B", tmp_path / "b", f"-DCMAKE_PREFIX_PATH={prefix}")
        assert (done.returncode == 0) == found, f"{asked}: {done.stderr}"


def test_the_sample_compiles_and_checks_every_status(prefix: Path, tmp_path: Path) -> None:
    if MPI_COMPILER is None:
        pytest.skip("there is no MPI here")
    text = (ROOT / "docs" / "cpp.md").read_text()
    (sample,) = re.findall(r"```cpp\n(.*?)```", text, re.DOTALL)
    source = tmp_path / "sample.cc"
    source.write_text(
        "#include <presum/mpi.h>\n"
        "double backward(float* gradient);\nvoid check(const presum::Status& status);\n"
        "void train(std::uint64_t steps, float* gradient, int count) {\n"
        f"{sample.replace('count', 'unsigned(count)', 1)}}}\n"
    )
    flags = [*WARNINGS.split(), "-Wno-sign-conversion", "-std=c++20", "-fsyntax-only"]
    succeed(MPI_COMPILER, *flags, "-isystem", prefix / "include", source)


def findings(prefix: Path, run: Path) -> Any:
    """What the installed command says."""
    done = call(prefix / "bin" / "presum", "findings", run, "--format", "json")
    return json.loads(done.stdout)


# ---- examples/simulation


def test_the_simulation_names_its_faulty_worker(build: Build, tmp_path: Path) -> None:
    run = tmp_path / "run"
    said = succeed(build("simulation") / "simulation", run)
    assert said.startswith("verdict: inconsistent\n")
    assert "rank-outlier, steps 100-" in said
    found = presum.load(run).findings
    assert [(f.check, f.ranks) for f in found] == [("rank-outlier", [5])]
    assert len(presum.load(run).steps) == 200


# ---- examples/mpi

SHARDS = 4


@pytest.fixture(scope="module")
def mpi_train(build: Build) -> Callable[..., Ended]:
    if MPI_COMPILER is None:
        pytest.skip("there is no MPI here")
    program = build("mpi") / "train"
    return lambda *arguments: call("mpirun", "-n", SHARDS, program, *arguments)


def test_mpi_training_is_the_same_and_recorded(
    mpi_train: Any, prefix: Path, tmp_path: Path
) -> None:
    done = mpi_train(tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == mpi_train().stdout  # the same training without presum, to the last bit
    assert (presum.load(tmp_path / "run").steps.workers == SHARDS).all()
    assert findings(prefix, tmp_path / "run")["verdict"] == "consistent"


def test_the_run_log_shows_which_mpi_rank_read_wrong_data(
    mpi_train: Any, prefix: Path, tmp_path: Path
) -> None:
    done = mpi_train(tmp_path / "run", "--fault")
    assert done.returncode == 0, done.stderr
    said = findings(prefix, tmp_path / "run")
    assert [(f["check"], f["ranks"]) for f in said["findings"]] == [("duplicate-data", [1, 2])]


# ---- examples/libtorch

WORLD = 3


@pytest.fixture(scope="module")
def libtorch_train(build: Build) -> Callable[..., list[tuple[str, str]]]:
    """What ranks say: their last losses, to the last bit."""
    program = build("libtorch") / "train"

    def train(*run: Path) -> list[tuple[str, str]]:
        port = free_port()
        commands = [[program, str(r), str(WORLD), str(port), *run] for r in range(WORLD)]
        ranks = run_commands(commands)
        assert [rank.returncode for rank in ranks] == [0] * WORLD, ranks
        return [(rank.stdout, rank.stderr) for rank in ranks]

    return train


def test_libtorch_training_is_the_same_and_recorded(
    libtorch_train: Any, prefix: Path, tmp_path: Path
) -> None:
    watched = libtorch_train(tmp_path / "run")
    assert watched == libtorch_train()
    recorded = presum.load(tmp_path / "run").workers.groupby("rank").loss.last()
    assert recorded.tolist() == [float.fromhex(out.split()[-1]) for out, _ in watched]
    found = findings(prefix, tmp_path / "run")
    assert found["verdict"] == "consistent"
    states = {check["check"]: check["state"] for check in found["checks"]}
    of_gradients = ("reduction-scale", "reduced-gradient-mismatch")
    assert [states[check] for check in of_gradients] == ["passed"] * 2
