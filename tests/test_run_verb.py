# SPDX-License-Identifier: Apache-2.0
"""presum run: a launcher's command with presum.run before the program."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import presum
from presum.__main__ import main
from presum.experiments.launch import free_port
from presum.frameworks.launchers import rewritten
from programs_started import PROGRAM, presum_command

SCRIPT = str(PROGRAM)
UNDER = ["-m", "presum.run", "--every", "2"]
LAUNCHERS = {
    "torchrun": (["torchrun", "--nproc-per-node", "2", "--standalone"], ["--lr", "1"]),
    "as-module": (["python", "-m", "torch.distributed.run", "--nproc-per-node=2"], []),
    "as-module-unbuffered": (["python", "-u", "-X", "dev", "-m", "torch.distributed.run"], []),
    "as-script": (["python3.11", "/usr/bin/torchrun", "--nproc-per-node=2"], []),
    "accelerate-module": (["python", "-m", "accelerate.commands.launch", "--cpu"], []),
    "accelerate": (["accelerate", "launch", "--num_processes", "2", "--multi_gpu"], ["-x"]),
    "mpirun": (["mpirun", "-n", "4", "-x", "A=1", sys.executable, "-u"], ["a"]),
    "srun": (["srun", "--ntasks=8", "python3.12"], []),
    "alone": (["python"], ["--", "b"]),
    "with-values": (["python", "-X", "dev", "-W", "ignore", "-O"], []),
}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_ranks_run_under_presum(name: str) -> None:
    launcher, arguments = LAUNCHERS[name]
    program = [SCRIPT, *arguments]
    assert rewritten([*launcher, *program], UNDER[2:]) == [*launcher, *UNDER, *program]
    as_module = rewritten([*launcher, "-m", "pkg.train", *arguments], UNDER[2:])
    assert as_module == [*launcher, *UNDER, "-m", "pkg.train", *arguments]


def test_deepspeed_takes_a_module() -> None:
    command = ["deepspeed", "--num_gpus", "2", SCRIPT, "--deepspeed", "x.json"]
    wanted = [*command[:3], "--module", *UNDER[1:], *command[3:]]
    assert rewritten(command, UNDER[2:]) == wanted


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], "run needs the command after --"),
        (["run", "--"], "run needs a command after --"),
        (["run", "--", "ls", "x"], "run: no torchrun, accelerate, deepspeed or python in: ls x"),
        (["run", "--", "python", "-c", "1"], "run: a program after python -c"),
        (["run", "--", "python", "-Im", "x"], "run: write -m apart from the other options of -Im"),
        (["run", "--", "torchrun", "--bogus"], "run: the launcher does not take these arguments"),
        (["run", "--evry", "2", "--", "python", "x.py"], "unrecognized arguments: --evry"),
    ],
)
def test_bad_use_is_said(words: list[str], said: str) -> None:
    done = presum_command(*words)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", [["torchrun", SCRIPT], ["accelerate", "launch", SCRIPT]])
def test_a_launcher_that_is_not_installed_is_said(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("torch", "accelerate"):
        for name in [*filter(lambda n: n.partition(".")[0] == package, sys.modules), package]:
            monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(sys, "argv", ["presum", "run", "--", *command])
    assert main() == 2
    package = "torch" if command[0] == "torchrun" else "accelerate"
    assert f"this launcher needs {package}: pip install" in capsys.readouterr().err


def test_a_launcher_is_started_and_its_ranks_recorded(tmp_path: Path) -> None:
    run = tmp_path / "run"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launcher += ["--master-port", str(free_port())]
    done = presum_command("run", "--run-folder", run, "--", *launcher, PROGRAM)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(presum.load(run).steps) > 0


def test_help_teaches() -> None:
    said = presum_command("run", "--help").stdout
    assert said.startswith("usage: presum run [options] -- LAUNCHER")
    assert "presum run -- torchrun" in presum_command("--help").stdout
