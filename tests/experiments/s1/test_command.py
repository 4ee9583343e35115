# SPDX-License-Identifier: Apache-2.0
"""Command line, launching, and a whole two-worker experiment."""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import presum
from experiments.launch import WorkerError, run_workers
from experiments.s1.command import main
from experiments.s1.worker import choose_device
from presum.errors import UserError

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "0"], "'0' is not an integer of at least 1"),
        (["--steps", "x"], "'x' is not an integer"),
        (["--lr", "nan"], "'nan' is not a positive number"),
        (["--settings", "S1-1,S1-4"], "unknown setting 'S1-4' (known: S1-1, S1-2, S1-3)"),
        (["--mode", "all"], "invalid choice: 'all'"),
        (["--model", "x", "--preset", "openpangu-1b"], "not allowed with argument"),
        (["--step", "3"], "unrecognized arguments: --step"),
    ],
)
def test_wrong_command_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_missing_model_and_data_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a Hugging Face checkpoint folder"):
        main(["--model", str(tmp_path / "none"), "--out", str(tmp_path)])
    with pytest.raises(UserError, match="No such file"):
        main(["--data", str(tmp_path / "none.json"), "--out", str(tmp_path)])


def test_worker_count_must_match_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UserError, match="the launcher started 4 ranks"):
        main(["--workers", "8"])


def test_devices() -> None:
    assert choose_device(local_rank=1, local_workers=2, gpus=2) == ("cuda:1", "nccl")
    assert choose_device(local_rank=3, local_workers=8, gpus=2) == ("cuda:1", "gloo")
    assert choose_device(local_rank=3, local_workers=8, gpus=0) == ("cpu", "gloo")


@pytest.mark.parametrize(
    ("arguments", "avx", "amx", "gpus", "dtype"),
    [
        ([], False, False, 0, "fp32"),
        ([], True, False, 0, "bf16"),
        ([], False, True, 0, "bf16"),
        ([], False, False, 1, "bf16"),
        (["--dtype", "bf16"], False, False, 0, "bf16"),
    ],
)
def test_bf16_is_not_emulated_unasked(
    arguments: list[str],
    avx: bool,
    amx: bool,
    gpus: int,
    dtype: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: avx)
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    plans: list[Any] = []
    trained = "experiments.s1.command.run_workers"
    monkeypatch.setattr(trained, lambda work, plan, workers: plans.append(plan))
    monkeypatch.setattr("presum.load", _load, raising=False)
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().err
    assert plans[0].dtype == dtype and said.rstrip().endswith(f", {dtype}")
    assert ("AVX512-BF16" in said) == (dtype == "fp32")


def _misbehave(how: str) -> None:
    if os.environ["RANK"] == "0":
        time.sleep(3600)
    if how == "raise":
        raise RuntimeError("no luck\nat all")
    if how == "user":
        raise UserError("mend this")
    os.kill(os.getpid(), signal.SIGKILL)


def test_failing_worker_is_named_and_the_others_end() -> None:
    with pytest.raises(WorkerError, match=r"^rank 1 stopped: RuntimeError: no luck$") as caught:
        run_workers(_misbehave, "raise", workers=2)
    assert "in _misbehave" in caught.value.trace
    with pytest.raises(WorkerError, match="rank 1 stopped: killed by SIGKILL"):
        run_workers(_misbehave, "kill", workers=2)
    with pytest.raises(UserError, match=r"^mend this$"):
        run_workers(_misbehave, "user", workers=2)


def _load(run: str) -> SimpleNamespace:
    pandas = pytest.importorskip("pandas")
    names = ["loss_mean", "loss_std", "loss_range", "grad_norm_std", "cosine_mean"]
    return SimpleNamespace(
        steps=pandas.DataFrame({n: [0.5] for n in [*names, "effective_workers"]})
    )


def test_experiment_is_deterministic_and_saves_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    pytest.importorskip("pandas")
    arguments = ["--workers", "2", "--steps", "2", "--settings", "S1-1,S1-3", "--save-models"]
    saved = []
    for _ in range(2):
        assert main([*arguments, "--mode", "replicated", "--out", str(tmp_path)]) == 0
        paths = tmp_path.glob("*/model/*.safetensors")
        saved.append({path.relative_to(tmp_path).parts[0]: path.read_bytes() for path in paths})
    assert saved[0] == saved[1]
    assert saved[0]["replicated-S1-1"] != saved[0]["replicated-S1-3"]
    assert "presum check" in capsys.readouterr().out
    cosines = [presum.load(tmp_path / run).steps.cosine_mean[0] for run in sorted(saved[0])]
    assert cosines[0] == pytest.approx(1) and cosines[1] < 0.9
    folder = tmp_path / "replicated-S1-1" / "model"
    assert "replicated-S1-1" in (folder / "README.md").read_text()
    AutoModelForCausalLM.from_pretrained(folder)
    assert AutoTokenizer.from_pretrained(folder).pad_token == "<pad>"
