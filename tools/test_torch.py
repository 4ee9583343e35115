# SPDX-License-Identifier: Apache-2.0
"""Runs the tests that touch torch on several torch releases, each in a separate environment.

tools/test_torch.py [TORCH...]: releases such as 2.8.0, or "newest" (default 2.8.0 2.13.0 newest),
with the Python that runs this script. presum is built for each.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
RELEASES = ("2.8.0", "2.13.0", "newest")
PACKAGES = ("numpy", "pandas", "psutil", "pytest", "pytest-timeout", "pytest-xdist", "tqdm")
TESTS = (
    *("tests/test_run.py", "tests/test_ddp_matrix.py", "tests/test_shards.py"),
    *("tests/test_findings.py", "tests/test_reduction.py", "tests/test_light.py"),
    *(f"python/tests/{room}" for room in ("steps", "parallel", "torch_events", "reduce")),
)


def main() -> int:
    """Returns 0 if all passed, else 1."""
    outcomes = []
    for release in sys.argv[1:] or RELEASES:
        began = time.monotonic()
        said = tried(release)
        row = f"Python {sys.version_info[0]}.{sys.version_info[1]}, {said}"
        outcomes.append((said, f"{row} ({time.monotonic() - began:.0f} s)"))
        print(outcomes[-1][1], flush=True)
    print("\n".join(["", *(row for _, row in outcomes)]))
    return 0 if all(": passed" in said for said, _ in outcomes) else 1


def tried(release: str) -> str:
    """The installed release and the result."""
    folder = ROOT / "build" / "torch" / f"{sys.version_info[0]}.{sys.version_info[1]}-{release}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    index: list[str] = (
        ["--index-url", os.environ["TORCH_INDEX"]] if os.environ.get("TORCH_INDEX") else []
    )
    wanted = "torch" if release == "newest" else f"torch=={release}"
    pip: list[str | Path] = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    if subprocess.run([*pip, *index, wanted], check=False).returncode != 0:
        return f"torch {release}: not tried, because it cannot be installed here"
    subprocess.run([*pip, *PACKAGES], check=True)
    build = ["--config-settings", f"build-dir={folder / 'build'}"]
    subprocess.run([*pip, "--force-reinstall", "--no-deps", *build, ROOT], check=True)
    code = "import torch; print(torch.__version__)"
    version = subprocess.check_output([python, "-c", code], text=True)
    pytest: list[str | Path] = [
        python,
        "-m",
        "pytest",
        "-m",
        "not deep",
        "-n",
        "2",
        "--dist",
        "loadfile",
    ]
    passed = subprocess.run([*pytest, *TESTS], cwd=ROOT, check=False).returncode == 0
    return f"torch {version.strip()}: {'passed' if passed else 'FAILED'}"


if __name__ == "__main__":
    sys.exit(main())
