# SPDX-License-Identifier: Apache-2.0
"""Which fingerprints travel with which step: one worker, its packets read back."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from helpers.packets import PARTS, Model, Packets, Step, rows_of
from helpers.training import Training
from helpers.values import real
from presum._core import Observer, StateKind, hash_plain
from presum.fingerprints.families import KIND, WORD
from presum.fingerprints.rng import RngStates
from presum.fingerprints.step import StepFingerprints
from presum.options import FAMILIES

pytestmark = pytest.mark.usefixtures("one_worker")


def test_a_step_carries_every_family(training: Training) -> None:
    with training.watched():
        training.step(PARTS[:3])
    values = training.steps[0].values
    rng = {"rng_torch", "rng_numpy", "rng_python"}
    settings = {"optimizer_class", "optimizer_settings", "learning_rate", "weight_decay"}
    modes = {"mode", "modes", "dropout", "dropouts", "dtype", "determinism"}
    others = {"wrapper_forward", "batch", "zero_share", "forward_draws"}
    others |= {"grad_factor", "tied_parameters"}
    assert rng | settings | modes | others == set(values)
    assert training.steps[0].samples == rows_of(PARTS[:3])
    assert values["batch"] == sum(rows_of(PARTS[:3])) & WORD
    assert (values["mode"], values["wrapper_forward"]) == (1, 1)
    assert "numpy" in training.packets.facts


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_can_be_asked_for_alone(training: Training, family: str) -> None:
    with training.watched(fingerprints=[family]):
        training.step(PARTS[:3])
    step = training.steps[0]
    expected = {
        "rng": "rng_torch",
        "data": "batch",
        "optimizer": "learning_rate",
        "mode": "modes",
        "environment": "dtype",
    }
    found = [name for name in expected.values() if name in step.values]
    assert found == ([expected[family]] if family in expected else [])
    assert bool(step.samples) == (family == "data")
    assert {of for _, of in step.states} == {"parameters": {1, 5}, "buffers": {2}}.get(
        family, set()
    )


def test_without_fingerprints_only_facts_about_the_step_travel(training: Training) -> None:
    with training.watched(fingerprints=[]):
        training.step(PARTS[:3])
    assert set(training.steps[0].values) == {"wrapper_forward", "zero_share", "grad_factor"}
    assert not training.steps[0].states and not training.steps[0].samples
    assert "numpy" not in training.packets.facts


def test_micro_batches_are_put_together_and_validation_left_out(training: Training) -> None:
    with training.watched():
        with training.model.no_sync():
            training.model(PARTS[:2])["loss"].backward()
        training.model(PARTS[5:9])  # no backward
        with torch.no_grad():
            training.model(PARTS[10:12])
        training.model(PARTS[2:4])["loss"].backward()
        training.optimizer.step()
    assert len(training.steps) == 1
    assert training.steps[0].samples == rows_of(PARTS[:4])


def test_micro_batches_that_were_zeroed_are_not_of_the_step(training: Training) -> None:
    with training.watched():
        with training.model.no_sync():
            training.model(PARTS[:2])["loss"].backward()
        training.step(PARTS[2:4])
    (step,) = training.steps
    assert step.samples == rows_of(PARTS[2:4])


def test_samples_that_cannot_be_found_are_unknown(training: Training) -> None:
    class Odd(Model):
        def forward(self, x: Any) -> dict[str, torch.Tensor]:
            return super().forward(x.hidden)

    class Batch:
        hidden = PARTS[:3]

    training = training.of(Odd())
    with training.watched():
        training.model(Batch())["loss"].backward()
    assert "batch" not in training.steps[0].values and training.steps[0].rows == 0
    assert "rng_torch" in training.steps[0].values


def test_a_forward_through_the_module_inside_shows(training: Training) -> None:
    with training.watched():
        training.step(PARTS[:3], training.model.module)
        training.step(PARTS[:3])
        training.step(PARTS[:3], training.model.module)
    assert training.values("wrapper_forward") == [0, 1, 0]
    assert all(step.states and "rng_torch" in step.values for step in training.steps)


@pytest.mark.parametrize("through", ["bare", "wrapped"])
def test_one_worker_may_evaluate_with_gradients_at_any_time(
    through: str, training: Training
) -> None:
    model = training.model

    def evaluate() -> None:
        model.eval()
        (model if through == "wrapped" else model.module)(PARTS[4:6])
        model.train()

    def train(extra: Callable[[], None]) -> list[Step]:
        torch.manual_seed(1)
        for p in model.parameters():
            nn.init.constant_(p, 0.5)
        with training.watched():
            for first in range(3):
                training.optimizer.zero_grad()
                model(PARTS[first : first + 3])["loss"].backward()
                extra()
                training.optimizer.step()
                extra()
        taken = list(training.steps)
        training.steps.clear()
        for step in taken:  # of the gradient at the optimizer's step, which evaluation comes before
            step.values.pop("below_fp16", None)
            step.values.pop("grad_factor", None)
        return taken

    alone, with_extra = train(lambda: None), train(evaluate)
    assert [step.states for step in with_extra] == [step.states for step in alone]
    assert [step.values for step in with_extra] == [step.values for step in alone]
    assert [step.samples for step in with_extra] == [step.samples for step in alone]


def test_a_batch_is_known_by_all_its_tensors(training: Training) -> None:
    class Graph(Model):
        def forward(self, grid: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
            return super().forward(grid * y[:, None])

    training = training.of(Graph())
    with training.watched():
        for targets in (PARTS[0], PARTS[1], PARTS[0]):
            training.model(PARTS[:4], targets)["loss"].backward()
    first, second, third = (step.values["batch"] for step in training.steps)
    assert first == third != second
    assert all(step.samples == rows_of(PARTS[:4]) for step in training.steps)


def test_optimizer_steps_on_gradients_that_were_not_reduced_are_counted(training: Training) -> None:
    with training.watched():
        training.step(PARTS[:3])
        with training.model.no_sync():
            training.step(PARTS[:3])  # wrong
        training.optimizer.step()  # nothing new
        with training.model.no_sync():
            training.model(PARTS[:3])["loss"].backward()
        training.step(PARTS[:3])
        training.model(PARTS[:3])["loss"].backward()
        with training.model.no_sync():
            training.step(PARTS[:3])  # wrong: one micro-batch too many
        training.step(PARTS[:3])
    reduced = [step.reduced for step in training.steps]
    assert reduced == [True, False, True, True, False, True]
    assert [step.unreduced for step in training.steps] == [0, 0, 1, 1, 1, 2]


def test_generators_are_read_before_the_forward_pass_draws(training: Training) -> None:
    class Noisy(Model):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return super().forward(x + torch.rand_like(x))

    training = training.of(Noisy())
    with training.watched():
        for _ in range(2):
            torch.manual_seed(3)
            with training.model.no_sync():
                training.model(PARTS[:3])["loss"].backward()
            training.model(PARTS[:3])["loss"].backward()
    torch.manual_seed(3)
    expected = dict(RngStates(torch.device("cpu"))())[KIND["rng_torch"]]
    assert [step.values["rng_torch"] for step in training.steps] == [expected, expected]


def test_what_the_forward_pass_draws_is_told_but_for_dropout(training: Training) -> None:
    class Noisy(Model):
        def __init__(self) -> None:
            super().__init__()
            self.rests = nn.Dropout(0.0)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return super().forward(x + torch.rand_like(x) if self.drawing else x)

    class Dropping(Model):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return super().forward(torch.nn.functional.dropout(x, 0.5))

    noisy = Noisy()
    for module, drawing in ((noisy, True), (noisy, False), (Dropping(), True)):
        module.drawing = drawing
        other = training.of(module)
        with other.watched():
            torch.rand(3)  # before the forward pass
            other.model(PARTS[:3])["loss"].backward()
    assert training.values("forward_draws") == [1, 0, None]


def test_labels_that_the_model_is_not_given_are_known_from_the_loader(training: Training) -> None:
    def labels_of(wrong: dict[int, int]) -> list[int | None]:
        targets = torch.arange(24) % 7
        for at, label in wrong.items():
            targets[at] = label
        other = training.of(Model())
        with other.watched():
            for x, _ in DataLoader(TensorDataset(PARTS, targets), batch_size=4):
                other.model(x)["loss"].backward()
        return training.values("labels")[-6:]

    plain = labels_of({})
    assert len(plain) == 6 and plain == labels_of({})
    for at in (0, 3, 10, 23):
        other = labels_of({at: 9})
        differ = [step for step in range(6) if other[step] != plain[step]]
        assert differ == [at // 4]
    swapped = labels_of({0: 1, 1: 0})
    assert swapped[0] != plain[0] and swapped[1:] == plain[1:]


def test_the_share_of_zeros_is_that_of_the_gradient(training: Training) -> None:
    training = training.of(Model())
    for parameter in filter(lambda p: p.requires_grad, training.model.parameters()):
        parameter.register_hook(lambda g: g * (torch.arange(g.numel()) > 0).view_as(g))
    with training.watched():
        training.model(PARTS[:3])["loss"].backward()
    looked_at = [p.grad.flatten() for p in training.model.parameters() if p.grad is not None]
    gradients = torch.cat([g[torch.arange(len(g)) % 960 < 64] for g in looked_at])
    share = real(training.steps[0].values["zero_share"])
    assert share == int((gradients == 0).sum()) / len(gradients)
    assert 0 < share < 1


def test_only_recorded_steps_are_looked_at(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    original = StepFingerprints.before_step

    def before_step(self: StepFingerprints, step: int, *, on_host: bool) -> None:
        looked.append(step)
        original(self, step, on_host=on_host)

    monkeypatch.setattr(StepFingerprints, "before_step", before_step)
    with training.watched(every=3):
        for step in range(7):
            training.step(PARTS[step : step + 2])
    assert looked == [0, 3, 6]
    assert [step.samples for step in training.steps] == [rows_of(PARTS[s : s + 2]) for s in looked]


def test_reentrant_checkpoints_of_the_whole_module_are_no_new_step(training: Training) -> None:
    class Checkpointed(Model):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
                return super().forward(x)
            inside = torch.utils.checkpoint.checkpoint(
                lambda y: self(y)["loss"], x.requires_grad_(), use_reentrant=True
            )
            return {"loss": inside}

    training = training.of(Checkpointed())
    with training.watched():
        for _ in range(2):
            training.model(PARTS[:3].clone())["loss"].backward()
    assert [step.number for step in training.steps] == [0, 1]
    assert all("rng_torch" in step.values and step.rows == 3 for step in training.steps)


def run_states(
    packets: Packets,
    tmp_path: Path,
    steps: int,
    change: Callable[[nn.Module], None],
    **options: Any,
) -> list[dict[tuple[int, int], int]]:
    torch.manual_seed(0)
    inner = Model()
    change(inner)
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)
    before = len(packets.steps)
    training = Training(model, optimizer, packets, tmp_path)
    with training.watched(**options):
        for _ in range(steps):
            training.step(PARTS[:3])
    return [step.states for step in packets.steps[before:]]


def changed(packets: Packets, tmp_path: Path, change: Callable[[Any], None], **options: Any) -> Any:
    """For each of the first steps, whether parameters (1) and buffers (2) differ from the plain
    model's."""
    plain = run_states(packets, tmp_path, 6, lambda _: None, **options)
    other = run_states(packets, tmp_path, 6, change, **options)
    assert [s.keys() for s in plain] == [s.keys() for s in other]
    return [
        sorted({of for group, of in a if a[group, of] != b[group, of]})
        for a, b in zip(plain, other, strict=True)
    ]


def test_every_parameter_and_buffer_is_hashed_at_first_and_then_in_turn_the_smallest_always(
    packets: Packets, tmp_path: Path
) -> None:
    def last_weight(model: Model) -> None:  # the third parameter
        model.layers[1].weight.data += 1e-3

    def last_bias(model: Model) -> None:  # the smallest
        model.layers[1].bias.data += 1e-3

    def frozen(model: Model) -> None:  # the first of the others
        model.frozen.weight.data += 1e-3

    def flag(model: Model) -> None:  # the fourth
        model.flags[2] = False

    assert changed(packets, tmp_path, last_weight) == [[1], [], [1], [], [], []]
    assert changed(packets, tmp_path, last_bias) == [[1]] * 6
    assert changed(packets, tmp_path, frozen) == [[5], [], [], [], [], []]
    assert changed(packets, tmp_path, flag) == [[2], [], [], [2], [], []]


def test_local_buffers_are_left_out(packets: Packets, tmp_path: Path) -> None:
    def flag(model: Model) -> None:
        model.flags[2] = False

    assert changed(packets, tmp_path, flag, local_buffers=["^flags$"]) == [[]] * 6
    assert changed(packets, tmp_path, flag, local_buffers=["seen"])[0] == [2]


def test_what_ddp_is_told_to_ignore_is_left_out(packets: Packets, tmp_path: Path) -> None:
    names = ["layers.1.bias", "flags", "frozen.weight"]

    def change(model: Model) -> None:
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
        model.layers[1].bias.data += 1
        model.flags[2] = False
        model.frozen.weight.data += 1

    def plain(model: Model) -> None:
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)

    assert run_states(packets, tmp_path, 1, change) == run_states(packets, tmp_path, 1, plain)


def test_a_buffer_that_is_replaced_is_followed(training: Training) -> None:
    with training.watched(every=25):
        for step in range(76):
            training.model.module.seen = torch.full((3,), step // 50)
            training.step(PARTS[:3])
    # Slices 0, 1, 2, 3 at the steps 0, 25, 50, 75; "seen" is the third after weight and bias.
    assert len(training.steps) == 4
    assert any(of == 2 for _, of in training.steps[2].states)


def test_the_final_note_holds_all_parameters_and_the_clock(
    packets: Packets, tmp_path: Path
) -> None:
    plain = run_states(packets, tmp_path, 3, lambda _: None)
    assert packets.clock == 3 and packets.final is not None
    assert packets.final.states == {k: v for k, v in plain[0].items() if k[1] == 1}  # lr is 0


def test_parameters_changed_after_training_are_not_in_the_final_note(training: Training) -> None:
    with training.watched():
        training.step(PARTS[:3])
        training.model.module.load_state_dict(Model().state_dict())
    assert training.packets.final is not None and not training.packets.final.states
    assert training.packets.clock == 1


def test_on_a_device_the_same_is_sent(
    packets: Packets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []
    for on_host in (True, False):
        torch.manual_seed(0)
        model = DistributedDataParallel(Model())
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        training = Training(model, optimizer, packets, tmp_path)
        before = len(packets.steps)
        place = "presum.attaching.in_host_memory"
        monkeypatch.setattr(place, lambda device, on_host=on_host: on_host)
        with training.watched():
            for step in range(5):
                torch.manual_seed(step)
                training.step(PARTS[step : step + 3])
        assert packets.final is not None and packets.final.states
        sent.append((packets.steps[before:], packets.final.states, packets.clock))
    for host, device in zip(sent[0][0], sent[1][0], strict=True):
        host.order = device.order
        host.values.pop("rng_python"), device.values.pop("rng_python")
        host.values.pop("rng_numpy"), device.values.pop("rng_numpy")
        assert host == device
    assert sent[0][1:] == sent[1][1:]


def test_a_family_that_fails_leaves_the_others_and_the_training_alone(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object) -> None:
        raise RuntimeError("presum's own")

    monkeypatch.setattr(RngStates, "__call__", broken)
    monkeypatch.setattr("presum.fingerprints.step.report_on_host", broken)
    with training.watched():
        for _ in range(2):
            training.step(PARTS[:3])
    assert len(training.steps) == 2 and training.packets.clock == 2
    assert len(training.packets.notes) == 4  # rng, parameters, buffers, snapshots
    for step in training.steps:
        assert "rng_torch" not in step.values and not step.states
        assert step.samples and "learning_rate" in step.values


def test_half_a_slice_is_not_sent(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(observer: Observer, of: StateKind, index: int, state: torch.Tensor) -> bool:
        if (of, index) == (StateKind.FROZEN, 1):
            raise RuntimeError("planted")
        return hash_plain(observer, of, index, state)

    monkeypatch.setattr("presum.fingerprints.states.hash_plain", refuses)
    with training.watched():
        training.step(PARTS[:3])
        training.step(PARTS[:3])
    assert training.steps[0].states == {}
    assert {of for _, of in training.steps[1].states} == {1}


def test_training_has_the_same_bits_with_and_without(packets: Packets, tmp_path: Path) -> None:
    ends = []
    for watched in (False, True):
        torch.manual_seed(1)
        inner = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        model = DistributedDataParallel(inner)
        optimizer = torch.optim.AdamW(model.parameters())
        loader = DataLoader(TensorDataset(PARTS), batch_size=4, shuffle=True)
        watching: Any = nullcontext()
        if watched:
            watching = Training(model, optimizer, packets, tmp_path).watched()
        with watching:
            for _ in range(3):
                for (x,) in loader:
                    optimizer.zero_grad()
                    model(x).mean().backward()
                    optimizer.step()
        ends.append([x.clone() for x in model.state_dict().values()] + [torch.get_rng_state()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_a_module_inside_copies_and_loads_where_presum_is_not_installed(
    training: Training,
) -> None:
    with training.watched():
        copy = deepcopy(training.model.module)
        hooks = pickle.dumps(training.model.module._forward_pre_hooks)
    assert b"presum" not in hooks
    copy(PARTS[:3])["loss"].backward()
    code = "import pickle, sys; print([h(1, 2) for h in pickle.load(sys.stdin.buffer).values()])"
    command = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(command, input=hooks, capture_output=True, check=True)
    assert done.stdout == b"[None, None]\n"
