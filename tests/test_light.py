# SPDX-License-Identifier: Apache-2.0
"""What works where nothing but NumPy is installed, or not even that."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import presum
from programs_started import Ended, run_command
from report_runs import s1

ROOT = Path(__file__).parents[1]
IMPORT_MS = 50

WITHOUT = """
import sys
for name in {missing!r}:
    sys.modules[name] = None
"""

IMPORTS = """
import json, sys, time
before = set(sys.modules)
began = time.process_time()
import presum
took = 1e3 * (time.process_time() - began)
print(json.dumps([took, sorted({m.partition(".")[0] for m in set(sys.modules) - before})]))
"""

COMMAND = """
import sys
from presum.__main__ import main
sys.argv = ["presum", *{args!r}]
sys.exit(main())
"""

COLUMNS = """
import json, sys
import presum
run = presum.load(sys.argv[1])
assert "pandas" not in sys.modules or sys.modules["pandas"] is None
names = ("columns", "segments", "steps", "workers", "groups", "facts", "checks", "audits")
frames = {name: getattr(run, name) for name in names}
told = {n: {c: [str(a.dtype), len(a)] for c, a in f.items()} for n, f in frames.items()}
print(json.dumps([told, run.cosines(3).tolist(), frames["facts"]["key"].tolist()]))
"""


def python(code: str, *args: str, missing: tuple[str, ...] = ()) -> Ended:
    program = WITHOUT.format(missing=missing) + code
    return run_command([sys.executable, "-c", program, *args])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return s1(tmp_path_factory.mktemp("runs"))


def test_importing_presum_takes_the_standard_library_only() -> None:
    found = [json.loads(python(IMPORTS).stdout) for _ in range(5)]
    assert min(took for took, _ in found) < IMPORT_MS
    assert set(found[0][1]) - set(sys.stdlib_module_names) == {"presum"}


@pytest.mark.parametrize("verb", ["--help", "summary", "findings", "check", "compare", "report"])
def test_runs_are_read_without_numpy_or_torch(verb: str, runs: list[Path], tmp_path: Path) -> None:
    some = {"--help": [], "compare": [str(run) for run in runs[:2]]}
    args = [verb, *some.get(verb, [str(runs[0])])]
    if verb == "report":
        args += ["-o", str(tmp_path / "page.html")]
    done = python(COMMAND.format(args=args), missing=("numpy", "torch", "pandas"))
    assert done.returncode in (0, 1) and not done.stderr, done.stderr
    assert done.stdout or (tmp_path / "page.html").stat().st_size > 100_000


def test_without_pandas_a_run_is_numpy_columns(runs: list[Path]) -> None:
    done = python(COLUMNS, str(runs[0]), missing=("pandas", "torch"))
    assert done.returncode == 0, done.stderr
    told, cosines, keys = json.loads(done.stdout)
    run = presum.load(runs[0])
    for name, columns in told.items():
        frame = getattr(run, name)
        assert isinstance(frame, pd.DataFrame) and list(frame) == list(columns)
        assert all(length == len(frame) for _, length in columns.values())
        for column, (dtype, _) in columns.items():
            assert dtype in ("object", str(frame[column].dtype)), (name, column)
    assert np.array_equal(run.cosines(3), cosines)
    assert keys == run.facts["key"].tolist()


@pytest.mark.parametrize(
    ("code", "package", "extra"),
    [
        ("import presum; presum.attach", "torch", "presum[torch]"),
        ("from presum import MicroBatchSampler", "torch", "presum[torch]"),
        ("from presum import TransformersCallback", "transformers", "presum[transformers]"),
        ("from presum import LightningCallback", "lightning", "presum[lightning]"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(code: str, package: str, extra: str) -> None:
    done = python(code, missing=(package, "pytorch_lightning"))
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: presum.") and f"pip install '{extra}'" in last, done.stderr


def test_without_numpy_a_program_is_not_started() -> None:
    done = python(f"from presum.run import main; main([{__file__!r}])", missing=("numpy",))
    said = "presum.run: watching a program needs numpy: pip install numpy"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, said)


def test_running_a_program_says_that_it_needs_torch(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("raise SystemExit(7)\n")
    code = "import runpy; runpy.run_module('presum.run', run_name='__main__')"
    done = python(code, str(program), missing=("torch",))
    assert done.returncode == 2
    assert (
        done.stderr == "presum.run: watching a program needs torch: pip install 'presum[torch]'\n"
    )


def test_a_path_that_is_no_text_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/no\xfftext")
    done = run_command([sys.executable, "-m", "presum", "summary", folder])
    assert done.returncode == 2
    assert done.stderr.startswith("presum summary: ") and "Traceback" not in done.stderr


def test_without_its_extension_module_presum_says_for_which_python_there_is_none() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'python')!r}); import presum"
    done = run_command([sys.executable, "-S", "-c", code])
    version = ".".join(map(str, sys.version_info[:2]))
    assert f"has no extension module for Python {version}" in done.stderr.splitlines()[-1]
