# SPDX-License-Identifier: Apache-2.0
"""The fault benchmark with real workers: what injectors do to a training, and what presum says."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import presum
from experiments.launch import run_workers
from faults import command, ways
from faults.catalog import FAULTS
from faults.fault import Fault
from faults.plan import Case

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

WORKERS = 4
NOT_SHARED = (  # every rank ends with parameters of its own
    *("forward-through-module", "adapter-around-the-wrapper", "moved-model", "late-unfrozen"),
    *("no-sync-off-by-one", "no-sync-left", "hook-that-keeps", "skipped-reduction"),
    *("own-initialization", "own-first-policy", "own-adapter", "last-bucket-kept"),
    *("late-parameter", "own-noise", "layer-kept"),
)
IN_TWO = (  # one rank's parameters, or a half's, differ from the others'
    *("missing-gradient", "skipped-update", "own-sum", "desynchronized", "halves-apart"),
    *("other-learning-rate", "other-weight-decay", "other-betas", "other-optimizer"),
    *("scheduler-of-its-own", "warmed-up-again", "stale-sum", "spike-of-its-own"),
    *("loaded-on-rank-zero", "average-not-taken-back", "lost-optimizer-state", "own-clip"),
    *("flipped-bit", "one-update-more", "pruned-on-one-rank", "changed-by-itself", "frozen-base"),
    *("layer-in-halves", "norm-of-a-part", "one-norm-of-its-own", "max-norm-of-its-own"),
    *("lost-optimizer-state-of-a-shard", "desynchronized-shard"),
)
NOT_FINITE = ("reduction-makes-nan", "nan-gradient", "infinite-element")
# Training does not read the running averages; DDP does not call torch.distributed.all_reduce; some
# settings change no number, or none in the first steps.
HARMLESS = (
    *("own-buffers", "own-statistics", "validation-in-training-mode", "changing-sum"),
    *("other-determinism", "other-environment", "drops-last", "raised-loss"),
    *("slow-loader", "slow-forward", "slow-layer", "slow-update", "stale-rollout"),
    *("norm-told-in-part", "average-of-its-own", "resumed-with-anothers-generator"),
    "input-changed-by-itself",
)
ON_SOME_MACHINES = ("other-precision",)


class NoMonitor:
    """Stands in for presum: takes what a monitor takes, and does nothing."""

    def __init__(self, *_args: object, **_options: object) -> None:
        pass

    def __enter__(self) -> NoMonitor:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        assert hasattr(presum.Monitor, name), name
        return lambda *_args, **_options: None


def short(case: Case) -> Case:
    epoch_steps = min(case.configuration.epoch_steps, 5)
    configuration = replace(case.configuration, steps=6, epoch_steps=epoch_steps)
    return replace(case, configuration=configuration, begins=min(case.begins, 3))


def trained(case: Case, corpus: Any) -> Any:
    """This rank's parameters at the end."""
    from faults.worker import training_of

    training = training_of(case, corpus, seed=1)
    training.run(Path("unused"), tick=lambda: None)
    parameters = [getattr(p, "full_tensor", lambda p=p: p)() for p in training.model.parameters()]
    return torch.cat([p.detach().float().flatten() for p in parameters])


class Runs(NamedTuple):
    out: Path
    faults: tuple[Fault, ...]


def train_all(runs: Runs) -> None:
    """Writes, for each fault and twin, every rank's hash of its parameters; "" if not finite."""
    import torch.distributed as dist

    from faults.data import make_corpus

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    corpus = make_corpus("builtin")
    found = {}
    for case in {c.folder: c for f in runs.faults for c in (f.case, f.twin)}.values():
        values = trained(short(case), corpus)
        digest = hashlib.sha256(values.numpy().tobytes()).hexdigest()
        hashes: list[Any] = [None] * WORKERS
        dist.all_gather_object(hashes, digest if values.isfinite().all() else "")
        found[case.folder] = hashes
    if dist.get_rank() == 0:
        (runs.out / "hashes.json").write_text(json.dumps(found))
    dist.destroy_process_group()


@pytest.mark.deep
def test_faults_break_what_they_say_and_twins_are_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("presum.attach", NoMonitor)
    run_workers(train_all, Runs(tmp_path, tuple(FAULTS)), workers=WORKERS)
    hashes = json.loads((tmp_path / "hashes.json").read_text())
    kind = ""
    for fault in FAULTS:
        found = hashes[fault.name]
        kind = kind if fault.variant else fault.name
        if kind in NOT_FINITE:
            assert set(found) == {""}, fault.name
            continue
        distinct = WORKERS if kind in NOT_SHARED else 2 if kind in IN_TWO else 1
        shards = fault.configuration.way == "fsdp2"  # all ranks' are one model
        assert len(set(found)) == (1 if shards else distinct), fault.name
        (twin,) = set(hashes[fault.twin.folder])  # all ranks alike
        harmless = set(found) == {twin}
        assert harmless == (kind in HARMLESS) or kind in ON_SOME_MACHINES, fault.name


@pytest.mark.deep
def test_what_is_right_in_a_way_of_training_changes_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("presum.attach", NoMonitor)
    from faults.injectors import injector

    right = [(f, way) for f in FAULTS if not f.variant for way in injector(f.injector).right_in]
    faults = [ways.in_way(fault, way) for fault, way in right]
    ours = tuple(f for f in faults if not f.configuration.frameworks_loop)
    run_workers(train_all, Runs(tmp_path, ours), workers=WORKERS)
    hashes = json.loads((tmp_path / "hashes.json").read_text())
    assert len(ours) >= 10
    for fault in ours:
        assert not ways.can_be_injected(fault)
        (all_ranks,) = set(hashes[fault.name])
        adds = fault.name.startswith("late-parameter")  # one that its twin does not have
        assert adds or {all_ranks} == set(hashes[fault.twin.folder]), fault.name


def table_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    code = command.main([*arguments, "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def test_some_faults_are_found_and_their_twins_stay_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some = "12,22,25,27,28,nan-gradient,duplicated-pair,shared-episodes,other-environment"
    arguments = ["--faults", some, "--workers", str(WORKERS), "--steps", "30"]
    code, whole = table_of([*arguments, "--out", str(tmp_path)], capsys)
    assert [f for f in whole["faults"] if not f["passed"]] == []
    assert code == 0
    code, again = table_of([*arguments, "--out", str(tmp_path)], capsys)  # nothing is run again
    assert again == whole
    assert all(f["in_time"] for f in whole["faults"])
    assert (tmp_path / "4-workers" / "nan-gradient" / "presum.db").is_file()


@pytest.mark.deep
def test_every_fault_is_found_in_time_and_every_twin_stays_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, whole = table_of(["--out", str(tmp_path)], capsys)
    assert [f for f in whole["faults"] if not (f["passed"] and f["in_time"])] == []
    assert code == 0


@pytest.mark.deep
def test_20_clean_runs_of_500_steps_raise_no_alarm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, whole = table_of(["--null", "20", "--out", str(tmp_path)], capsys)
    print(f"95 % interval of the rate: {whole['interval']}")
    assert [r for r in whole["runs"] if any(f["severity"] != "info" for f in r["findings"])] == []
    assert code == 0
