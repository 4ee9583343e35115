# SPDX-License-Identifier: Apache-2.0
"""The two runs with which ``make demo`` begins."""

from pathlib import Path
from types import SimpleNamespace

import pytest

import presum
from experiments import demo

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("pandas")


def test_the_gradient_is_wrong_from_the_step_on() -> None:
    model = torch.nn.Linear(3, 1)
    counter = demo.Counter(SimpleNamespace(step=lambda: None))  # type: ignore[arg-type]
    demo.break_gradient(model, counter=counter)
    norms = []
    for _ in range(demo.BROKEN_FROM + 1):
        model.zero_grad()
        model(torch.ones(3)).sum().backward()
        norms.append(float(model.weight.grad.norm()))
        counter.step()
    assert set(norms[:-1]) == {norms[0]}
    assert norms[-1] == demo.BROKEN_FACTOR * norms[0]


def test_both_runs_are_recorded_and_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo.run_both(tmp_path, steps=2) == 0
    for name in demo.RUNS:
        run = presum.load(tmp_path / name)
        assert len(run.steps) == 2 and run.steps.workers_expected[0] == demo.RANKS
    assert [line for line in capsys.readouterr().out.splitlines() if "warning" in line] == [
        "healthy: no warning",
        "rank-5-breaks: no warning",
    ]


@pytest.mark.deep
def test_the_rank_is_named_though_the_averaged_loss_does_not_move(tmp_path: Path) -> None:
    assert demo.run_both(tmp_path, steps=demo.STEPS) == 0
    healthy, broken = (demo.verdict_on(tmp_path / name) for name in demo.RUNS)
    assert healthy.worst is None
    assert broken.worst is not None and broken.worst.ranks == [demo.BROKEN_RANK]
    assert abs(broken.worst.first_step - demo.BROKEN_FROM) <= 5
    assert broken.worst.sentence in demo.text_of(broken)
    assert broken.averaged_loss == pytest.approx(healthy.averaged_loss, rel=0.05)
