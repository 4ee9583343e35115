# SPDX-License-Identifier: Apache-2.0
"""What of ``make wheels`` needs no wheel: which kernels stop a release."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

RATIO = Path(__file__).parents[1] / "wheels" / "kernel_ratio.py"


def _kernel_ratio() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kernel_ratio", RATIO)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("middle", "spread", "code"), [(1.0, 0.02, 0), (1.23, 0.02, 0), (1.3, 0.5, 0), (1.4, 0.02, 1)]
)
def test_only_a_kernel_that_is_slow_for_certain_stops_a_release(
    middle: float,
    spread: float,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = _kernel_ratio()
    values = np.linspace(middle - spread, middle + spread, script.PAIRS)
    monkeypatch.setattr(sys, "argv", ["kernel_ratio.py", "wheel", "build"])
    monkeypatch.setattr(script, "loaded", lambda path: path)
    monkeypatch.setattr(script, "kernels", lambda: {"a kernel": None})
    monkeypatch.setattr(script, "ratios", lambda *_: values)
    assert script.main() == code
    said = capsys.readouterr().out
    assert said.startswith(f"a kernel                 {middle:.3f} [")
    assert ("above 1.25" in said) == bool(code)
