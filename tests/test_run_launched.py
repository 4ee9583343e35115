# SPDX-License-Identifier: Apache-2.0
"""presum.run and those who start ranks: launchers, the program itself, the environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import presum
from programs_started import PROGRAM, UNDER, run_command, start


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


def test_an_environment_variable_stands_for_the_launcher(tmp_path: Path) -> None:
    line = f"import presum, runpy; runpy.run_path({str(PROGRAM)!r}, run_name='__main__')"
    options = f"--run {tmp_path} --every 2"
    done = start(["-c", line], PRESUM="1", PRESUM_OPTIONS=options)
    assert all(end.returncode == 0 for end in done)
    assert set(presum.load(tmp_path).steps.step) == set(range(0, 16, 2))


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--local_rank=1", "--quiet", "FILE", "a"], ["FILE", "--local_rank=1", "a"]),
        (["--local-rank=1", "--quiet", "--", "FILE", "--", "-m"], None),
        (
            ["--local_rank=1", "--quiet", "-m", "says", "--quiet"],
            ["FILE", "--local_rank=1", "--quiet"],
        ),
    ],
)
def test_words_of_a_launcher_are_the_program_s(
    words: list[str], wanted: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "says.py"
    program.write_text("import sys; print(sys.argv)")
    monkeypatch.chdir(tmp_path)
    wanted = wanted or ["FILE", "--local-rank=1", "--", "-m"]
    (end,) = start([*UNDER, *(str(program) if w == "FILE" else w for w in words)], world=1)
    assert end.stdout.strip() == str([str(program) if w == "FILE" else w for w in wanted])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--evry=2", PROGRAM], "error: there is no option --evry=2; did you mean --every?"),
        (["--run-foldr", "a", PROGRAM], "--run-foldr; did you mean --run-folder?"),
        (["--rank", "1", PROGRAM], "there is no file 1; presum has no option --rank"),
    ],
)
def test_misspelled_options_are_said(words: list[object], said: str) -> None:
    (end,) = start([*UNDER, *words], world=1)
    assert end.returncode == 2 and said in end.stderr


def test_a_program_that_attaches_itself_as_well_is_told(tmp_path: Path) -> None:
    program = Path(__file__).parent / "programs" / "attaches_itself.py"
    done = start([*UNDER, "--run", tmp_path / "run", program])
    assert {end.returncode for end in done} == {0}, done[0].stderr[-2000:]
    assert all("attached already" in end.stdout for end in done)
    assert (presum.load(tmp_path / "run").steps.workers == 2).all()


def test_ranks_that_a_program_starts_itself_are_watched(tmp_path: Path) -> None:
    program = Path(__file__).parent / "programs" / "launches_itself.py"
    command = [sys.executable, *UNDER, "--run", tmp_path / "run", program]
    done = run_command(command, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr[-2000:]
    assert presum.load(tmp_path / "run").steps.workers.tolist() == [2] * 4
