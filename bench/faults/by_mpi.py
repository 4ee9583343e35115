# SPDX-License-Identifier: Apache-2.0
"""Trainings in C++ over MPI: mpi_faults.cc, which injects faults under the catalog's names."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.folders import replace_folders
from faults.plan import MINORITY_WORKERS, Case
from faults.sightings import SIGHTINGS, is_done, mark_done
from presum.errors import UserError

PROGRAM = Path("build/release/bench/mpi_faults")
# As root, and with more ranks than cores; for Open MPI.
_ALLOWED = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def names() -> set[str]:
    """The faults that the program injects. Raises UserError if it is not built."""
    if not PROGRAM.exists():
        raise UserError(f"{PROGRAM} does not exist: run make cpp-release where MPI is installed")
    listed = subprocess.run([PROGRAM, "--list"], capture_output=True, text=True, check=True)
    return {*listed.stdout.split()}


def train(cases: Sequence[Case], out: Path) -> Path:
    """Run all cases that have no result yet. Returns their folder.

    Raises UserError if a training fails.
    """
    signature = str(PROGRAM.stat().st_mtime_ns)
    missing = [case for case in cases if not is_done(out / case.folder, signature)]
    replace_folders(out / case.folder for case in missing)
    for number, case in enumerate(missing, 1):
        run, name = out / case.folder, case.folder.removesuffix("-mpi")
        command = ["mpirun", "-n", str(MINORITY_WORKERS), str(PROGRAM), str(run), name]
        ended = subprocess.run(
            command, env=os.environ | _ALLOWED, capture_output=True, text=True, check=False
        )
        if ended.returncode or "presum: " in ended.stderr:
            raise UserError(f"{' '.join(command)}: {ended.stderr or ended.returncode}")
        (run / SIGHTINGS).write_text("[]", encoding="utf-8")
        mark_done(run, signature)
        print(f"{number}/{len(missing)} {case.folder}", file=sys.stderr)
    return out
