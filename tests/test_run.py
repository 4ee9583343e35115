# SPDX-License-Identifier: Apache-2.0
"""presum.run around a program that knows nothing of it: its output and end stay its own."""

from __future__ import annotations

import os
import re
import sys
import zipapp
from pathlib import Path

import pytest

import presum
from programs_started import PROGRAM, UNDER, WORLD, Ended, run_command, start

Ends = list[Ended]


@pytest.fixture(scope="module")
def plain() -> Ends:
    """Without presum: the output is the same whatever the end."""
    return start([PROGRAM, "--end", "error"])


@pytest.mark.parametrize(("end", "code"), [("error", 1), ("code", 7), ("kill", -9)])
def test_output_and_end_are_the_program_s_own(
    end: str, code: int, plain: Ends, tmp_path: Path
) -> None:
    watched = start([*UNDER, "--run", tmp_path / "run", PROGRAM, "--end", end])
    for before, after in zip(plain, watched, strict=True):
        assert before.stdout == after.stdout and before.stdout.count("epoch") == 2
        assert after.returncode == code
        raised = traceback_of(before.stderr) if end == "error" else []
        assert traceback_of(after.stderr) == raised


def traceback_of(stderr: str) -> list[str]:
    lines = [re.sub(r"^\[rank\d\]: ?", "", line) for line in stderr.splitlines()]
    start = next((i for i, line in enumerate(lines) if line.startswith("Traceback")), len(lines))
    end = next((i for i, line in enumerate(lines) if line.startswith("RuntimeError")), len(lines))
    return lines[start : end + 1]


def test_each_model_has_a_section_and_its_loss_is_found(tmp_path: Path) -> None:
    done, run = start([*UNDER, "--run", tmp_path, PROGRAM]), presum.load(tmp_path)
    assert [end.returncode for end in done] == [0] * WORLD
    assert list(run.steps.groupby("model_index").step.count()) == [16, 16]
    assert run.workers.loss.notna().all() and (run.steps.workers == WORLD).all()
    assert not [found for found in run.findings if found.severity != "info"]
    models = run.workers.model_index
    last = run.workers[models == models.max()].groupby("rank").loss.last()
    printed = [float(end.stdout.split()[-1]) for end in done]
    assert any(abs(last[0] - value) < 1e-6 for value in printed)


def test_programs_keep_python_s_own_meaning(tmp_path: Path) -> None:
    program = tmp_path / "own.py"
    program.write_text(
        "import inspect, pathlib, sys\n"
        "def f(x: int): pass\n"
        "print(f.__annotations__, __file__, sys.argv, sys.path[0], inspect.getsource(f))\n"
        "print(__name__, __loader__ is not None, sys.modules['__main__'].__dict__ is globals())\n"
    )
    relative = os.path.relpath(program)
    (plain,) = start([relative, "x"], world=1)
    (watched,) = start([*UNDER, "--quiet", relative, "x"], world=1)
    assert plain.stdout == watched.stdout and "<class 'int'>" in plain.stdout


@pytest.mark.parametrize("packed", ["folder", "archive"])
def test_a_folder_or_archive_is_run_as_python_does(packed: str, tmp_path: Path) -> None:
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "helper.py").write_text("NAME = 'helper'\n")
    (folder / "__main__.py").write_text(
        "import sys, helper\n"
        "print(__name__, helper.NAME, sys.argv, sys.path[0], __file__)\n"
        "print(sys.modules['__main__'].__dict__ is globals())\n"
    )
    program = folder
    if packed == "archive":
        program = tmp_path / "program.pyz"
        zipapp.create_archive(folder, program)
    (plain,) = start([program, "x"], world=1)
    (watched,) = start([*UNDER, "--quiet", program, "x"], world=1)
    assert plain.stdout == watched.stdout and "__main__ helper" in plain.stdout


def test_processes_are_started_as_the_program_says(tmp_path: Path) -> None:
    script = tmp_path / "hello"
    script.write_text("#!/bin/sh\necho hello $1\n")
    script.chmod(0o755)
    program = tmp_path / "starts.py"
    program.write_text(
        "import os, pathlib, subprocess, sys\n"
        "where = pathlib.Path(sys.argv[1])\n"
        "environment = {**os.environ, 'LOCAL_RANK': '0'}\n"
        "for command in (where, str(where), [where, 'list'], (w for w in (str(where), 'items'))):\n"
        "    done = subprocess.run(command, env=environment, capture_output=True, text=True)\n"
        "    print(done.stdout, done.args == command)\n"
    )
    (plain,) = start([program, script], world=1)
    (watched,) = start([*UNDER, "--quiet", program, script], world=1)
    assert plain.stdout == watched.stdout and "hello items" in plain.stdout
    assert watched.stderr == plain.stderr == ""


def test_a_program_without_arguments_starts_another_module(tmp_path: Path) -> None:
    program = tmp_path / "starts.py"
    program.write_text(
        "import subprocess, sys\n"
        "done = subprocess.run([sys.executable, '-m', 'this'], env={'LOCAL_RANK': '0'})\n"
        "sys.exit(done.returncode)\n"
    )
    (plain,) = start([program], world=1)
    (watched,) = start([*UNDER, "--quiet", program], world=1)
    assert plain.stdout == watched.stdout and "Namespaces are" in plain.stdout
    assert plain.returncode == watched.returncode == 0


def test_a_module_runs_as_one(tmp_path: Path) -> None:
    command = [*UNDER, "--quiet", "-m", "json.tool", "--help"]
    (done,) = start(command, world=1)
    assert done.returncode == 0 and "json.tool" in done.stdout and not done.stderr


def test_a_module_that_starts_itself_is_watched_again(tmp_path: Path) -> None:
    (tmp_path / "itself.py").write_text(
        "import os, subprocess, sys\n"
        "print(sys.orig_argv[1:3], flush=True)\n"
        "if 'LOCAL_RANK' not in os.environ:\n"
        "    command = [sys.executable, '-m', __spec__.name, *sys.argv[1:]]\n"
        "    subprocess.run(command, env={**os.environ, 'LOCAL_RANK': '1'}, check=True)\n"
    )
    command = [sys.executable, *UNDER, "--quiet", "-m", "itself", "--its", "own"]
    done = run_command(command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['-m', 'presum.run']"] * 2


def test_bad_use_is_one_line(tmp_path: Path) -> None:
    (done,) = start([*UNDER, tmp_path / "no.py"], world=1)
    assert done.returncode == 2 and "there is no file" in done.stderr
    (done,) = start([*UNDER, "--every", "0", PROGRAM], world=1)
    assert done.returncode == 2 and "Traceback" not in done.stderr
