# SPDX-License-Identifier: Apache-2.0
"""What the commands of the experiments share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from presum.__main__ import main


def test_what_an_experiment_needs_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("tokenizers", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(sys, "argv", ["presum", "s1", "--out", str(tmp_path / "s1")])
    assert main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("presum: presum s1 needs t") and "presum[experiments]" in line
