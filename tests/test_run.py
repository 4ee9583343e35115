# SPDX-License-Identifier: Apache-2.0
"""presum.run around a program that knows nothing of it: its output and end stay its own."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import zipapp
from collections.abc import Sequence
from pathlib import Path

import pytest

import presum

PROGRAM = Path(__file__).parent / "programs" / "gan.py"
WORLD = 2
UNDER = ["-m", "presum.run"]


def start(
    command: Sequence[object], *, world: int = WORLD, timeout: float = 120, **extra: str
) -> list[subprocess.CompletedProcess[str]]:
    """Python with these arguments, once for each rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        **extra,
    }
    processes = [
        subprocess.Popen(
            [sys.executable, *map(str, command)],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    ends = [process.communicate(timeout=timeout) for process in processes]
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *end)
        for process, end in zip(processes, ends, strict=True)
    ]


@pytest.mark.parametrize("end", ["well", "error", "code", "kill"])
def test_output_and_end_are_the_program_s_own(end: str, tmp_path: Path) -> None:
    plain = start([PROGRAM, "--end", end])
    watched = start([*UNDER, "--run", tmp_path / "run", PROGRAM, "--end", end])
    for before, after in zip(plain, watched, strict=True):
        assert before.stdout == after.stdout and before.stdout.count("epoch") == 2
        assert before.returncode == after.returncode
        assert traceback_of(before.stderr) == traceback_of(after.stderr)
    assert {0: "well", 1: "error", 7: "code", -9: "kill"}[watched[0].returncode] == end


def traceback_of(stderr: str) -> list[str]:
    lines = [re.sub(r"^\[rank\d\]: ?", "", line) for line in stderr.splitlines()]
    start = next((i for i, line in enumerate(lines) if line.startswith("Traceback")), len(lines))
    end = next((i for i, line in enumerate(lines) if line.startswith("RuntimeError")), len(lines))
    return lines[start : end + 1]


def test_each_model_has_a_section_and_its_loss_is_found(tmp_path: Path) -> None:
    done = start([*UNDER, "--run", tmp_path, PROGRAM])
    run = presum.load(tmp_path)
    assert list(run.steps.groupby("module").step.count()) == [16, 16]
    assert run.workers.loss.notna().all() and (run.steps.workers == WORLD).all()
    assert not [found for found in run.findings if found.severity != "info"]
    last = run.workers[run.workers.module == run.workers.module.max()].groupby("rank").loss.last()
    printed = [float(end.stdout.split()[-1]) for end in done]
    assert any(abs(last[0] - value) < 1e-6 for value in printed)


@pytest.mark.parametrize("keep", [[], ["--keep"]])
def test_trainings_of_one_process_are_freed_and_stay_apart(keep: list[str], tmp_path: Path) -> None:
    program = PROGRAM.with_name("six_trainings.py")
    plain = start([program, *keep])
    watched = start([*UNDER, "--run", tmp_path, program, *keep])
    for before, after in zip(plain, watched, strict=True):
        assert before.stdout == after.stdout and after.stdout.count("alive") == 5
        assert before.returncode == after.returncode == 0
    run = presum.load(tmp_path)
    assert run.steps.groupby("module").step.count().tolist() == [10, 12, 14, 16, 10, 10]
    assert (run.steps.workers == WORLD).all()
    assert not [found for found in run.findings if found.severity != "info"]
    sampled = run.facts[run.facts.key == "sampler"]
    assert sorted(sampled.module.unique()) == [0, 1, 2, 3]
    seeds = sampled.value.str.extract(r"seed=(\d+)")[0].astype(int)
    assert (seeds == sampled.module).all()


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


def test_warnings_and_tracebacks_are_the_program_s_own(tmp_path: Path) -> None:
    program = tmp_path / "warns.py"
    program.write_text(WARNS)
    (plain,) = start([program], world=1)
    (watched,) = start([*UNDER, "--quiet", "--run", tmp_path / "run", program], world=1)
    assert plain.stdout == watched.stdout
    frames = watched.stdout.splitlines()
    assert f"{program}:{1 + WARNS.splitlines().index(DEPRECATED)}" in frames
    assert not [line for line in frames if "presum" in line]


DEPRECATED = "    DistributedDataParallel(torch.nn.Linear(4, 1), check_reduction=True)"
WARNS = f"""
import traceback, warnings
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
{DEPRECATED}
for warning in caught:
    print(f"{{warning.filename}}:{{warning.lineno}}")

class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("in backward")

model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for attempt in (lambda: Raises.apply(model(torch.ones(2, 4))).sum().backward(),
                lambda: DistributedDataParallel(torch.nn.ReLU()),
                lambda: torch.optim.SGD([], lr=0.1),
                lambda: next(iter(torch.utils.data.DataLoader([None])))):
    try:
        attempt()
    except Exception as error:
        for frame in traceback.extract_tb(error.__traceback__):
            print(frame.filename.rsplit("/site-packages/")[-1], frame.name)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("forward", ["model.module(x)", "model.module.layer(x)"])
def test_a_forward_around_the_wrapper_is_recorded_and_found(forward: str, tmp_path: Path) -> None:
    program = tmp_path / "around.py"
    program.write_text(AROUND.replace("FORWARD", forward))
    done = start([*UNDER, "--run", tmp_path / "run", program])
    assert [end.returncode for end in done] == [0, 0]
    run = presum.load(tmp_path / "run")
    assert len(run.steps) >= 28 and (run.steps.workers == WORLD).all()
    (finding,) = (found for found in run.findings if found.severity == "critical")
    assert finding.check == "no-reduction"


AROUND = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x):
        return self.layer(x)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Model())
model.module(torch.ones(1, 4))  # before there is an optimiser
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())
for step in range(30):
    x = torch.randn(4, 4)
    optimizer.zero_grad()
    FORWARD.square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_spawned_ranks_are_watched(tmp_path: Path) -> None:
    program = tmp_path / "spawns.py"
    program.write_text(SPAWNS)
    (done,) = start([*UNDER, "--run", tmp_path / "run", program], world=1)
    assert done.returncode == 0 and "nothing was recorded" not in done.stderr
    assert (presum.load(tmp_path / "run").steps.workers == 2).all()


SPAWNS = """
import os, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
def main(rank):
    os.environ.pop("RANK"), os.environ.pop("WORLD_SIZE")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        model(torch.full((2, 4), float(rank + step))).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(main, nprocs=2)
"""


def test_a_module_runs_as_one(tmp_path: Path) -> None:
    command = [*UNDER, "--quiet", "-m", "json.tool", "--help"]
    (done,) = start(command, world=1)
    assert done.returncode == 0 and "json.tool" in done.stdout and not done.stderr


def test_ranks_that_train_apart_are_told(tmp_path: Path) -> None:
    first, second = start([*UNDER, "--run", tmp_path, PROGRAM, "--alone"])
    assert "2 ranks were started" in first.stderr and "trains on its own" in first.stderr
    assert not second.stderr and not list(tmp_path.iterdir())


def test_one_process_without_ddp_is_told_that_nothing_was_recorded(tmp_path: Path) -> None:
    (done,) = start([*UNDER, PROGRAM, "--alone"], world=1)
    assert done.returncode == 0 and "nothing was recorded" in done.stderr


def test_an_environment_variable_stands_for_the_launcher(tmp_path: Path) -> None:
    line = f"import presum, runpy; runpy.run_path({str(PROGRAM)!r}, run_name='__main__')"
    options = f"--run {tmp_path} --every 2"
    done = start(["-c", line], PRESUM="1", PRESUM_OPTIONS=options)
    assert all(end.returncode == 0 for end in done)
    assert set(presum.load(tmp_path).steps.step) == set(range(0, 16, 2))


def test_preflight_ends_the_program(tmp_path: Path) -> None:
    done = start([*UNDER, "--run", tmp_path, "--preflight", "5", PROGRAM])
    assert {end.returncode for end in done} == {0}
    assert all("epoch 1" not in end.stdout for end in done)


SHORT = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({steps}):
    optimizer.zero_grad()
    model(torch.randn(3, 2) + ({same} or dist.get_rank())).square().sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("steps", "same", "code"), [(3, 0, 2), (12, 0, 0), (12, 1, 1)])
def test_a_preflight_that_the_program_ends_before_is_judged_on_what_there_is(
    steps: int, same: int, code: int, tmp_path: Path
) -> None:
    program = tmp_path / "short.py"
    seed = "torch.manual_seed(7 if SAME else dist.get_rank())\n".replace("SAME", str(same))
    text = SHORT.format(steps=steps, same=same)
    program.write_text(text.replace("model = ", seed + "model = "))
    done = start([*UNDER, "--run", tmp_path / "run", "--preflight", "20", program])
    assert {end.returncode for end in done} == {code}, done[0].stderr
    assert "training ended before 20 preflight steps" in done[0].stderr
    assert presum.load(tmp_path / "run").segments.preflight_exit_code.tolist() == [code]


def test_bad_use_is_one_line(tmp_path: Path) -> None:
    (done,) = start([*UNDER, tmp_path / "no.py"], world=1)
    assert done.returncode == 2 and "there is no file" in done.stderr
    (done,) = start([*UNDER, "--every", "0", PROGRAM], world=1)
    assert done.returncode == 2 and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("launcher", "world", "alone"),
    [
        (["torch.distributed.run", "--nproc-per-node", 2], 2, {}),
        # On CPUs accelerate starts several processes through mpirun only.
        (["accelerate.commands.launch", "--cpu", "--num_processes", 1], 1, {"RANK": "0"}),
    ],
    ids=["torchrun", "accelerate"],
)
def test_launchers_can_start_it(
    launcher: list[object], world: int, alone: dict[str, str], tmp_path: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "1"} if alone else {}
    command = ["-m", *launcher, "-m", "presum.run", "--run-folder", tmp_path / "run", PROGRAM]
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **alone, **place},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("epoch") >= world
    assert (presum.load(tmp_path / "run").steps.workers == world).all()


def test_a_program_that_attaches_itself_as_well_is_told(tmp_path: Path) -> None:
    program = Path(__file__).parent / "programs" / "attaches_itself.py"
    done = start([*UNDER, "--run", tmp_path / "run", program])
    assert {end.returncode for end in done} == {0}, done[0].stderr[-2000:]
    assert all("attached already" in end.stdout for end in done)
    assert (presum.load(tmp_path / "run").steps.workers == 2).all()


def test_ranks_that_a_program_starts_itself_are_watched(tmp_path: Path) -> None:
    program = Path(__file__).parent / "programs" / "launches_itself.py"
    done = subprocess.run(
        [sys.executable, *UNDER, "--run", tmp_path / "run", program],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert presum.load(tmp_path / "run").steps.workers.tolist() == [2] * 4
