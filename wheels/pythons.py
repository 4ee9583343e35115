# SPDX-License-Identifier: Apache-2.0
"""Finds the Pythons of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

TRIED = ("3.10", "3.11", "3.12", "3.13")


def find(version: str) -> Path | None:
    """The interpreter of a version such as "3.12", from PATH or pyenv."""
    for candidate in _candidates(version):
        code = "import sys; print(*sys.version_info[:2], sep='.')"
        done = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == version:
            return candidate
    return None


def _candidates(version: str) -> Iterator[Path]:
    on_path = shutil.which(f"python{version}")
    if on_path is not None:
        yield Path(on_path)
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for folder in sorted((root / "versions").glob(f"{version}.*"), reverse=True):
        yield folder / "bin" / "python"
