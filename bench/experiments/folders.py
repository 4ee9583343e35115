# SPDX-License-Identifier: Apache-2.0
"""Decides which run folders may be replaced."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from presum.errors import UserError


def replace_folders(folders: Iterable[Path]) -> None:
    """Make every folder new and empty. Removes nothing unless all of them may be removed.

    A folder may be removed if it is empty or a run folder (it contains ``presum.db``). Raises
    UserError for any other folder, for a file or link in its place, and if the folder cannot be
    written.
    """
    folders = list(folders)
    for folder in folders:
        _check_replaceable(folder)
    try:
        for folder in folders:
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"--out: {error.filename}: {error.strerror}") from error


def _check_replaceable(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UserError(f"{folder} exists and is not a folder; choose another --out")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "presum.db").is_file():
        raise UserError(f"{folder} contains files but no run (no presum.db); choose another --out")
