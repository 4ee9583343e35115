# SPDX-License-Identifier: Apache-2.0
"""The benchmarks in Python, tiny: that they work and say what they measured, not how fast it is."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np

from programs_started import run_command

BENCH = Path(__file__).parents[1] / "bench"
sys.path.insert(0, str(BENCH))

from overhead_bench import half_width, interval, verdict  # noqa: E402


def output_of(*arguments: str, codes: tuple[int, ...]) -> str:
    done = run_command([sys.executable, *arguments], cwd=BENCH)
    assert done.returncode in codes, done.stderr
    for check in ("duplicate-data", "pair-too-similar"):  # its own data is as it should be
        assert check not in done.stdout + done.stderr, done.stderr
    return done.stdout


def test_overhead_says_first_what_it_measured() -> None:
    tiny = ("--blocks", "2", "--cycles", "1", "--minutes", "0.1", "--parameters", "20")
    text = output_of("overhead_bench.py", *tiny, codes=(0, 1, 2))
    first, *rest = text.splitlines()
    assert re.match(r"\d+ ms per step, .+ cores, \w+, ddp, bf16, .+ 2 blocks$", first)
    for title in ("presum on / off", "norms / off", "squares / off", "off' / off (control)"):
        assert any(title in line for line in rest), text
    assert sum("attributed, rank" in line for line in rest) == 2
    assert any("of which gradients" in line for line in rest)


def test_cost_tells_parameters_and_steps_apart() -> None:
    text = output_of("cost_bench.py", "--quick", codes=(0,))
    for part in ("hook entry", "kernel", "sketch", "packet", "background"):
        assert f"\n{part}" in text, text


def test_what_cannot_be_resolved_is_inconclusive() -> None:
    rng = np.random.default_rng(0)
    quiet = interval(rng.normal(0.0, 0.004, 200))
    loud = interval(rng.normal(0.0, 0.2, 200))
    above = interval(rng.normal(0.03, 0.004, 200))
    assert half_width(quiet) < 0.005 < half_width(loud)
    assert verdict(quiet, quiet, 0.01) == "pass"
    assert verdict(quiet, loud, 0.01) == "inconclusive"
    assert verdict(loud, quiet, 0.01) == "inconclusive"
    assert verdict(above, loud, 0.01) == "fail"
