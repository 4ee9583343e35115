# SPDX-License-Identifier: Apache-2.0
"""presum run: a launcher's command with presum.run before the program."""

from __future__ import annotations

import sys
from argparse import REMAINDER, ArgumentParser
from pathlib import Path
from types import SimpleNamespace

import pytest

from presum.__main__ import main
from presum.errors import UserError
from presum.frameworks.launchers import RUN, rewritten
from programs_started import PROGRAM

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


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("env A=1 torchrun x.py --lr=1", "env A=1 torchrun -m RUN x.py --lr=1"),
        ("srun -n 2 torchrun -m pkg.x a", "srun -n 2 torchrun -m RUN -m pkg.x a"),
        ("torchrun -- x.py a -- b", "torchrun -m RUN x.py a -- b"),
        ("torchrun x.py -- a", "torchrun -m RUN x.py a"),  # it takes the -- for its own
        ("torchrun --no-python python x.py", "torchrun --no-python python -m RUN x.py"),
        ("python -m torch.distributed.launch --use-env x.py", None),
        ("accelerate-launch --cpu x.py torchrun", "accelerate-launch --cpu -m RUN x.py torchrun"),
        (
            "deepspeed --num_gpus 2 x.py --deepspeed j",
            "deepspeed --num_gpus 2 --module RUN x.py --deepspeed j",
        ),
        ("deepspeed --module pkg.x --deepspeed j", "deepspeed --module RUN -m pkg.x --deepspeed j"),
        ("torchrun --run-path /a/x.py a", "torchrun --run-path FILE /a/x.py a"),
        ("deepspeed --launcher slurm x.py a", "deepspeed --launcher slurm FILE x.py a"),
        ("fabric run --devices 2 x.py --y", "fabric run FILE --devices 2 x.py --y"),
        (
            "mpirun -n 2 ./environment.sh python x.py",
            "mpirun -n 2 ./environment.sh python -m RUN x.py",
        ),
    ],
)
def test_a_launcher_is_found(
    command: str,
    wanted: str | None,
    deepspeed: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("environment.sh").write_text('#!/bin/sh\nexec "$@"\n')
    wanted = wanted or command.replace("x.py", "-m RUN x.py")
    words = wanted.replace("RUN", "presum.run --every 2").replace("FILE", f"{RUN} --every 2")
    assert rewritten(command.split(), UNDER[2:]) == words.split()


@pytest.fixture
def deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its launcher takes."""
    parser = ArgumentParser()
    parser.add_argument("--num_gpus")
    parser.add_argument("--launcher", default="pdsh")
    parser.add_argument("--autotuning", default="")
    parser.add_argument("--module", action="store_true")
    parser.add_argument("--no_python", action="store_true")
    parser.add_argument("user_script")
    parser.add_argument("user_args", nargs=REMAINDER)
    module = SimpleNamespace(parse_args=parser.parse_args)
    monkeypatch.setitem(sys.modules, "deepspeed.launcher.runner", module)  # type: ignore[arg-type]


def test_deepspeed_s_own_trainings_are_refused(deepspeed: None) -> None:
    with pytest.raises(UserError, match="deepspeed --autotuning starts other trainings"):
        rewritten(["deepspeed", "--autotuning", "run", SCRIPT], [])


SHELL = r"""#!/usr/bin/env bash
# torchrun is what we use
pip install torchrun-tools
LAUNCHER="torchrun --nproc-per-node 8"
"$VENV/bin/torchrun" \
    train.py "$@"
PYTHON=python; $PYTHON -m torch.distributed.run train.py
presum run torchrun other.py
"""


def typed(*command: str) -> list[str]:
    """What is said to write in a shell's script."""
    with pytest.raises(UserError, match="presum does not change") as refused:
        rewritten(command, ["--every", "2"])
    return str(refused.value).splitlines()[1:]


def test_lines_of_a_shell_script_are_shown(tmp_path: Path) -> None:
    script = tmp_path / "train"
    script.write_text(SHELL)
    lines = [
        '  LAUNCHER="presum run --every 2 -- torchrun --nproc-per-node 8"',
        '  presum run --every 2 -- "$VENV/bin/torchrun" train.py "$@"',
    ]
    assert typed("bash", str(script), "python") == lines
    assert typed(str(script)) == lines
    assert typed("srun", "-n", "2", str(script)) == lines
    assert typed("bash", "-lc", "cd a && python -u x.py") == [
        "  cd a && presum run --every 2 -- python -u x.py"
    ]


def test_a_script_that_starts_nothing_is_no_line(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("make train\n")
    with pytest.raises(UserError, match="no torchrun, accelerate, deepspeed, fabric or python in"):
        rewritten(["bash", str(script)], [])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], "run needs the command that starts the training, as in: presum run"),
        (["run", "--every", "2", "--"], "run needs the command that starts the training"),
        (["run", "ls", "x"], "no torchrun, accelerate, deepspeed, fabric or python in: ls x"),
        (["run", "uv", "run", SCRIPT], f"type: presum run -- uv run python {SCRIPT}"),
        (["run", "--", "python", "-c", "1"], "run: a program after python -c"),
        (["run", "--", "python", "-Im", "x"], "run: write -m apart from the other options in -Im"),
        (["run", "--", "torchrun", "--bogus"], "run: the launcher rejects these arguments"),
        (["run", "--evry", "2", "--", "python", "x.py"], "unrecognized arguments: --evry"),
        (["run", "--evry=2", "torchrun", "x.py"], "unrecognized arguments: --evry=2"),
    ],
)
def test_bad_use_is_said(
    words: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["presum", *words])
    try:
        code = main()
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


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
