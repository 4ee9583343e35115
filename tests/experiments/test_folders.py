# SPDX-License-Identifier: Apache-2.0
"""Which run folders may be replaced."""

from pathlib import Path

import pytest

from experiments.folders import replace_folders
from presum.errors import UserError


def test_run_folders_are_replaced(tmp_path: Path) -> None:
    old, empty, new = (tmp_path / name for name in ("old", "empty", "deep/new"))
    (old / "model").mkdir(parents=True)
    (old / "presum.db").touch()
    empty.mkdir()
    replace_folders([old, empty, new])
    assert all(list(folder.iterdir()) == [] for folder in (old, empty, new))


def test_foreign_folders_are_kept_and_nothing_else_is_removed(tmp_path: Path) -> None:
    run, foreign = tmp_path / "run", tmp_path / "foreign"
    for folder, name in ((run, "presum.db"), (foreign, "thesis.tex")):
        folder.mkdir()
        (folder / name).touch()
    with pytest.raises(UserError, match="contains files but no run"):
        replace_folders([run, foreign])
    assert (run / "presum.db").exists()
    assert (foreign / "thesis.tex").exists()


def test_files_and_links_are_not_replaced(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    link.symlink_to(tmp_path)
    for path in (file, link):
        with pytest.raises(UserError, match="is not a folder"):
            replace_folders([path])
    with pytest.raises(UserError, match="--out"):
        replace_folders([file / "run"])
