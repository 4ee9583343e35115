# SPDX-License-Identifier: Apache-2.0
"""presum.attach on one worker: arguments, mistakes, several models."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import presum
from helpers.loss_model import LossModel, train
from helpers.packets import PARTS
from helpers.training import Training
from presum.steps.recording import Recording
from programs_started import run_command

pytestmark = pytest.mark.usefixtures("one_worker")


def test_ignored_parameters_are_not_watched(tmp_path: Path) -> None:
    inner = LossModel()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        inner, ["layers.1.weight", "layers.1.bias"]
    )
    model = DistributedDataParallel(inner)
    with presum.attach(model, run=tmp_path):
        train(model, 1)
    assert set(presum.load(tmp_path).groups.group) == {"layers.0"}


def test_every_and_reduced_every_thin_out_the_record(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    with presum.attach(
        model, run=tmp_path, record=presum.Record(every=3, reduced_every=6, sketch=0, groups=[])
    ):
        train(model, 14)
    run = presum.load(tmp_path)
    assert run.steps.step.tolist() == [0, 3, 6, 9, 12]
    assert run.steps.reduced_norm.notna().tolist() == [True, False, True, False, True]
    assert set(run.groups.group) == {"all"}


def test_groups_by_pattern(model: DistributedDataParallel, tmp_path: Path) -> None:
    with presum.attach(model, run=tmp_path, record=presum.Record(groups=[r"layers\.0", "bias"])):
        train(model, 1)
    assert set(presum.load(tmp_path).groups.group) == {"layers.0", "bias", "other"}


def test_a_second_attach_to_the_same_run_is_a_new_segment(
    model: DistributedDataParallel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for steps in (2, 3):
        with presum.attach(model, run=tmp_path):
            train(model, steps)
    run = presum.load(tmp_path)
    assert run.steps.segment.tolist() == [1, 1, 2, 2, 2]
    assert run.steps.step.tolist() == [0, 1, 0, 1, 2]
    said = capsys.readouterr().err
    assert said.count(f"presum: continues a run of 2 steps as segment 2 in {tmp_path}\n") == 1


def test_two_models_share_a_run(model: DistributedDataParallel, tmp_path: Path) -> None:
    other = DistributedDataParallel(LossModel())
    with presum.attach(model, run=tmp_path), presum.attach(other, run=tmp_path):
        train(model, 2)
        train(other, 1)
    steps = presum.load(tmp_path).steps
    assert steps.model_index.tolist() == [0, 0, 1]


def test_a_process_group_whose_ranks_torch_does_not_know_is_refused(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    model.process_group = dist.ProcessGroup(0, 1)  # as torchft's, nobody has registered it
    with pytest.raises(ValueError, match="does not know the ranks of ProcessGroup"):
        presum.attach(model, run=tmp_path)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad])
def test_an_optimizer_that_has_stepped_is_told_from_a_new_one(
    model: DistributedDataParallel,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: type[torch.optim.Optimizer],
) -> None:
    """Adagrad has state from its constructor on; plain SGD never has any."""
    optimizer = kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    for _ in range(2):
        with presum.attach(model, optimizer=optimizer, run=tmp_path):
            model(torch.ones(2, 4))["loss"].backward()
            optimizer.step()
    stepped = kind is not torch.optim.SGD
    assert capsys.readouterr().err.count("the optimizer has already taken steps") == stepped


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"record": presum.Record(every=0)}, "every must be"),
        ({"record": presum.Record(reduced_every=2.5)}, "reduced_every must be"),
        ({"record": presum.Record(sketch="big")}, "sketch must be"),
        ({"record": presum.Record(sketch=100)}, "0 or a power of two from 64"),
        ({"record": presum.Record(quiet="no")}, "quiet must be True or False"),
        ({"record": presum.Record(groups=False)}, "groups must be a list of regular expressions"),
        ({"record": presum.Record(local_buffers=5)}, "local_buffers must be a list of regular"),
        ({"reduction": presum.Reduction(microbatch_mean="yes")}, "microbatch_mean must be"),
        ({"run": 3}, "run must be a folder's path, not int"),
        ({"mode": "manual"}, "for a module without DDP or FSDP2"),
        ({"mode": "other"}, "mode must be"),
        ({"process_group": "x"}, "process_group must be of type ProcessGroup, not str"),
        ({"optimizer": nn.Linear(1, 1)}, "optimizer must be of type Optimizer, not Linear"),
        ({"record": presum.Record(fingerprints=["rgn"])}, "fingerprints must be"),
        ({"record": presum.Record(local_buffers=["("])}, "local_buffers"),
        ({"record": presum.Record(groups="a[")}, "groups: invalid regular expression 'a\\['"),
        ({"record": presum.Record(scaler=3)}, "scaler must be a torch.amp.GradScaler, not int"),
        ({"record": presum.Record(data=3)}, "data must be"),
        ({"record": presum.Record(data=[object()])}, "data must be"),
        ({"preflight": 0}, "preflight must be"),
        ({"preflight": 5}, "pass optimizer="),
    ],
)
def test_bad_arguments_are_one_clear_line(
    model: DistributedDataParallel, tmp_path: Path, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        presum.attach(model, **{"run": tmp_path, **arguments})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    with presum.attach(model, run=tmp_path):
        train(model, 1)
    assert len(presum.load(tmp_path).steps) == 1


def test_user_mistakes(model: DistributedDataParallel, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="attach after wrapping"):
        presum.attach(model.module, run=tmp_path)
    with pytest.raises(ValueError, match="needs a module"):
        presum.attach(3, run=tmp_path)  # type: ignore[arg-type]
    with presum.attach(model, run=tmp_path) as monitor:
        with pytest.raises(ValueError, match="manual"):
            monitor.before_reduction([])
        with pytest.raises(ValueError, match="attached already"):
            presum.attach(model, run=tmp_path)
        with pytest.raises(ValueError, match="at least 0"):
            monitor.loss(1.0, weight=-1)
        with pytest.raises(ValueError, match="one number"):
            monitor.loss(torch.ones(3))
        with pytest.raises(ValueError, match="pairs of a name and a tensor, not NoneType"):
            monitor.compare("engine", None)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="ReLU holds no tensors"):
            monitor.watch("activation", nn.ReLU())
    monitor.close()


def test_mistakes_of_a_loop_by_hand(tmp_path: Path) -> None:
    with presum.attach(nn.Linear(2, 2), run=tmp_path, mode="manual") as monitor:
        with pytest.raises(ValueError, match="'odd' is not a parameter"):
            monitor.before_reduction([("odd", torch.ones(2))])
        with pytest.raises(ValueError, match="has 3 elements"):
            monitor.before_reduction([("bias", torch.ones(3))])
    monitor.before_reduction([("bias", torch.ones(2))])  # after close: ignored


def test_functions_stay_functions_after_others_are_used() -> None:
    code = "import presum; presum.Run; presum.Monitor; import presum.frameworks.auto; "
    code += "import presum.attaching, presum.loading; assert callable(presum.attach), presum.attach"
    done = run_command([sys.executable, "-c", f"{code}; assert callable(presum.load)"])
    assert done.returncode == 0, done.stderr


def test_a_wrapped_optimizer_is_looked_into(training: Training) -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inside: torch.optim.Optimizer) -> None:
            self.optimizer = inside

    with replace(training, optimizer=Wrapper(training.optimizer)).watched():
        training.step(PARTS[:3])
    assert training.packets.clock == 1
    assert training.packets.facts["optimizer"] == "SGD"


def test_the_collector_tells_of_steps_and_lets_the_end_through(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []

    def stepped(steps: int) -> None:
        told.append((steps, len(training.steps)))
        if steps == 3:
            raise SystemExit(4)

    monkeypatch.setattr(Recording, "stepped", lambda _recording, steps: stepped(steps))
    with training.watched(), pytest.raises(SystemExit, match="4"):
        for _ in range(9):
            training.step(PARTS[:3])
    assert told == [(1, 1), (2, 2), (3, 3)]
