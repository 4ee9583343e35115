# SPDX-License-Identifier: Apache-2.0
"""presum run before each launcher: ranks are recorded, and the program gets the arguments that it
gets without presum."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import presum
from experiments.launch import free_port
from programs_started import Ended, run_command

PROGRAM = str(Path(__file__).parent / "programs" / "any_launcher.py")
ARGUMENTS = ["--lr", "1", "file", "--flag", "-x", "a b"]
Run = Callable[..., Ended]

LAUNCHERS = {
    "torchrun": ["torchrun", "--nproc-per-node", "2", "--master-port", "PORT"],
    "deepspeed": ["deepspeed", "--num_gpus", "2", "--master_port", "PORT"],
    "accelerate": [
        *["accelerate", "launch", "--num_processes", "2", "--main_process_port", "PORT"],
        *["--multi_gpu", "--mixed_precision", "no"],
    ],
    "fabric": ["fabric", "run", "--devices", "2", "--accelerator", "cpu", "--main-port", "PORT"],
    "mpirun": ["mpirun", "-n", "2", "python"],
    "srun": ["srun", "--ntasks=2", "python"],
}

# As DeepSpeed's: `deepspeed.launcher.runner` starts each rank as `python -u [-m] FIRST
# --local_rank=N ...`.
DEEPSPEED = """
import argparse, os, subprocess, sys

def parse_args(args=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_gpus", type=int, default=2)
    parser.add_argument("--master_port", default=29500, type=int)
    parser.add_argument("--module", action="store_true")
    parser.add_argument("--no_python", action="store_true")
    parser.add_argument("--autotuning", default="", choices=["tune", "run"])
    parser.add_argument("user_script")
    parser.add_argument("user_args", nargs=argparse.REMAINDER)
    return parser.parse_args(args)

def main():
    found = parse_args()
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(found.master_port)}
    ranks = []
    for rank in map(str, range(found.num_gpus)):
        head = [sys.executable, "-u", *["-m"] * found.module, found.user_script]
        command = [*head, f"--local_rank={rank}", *found.user_args]
        place |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(found.num_gpus)}
        ranks.append(subprocess.Popen(command, env={**os.environ, **place}))
    sys.exit(max(rank.wait() for rank in ranks))

if __name__ == "__main__":
    main()
"""
SRUN = """
import os, subprocess, sys
tasks = sys.argv[1].removeprefix("--ntasks=")
places = [{"SLURM_PROCID": str(rank), "SLURM_NTASKS": tasks} for rank in range(int(tasks))]
ranks = [subprocess.Popen(sys.argv[2:], env={**os.environ, **place}) for place in places]
sys.exit(max(rank.wait() for rank in ranks))
"""


@pytest.fixture
def started(tmp_path: Path) -> Run:
    """A command, where the launchers that are not installed have stand-ins."""
    package = tmp_path / "site" / "deepspeed" / "launcher"
    package.mkdir(parents=True)
    (package / "runner.py").write_text(DEEPSPEED)
    stand_ins = {"deepspeed": DEEPSPEED, "srun": SRUN}
    for name, text in stand_ins.items():
        path = tmp_path / name
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(0o755)
    folders = [str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]]
    place = {
        "PATH": os.pathsep.join(folders),
        "PYTHONPATH": str(tmp_path / "site"),
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRESUM_OPTIONS": f"--run-folder {tmp_path / 'run'}",
    }

    def run(command: Sequence[str], **extra: str) -> Ended:
        port = str(free_port())
        words = [port if word == "PORT" else word for word in command]
        return run_command(words, MASTER_PORT=port, **place, **extra)

    return run


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_program_gets_its_own_arguments(name: str, started: Run, tmp_path: Path) -> None:
    command = LAUNCHERS[name]
    if shutil.which(command[0]) is None and command[0] == "mpirun":
        pytest.skip("there is no MPI here")
    program = [*command, PROGRAM, *ARGUMENTS]
    plain = started(program, ARGUMENTS_ONLY="1")
    assert plain.stdout.count("'--flag', '-x', 'a b']") == 2, plain.stderr[-3000:]
    separator = ["--"] * (len(name) % 2)
    watched = started(["presum", "run", "--reduced-every", "2", *separator, *program])
    assert watched.returncode == 0, watched.stderr[-3000:]
    assert sorted(watched.stdout.split("\n")) == sorted(plain.stdout.split("\n"))
    assert (presum.load(tmp_path / "run").steps.workers == 2).all()


def test_a_shell_script_is_told_what_to_write(started: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    line = "torchrun --nproc-per-node 2 --master-port $MASTER_PORT"
    script.write_text(f'set -e\nA=1 {line} \\\n  {PROGRAM} "$@"\n')
    asked = started(["presum", "run", "--every", "2", "--", "bash", str(script), "--flag"])
    assert asked.returncode == 2
    said, typed = asked.stderr.splitlines()
    assert said == f"presum: run: presum does not change {script}; write in it"
    assert typed == f'  A=1 presum run --every 2 -- {line} {PROGRAM} "$@"'
    script.write_text(typed)
    done = started(["bash", str(script), "--flag"])
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("'--flag'") == 2
    assert set(presum.load(tmp_path / "run").steps.step) == {0, 2}
