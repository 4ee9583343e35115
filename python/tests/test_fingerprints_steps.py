# SPDX-License-Identifier: Apache-2.0
"""Which fingerprints travel with which step: one worker, its packets read back."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

import presum
from packet_decoder import decode
from presum._core import Observer, hash_rows
from presum.fingerprints import FAMILIES
from presum.fingerprints.families import KIND, WORD
from presum.fingerprints.rng import RngStates
from presum.fingerprints.samples import BatchFinder
from presum.fingerprints.states import BUFFERS
from presum.fingerprints.step import StepFingerprints
from presum.steps.recording import Recording
from presum.transport.outbox import LatePacket
from presum.transport.session import Session

STEP, FINGERPRINTS, STATES, SAMPLES, INDICES, FACTS, NOTE, CLOCK = 1, 6, 8, 9, 10, 17, 19, 20
NAMES = {number: name for name, number in KIND.items()}


pytestmark = pytest.mark.usefixtures("one_worker")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 1)])
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("flags", torch.ones(5, dtype=torch.bool))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        for layer in self.layers:
            x = layer(x)
        return {"loss": x.square().mean()}


@dataclass
class Step:
    number: int
    values: dict[str, int] = field(default_factory=dict)
    states: dict[tuple[int, int], int] = field(default_factory=dict)  # (group, of)
    rows: int = 0
    samples: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    order: int = 0  # among all packets


@dataclass
class Packets:
    """What a worker sent."""

    steps: list[Step] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    final: Step | None = None
    clock: int | None = None
    hellos: list[int] = field(default_factory=list)
    count: int = 0

    def add(self, packet: bytes) -> None:
        self.count += 1
        decoded = decode(packet)
        take = {"hello": self._hello, "step": self._step, "note": self._note}[decoded.kind]
        take(decoded.sections, decoded.header["step"])

    def _hello(self, found: dict[int, bytes], _number: int) -> None:
        self.hellos.append(self.count)
        self.facts = dict(pairs(found[FACTS]))

    def _step(self, found: dict[int, bytes], number: int) -> None:
        step = Step(number, order=self.count)
        for kind, value in struct.iter_unpack("<IQ", found[FINGERPRINTS]):
            assert NAMES[kind] not in step.values, "sent twice"
            step.values[NAMES[kind]] = value
        step.states = states(found)
        if SAMPLES in found:
            step.rows = struct.unpack_from("<Q", found[SAMPLES])[0]
            step.samples = words(found[SAMPLES][12:])
        step.indices = words(found.get(INDICES, b""))
        self.steps.append(step)

    def _note(self, found: dict[int, bytes], number: int) -> None:
        if CLOCK in found:
            self.final = Step(number, states=states(found))
            self.clock = words(found[CLOCK])[0]
        else:
            self.notes.append(found[NOTE][20:].decode())


def words(body: bytes) -> list[int]:
    return [word for (word,) in struct.iter_unpack("<Q", body)]


def states(found: dict[int, bytes]) -> dict[tuple[int, int], int]:
    entries = struct.iter_unpack("<QIQ", found.get(STATES, b""))
    return {(group, of): value for group, of, value in entries}


def pairs(body: bytes) -> Iterator[tuple[str, str]]:
    texts, at = [], 0
    while at < len(body):
        (length,) = struct.unpack_from("<H", body, at)
        texts.append(body[at + 2 : at + 2 + length].decode())
        at += 2 + length
    yield from zip(texts[::2], texts[1::2], strict=True)


@pytest.fixture
def packets(monkeypatch: pytest.MonkeyPatch) -> Packets:
    found = Packets()
    original = Session.send

    def made(make: Callable[[], bytes]) -> bytes:
        packet = make()
        found.add(packet)
        return packet

    def send(session: Session, packet: bytes | LatePacket) -> None:
        if isinstance(packet, LatePacket):
            packet = packet._replace(make=lambda make=packet.make: made(make))  # type: ignore[misc]
        else:
            found.add(packet)
        original(session, packet)

    monkeypatch.setattr(Session, "send", send)
    return found


@pytest.fixture
def model() -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(Model())


@pytest.fixture
def optimizer(model: DistributedDataParallel) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x)["loss"].backward()
    optimizer.step()


def rows_of(x: torch.Tensor) -> list[int]:
    return hash_rows(x.data_ptr(), x.shape[0], x.shape[1], x.element_size(), 0, 8)


PARTS = torch.arange(96.0).reshape(24, 4)


# ---- a step's own


def test_a_step_carries_every_family(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    packets: Packets,
    tmp_path: Path,
) -> None:
    with presum.attach(model, optimizer=optimizer, run=tmp_path, quiet=True):
        one_step(model, optimizer, PARTS[:3])
    values = packets.steps[0].values
    rng = {"rng_torch", "rng_numpy", "rng_python"}
    settings = {"optimizer_class", "optimizer_settings", "learning_rate", "weight_decay"}
    modes = {"mode", "modes", "dropout", "dropouts", "dtype", "determinism"}
    assert rng | settings | modes | {"unreduced_steps", "wrapper_forward", "batch"} == set(values)
    assert packets.steps[0].samples == rows_of(PARTS[:3])
    assert values["batch"] == sum(rows_of(PARTS[:3])) & WORD
    assert (values["mode"], values["unreduced_steps"], values["wrapper_forward"]) == (1, 0, 1)
    assert "numpy" in packets.facts


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_can_be_asked_for_alone(
    family: str,
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    packets: Packets,
    tmp_path: Path,
) -> None:
    with presum.attach(model, optimizer=optimizer, run=tmp_path, fingerprints=[family], quiet=True):
        one_step(model, optimizer, PARTS[:3])
    step = packets.steps[0]
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
    assert {of for _, of in step.states} == {"parameters": {1, 2}, "buffers": {2}}.get(
        family, set()
    )


def test_without_fingerprints_only_facts_about_the_step_travel(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    packets: Packets,
    tmp_path: Path,
) -> None:
    with presum.attach(model, optimizer=optimizer, run=tmp_path, fingerprints=False, quiet=True):
        one_step(model, optimizer, PARTS[:3])
    assert set(packets.steps[0].values) == {"unreduced_steps", "wrapper_forward"}
    assert not packets.steps[0].states and not packets.steps[0].samples
    assert "numpy" not in packets.facts


def test_micro_batches_of_a_step_are_put_together_and_validation_left_out(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    packets: Packets,
    tmp_path: Path,
) -> None:
    with presum.attach(model, optimizer=optimizer, run=tmp_path, quiet=True):
        with model.no_sync():
            model(PARTS[:2])["loss"].backward()
        model(PARTS[5:9])  # no backward
        with torch.no_grad():
            model(PARTS[10:12])
        one_step(model, optimizer, PARTS[2:4])
    assert len(packets.steps) == 1
    assert packets.steps[0].samples == rows_of(PARTS[:4])


def test_samples_that_cannot_be_found_are_unknown(
    optimizer: torch.optim.Optimizer, packets: Packets, tmp_path: Path
) -> None:
    class Odd(Model):
        def forward(self, x: Any) -> dict[str, torch.Tensor]:
            return super().forward(x.hidden)

    class Batch:
        hidden = PARTS[:3]

    model = DistributedDataParallel(Odd())
    with presum.attach(model, run=tmp_path, quiet=True):
        model(Batch())["loss"].backward()
    assert "batch" not in packets.steps[0].values and packets.steps[0].rows == 0
    assert "rng_torch" in packets.steps[0].values


def test_a_forward_through_the_module_inside_shows(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    packets: Packets,
    tmp_path: Path,
) -> None:
    with presum.attach(model, optimizer=optimizer, run=tmp_path, quiet=True):
        one_step(model.module, optimizer, PARTS[:3])
        one_step(model, optimizer, PARTS[:3])
        one_step(model.module, optimizer, PARTS[:3])
    assert [step.values["wrapper_forward"] for step in packets.steps] == [0, 1, 0]
    assert all(step.states and "rng_torch" in step.values for step in packets.steps)


@pytest.mark.parametrize("through", ["bare", "wrapped"])
def test_one_worker_may_evaluate_with_gradients_at_any_time(
    through: str,
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    packets: Packets,
    tmp_path: Path,
) -> None:
    def evaluate() -> None:
        model.eval()
        (model if through == "wrapped" else model.module)(PARTS[4:6])
        model.train()

    def train(extra: Callable[[], None]) -> list[Step]:
        torch.manual_seed(1)
        for p in model.parameters():
            nn.init.constant_(p, 0.5)
        with presum.attach(model, optimizer=optimizer, run=tmp_path / str(extra), quiet=True):
            for first in range(3):
                optimizer.zero_grad()
                model(PARTS[first : first + 3])["loss"].backward()
                extra()
                optimizer.step()
                extra()
        taken = list(packets.steps)
        packets.steps.clear()
        return taken

    alone, with_extra = train(lambda: None), train(evaluate)
    assert [step.states for step in with_extra] == [step.states for step in alone]
    assert [step.values for step in with_extra] == [step.values for step in alone]
    assert [step.samples for step in with_extra] == [step.samples for step in alone]


def test_a_batch_is_known_by_all_its_tensors(
    optimizer: torch.optim.Optimizer, packets: Packets, tmp_path: Path
) -> None:
    class Graph(Model):
        def forward(self, grid: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
            return super().forward(grid * y[:, None])

    model = DistributedDataParallel(Graph())
    with presum.attach(model, run=tmp_path, quiet=True):
        for targets in (PARTS[0], PARTS[1], PARTS[0]):
            model(PARTS[:4], targets)["loss"].backward()
    first, second, third = (step.values["batch"] for step in packets.steps)
    assert first == third != second
    assert all(step.samples == rows_of(PARTS[:4]) for step in packets.steps)


def test_optimiser_steps_on_gradients_that_were_not_reduced_are_counted(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    packets: Packets,
    tmp_path: Path,
) -> None:
    with presum.attach(model, optimizer=optimizer, run=tmp_path, quiet=True):
        one_step(model, optimizer, PARTS[:3])
        with model.no_sync():
            one_step(model, optimizer, PARTS[:3])  # wrong
        optimizer.step()  # nothing new
        with model.no_sync():
            model(PARTS[:3])["loss"].backward()
        one_step(model, optimizer, PARTS[:3])
        model(PARTS[:3])["loss"].backward()
        with model.no_sync():
            one_step(model, optimizer, PARTS[:3])  # wrong: one micro-batch too many
        one_step(model, optimizer, PARTS[:3])
    assert [step.values["unreduced_steps"] for step in packets.steps] == [0, 1, 1, 2]


def test_generators_are_read_before_the_forward_pass_draws(
    optimizer: torch.optim.Optimizer, packets: Packets, tmp_path: Path
) -> None:
    class Noisy(Model):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return super().forward(x + torch.rand_like(x))

    model = DistributedDataParallel(Noisy())
    with presum.attach(model, run=tmp_path, quiet=True):
        for _ in range(2):
            torch.manual_seed(3)
            with model.no_sync():
                model(PARTS[:3])["loss"].backward()
            model(PARTS[:3])["loss"].backward()
    torch.manual_seed(3)
    expected = dict(RngStates(torch.device("cpu"))())[KIND["rng_torch"]]
    assert [step.values["rng_torch"] for step in packets.steps] == [expected, expected]


def test_only_recorded_steps_are_looked_at(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    packets: Packets,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []
    original = StepFingerprints.before_step

    def before_step(self: StepFingerprints, step: int, *, on_host: bool) -> None:
        looked.append(step)
        original(self, step, on_host=on_host)

    monkeypatch.setattr(StepFingerprints, "before_step", before_step)
    with presum.attach(model, optimizer=optimizer, run=tmp_path, every=3, quiet=True):
        for step in range(7):
            one_step(model, optimizer, PARTS[step : step + 2])
    assert looked == [0, 3, 6]
    assert [step.samples for step in packets.steps] == [rows_of(PARTS[s : s + 2]) for s in looked]


def test_reentrant_checkpoints_of_the_whole_module_are_no_new_step(
    packets: Packets, tmp_path: Path
) -> None:
    class Checkpointed(Model):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
                return super().forward(x)
            inside = torch.utils.checkpoint.checkpoint(
                lambda y: self(y)["loss"], x.requires_grad_(), use_reentrant=True
            )
            return {"loss": inside}

    model = DistributedDataParallel(Checkpointed())
    with presum.attach(model, run=tmp_path, quiet=True):
        for _ in range(2):
            model(PARTS[:3].clone())["loss"].backward()
    assert [step.number for step in packets.steps] == [0, 1]
    assert all("rng_torch" in step.values and step.rows == 3 for step in packets.steps)


# ---- states


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
    with presum.attach(model, optimizer=optimizer, run=tmp_path, quiet=True, **options):
        for _ in range(steps):
            one_step(model, optimizer, PARTS[:3])
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


def test_every_parameter_and_buffer_is_hashed_at_the_first_step_and_then_in_turn(
    packets: Packets, tmp_path: Path
) -> None:
    def last_bias(model: Model) -> None:  # the fourth parameter
        model.layers[1].bias.data += 1e-3

    def frozen(model: Model) -> None:  # the first of the others
        model.frozen.weight.data += 1e-3

    def flag(model: Model) -> None:  # the fourth
        model.flags[2] = False

    assert changed(packets, tmp_path, last_bias) == [[1], [], [], [1], [], []]
    assert changed(packets, tmp_path, frozen) == [[2], [], [], [], [], []]
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


def test_a_buffer_that_is_replaced_is_followed(
    packets: Packets,
    tmp_path: Path,
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
) -> None:
    with presum.attach(model, optimizer=optimizer, run=tmp_path, every=25, quiet=True):
        for step in range(76):
            model.module.seen = torch.full((3,), step // 50)
            one_step(model, optimizer, PARTS[:3])
    # Slices 0, 1, 2, 3 at the steps 0, 25, 50, 75; "seen" is the third after weight and bias.
    assert len(packets.steps) == 4
    assert any(of == 2 for _, of in packets.steps[2].states)


def test_the_final_note_holds_all_parameters_and_the_clock(
    packets: Packets, tmp_path: Path
) -> None:
    plain = run_states(packets, tmp_path, 3, lambda _: None)
    assert packets.clock == 3 and packets.final is not None
    assert packets.final.states == {k: v for k, v in plain[0].items() if k[1] == 1}  # lr is 0


def test_parameters_that_were_changed_after_training_are_not_in_the_final_note(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    packets: Packets,
    tmp_path: Path,
) -> None:
    with presum.attach(model, optimizer=optimizer, run=tmp_path, quiet=True):
        one_step(model, optimizer, PARTS[:3])
        model.module.load_state_dict(Model().state_dict())
    assert packets.final is not None and not packets.final.states
    assert packets.clock == 1


def test_on_a_device_the_same_is_sent(
    packets: Packets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []
    for on_host in (True, False):
        torch.manual_seed(0)
        model = DistributedDataParallel(Model())
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        before = len(packets.steps)
        place = "presum.steps.collector.in_host_memory"
        monkeypatch.setattr(place, lambda device, on_host=on_host: on_host)
        monitor = presum.attach(model, optimizer=optimizer, run=tmp_path, quiet=True)
        for step in range(5):
            torch.manual_seed(step)
            one_step(model, optimizer, PARTS[step : step + 3])
        monitor.close()
        assert packets.final is not None and packets.final.states
        sent.append((packets.steps[before:], packets.final.states, packets.clock))
    for host, device in zip(sent[0][0], sent[1][0], strict=True):
        host.order = device.order
        host.values.pop("rng_python"), device.values.pop("rng_python")
        host.values.pop("rng_numpy"), device.values.pop("rng_numpy")
        assert host == device
    assert sent[0][1:] == sent[1][1:]


# ---- loaders


def dataset(rows: int = 24) -> TensorDataset:
    return TensorDataset(torch.arange(4.0 * rows).reshape(rows, 4))


def loader_of(data: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(data, **{"batch_size": 4, **options})


def train(model: nn.Module, loader: Any, *, limit: int = 100) -> None:
    for number, (x,) in enumerate(loader):
        if number == limit:
            break
        model(x)["loss"].backward()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_s_indices_belong_to_the_step_that_used_them(
    workers: int, model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    sampler = DistributedSampler(dataset(), num_replicas=2, rank=1, seed=3)
    loader = loader_of(
        dataset(), sampler=sampler, num_workers=workers, persistent_workers=workers > 0
    )
    expected: list[list[int]] = []
    with presum.attach(model, run=tmp_path, quiet=True):
        for epoch in range(2):
            sampler.set_epoch(epoch)
            order = list(sampler)
            expected += [order[at : at + 4] for at in range(0, 12, 4)]
            train(model, loader)
    assert [step.indices for step in packets.steps] == expected
    values = [step.values for step in packets.steps]
    assert [v["data_pass"] for v in values] == [0, 0, 0, 1, 1, 1]
    assert [v["data_batch"] for v in values] == [0, 1, 2, 0, 1, 2]
    assert [v["sampler_epoch"] for v in values] == [0, 0, 0, 1, 1, 1]
    assert {v["sampler_seed"] for v in values} == {3}
    assert {v["sampler_rank"] for v in values} == {1}
    assert packets.facts["sampler"].startswith("BatchSampler(DistributedSampler): seed=3")
    assert packets.facts["data"].startswith("TensorDataset: length=24")
    assert len(packets.hellos) == 2 and packets.hellos[1] < packets.steps[0].order


def test_batches_drawn_ahead_and_cut_into_micro_batches_are_matched(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    with presum.attach(model, run=tmp_path, quiet=True):
        ahead = list(loader_of(dataset()))
        for (x,) in ahead[:2]:
            with model.no_sync():
                model(x[:2])["loss"].backward()
            model(x[2:])["loss"].backward()
    assert [step.indices for step in packets.steps] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_an_evaluation_loader_is_not_taken_for_the_training_s(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    other = TensorDataset(-torch.arange(1.0, 97.0).reshape(24, 4))
    evaluation = loader_of(other, batch_size=3)
    with presum.attach(model, run=tmp_path, quiet=True):
        for _ in range(2):
            for (x,) in evaluation:
                with torch.no_grad():
                    model(x)
            train(model, loader_of(dataset()), limit=2)
            next(iter(evaluation))
    assert [step.indices for step in packets.steps] == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2
    assert {step.values["data_length"] for step in packets.steps} == {24}
    assert [step.values["data_batch"] for step in packets.steps] == [0, 1, 0, 1]


def test_samples_that_are_evaluated_on_too_stay_the_training_s(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    """The next batch is drawn ahead of an evaluation on the same rows, as Accelerate does."""
    data = dataset()
    copied = TensorDataset(data.tensors[0].clone())
    with presum.attach(model, run=tmp_path, quiet=True):
        training = iter(loader_of(data))
        (ahead,) = next(training)
        for _ in range(5):
            (x,), ahead = (ahead,), next(training)[0]
            model.eval()
            with torch.no_grad():
                for (y,) in loader_of(copied):
                    model(y)
            model.train()
            model(x)["loss"].backward()
    assert {step.values["data_pass"] for step in packets.steps} == {0}
    assert [step.values["data_batch"] for step in packets.steps] == [0, 1, 2, 3, 4]


def test_a_new_loader_over_the_same_data_is_the_next_pass(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    data = dataset(8)
    with presum.attach(model, run=tmp_path, quiet=True):
        for _ in range(3):
            train(model, loader_of(data))
    assert [step.values["data_pass"] for step in packets.steps] == [0, 0, 1, 1, 2, 2]


def test_a_pass_counts_once_it_is_trained_on(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    data, loader = dataset(8), loader_of(dataset(8))
    loaders = [loader_of(data), loader_of(data)]
    with presum.attach(model, run=tmp_path, quiet=True):
        next(iter(loader))
        for (x,), (y,) in zip(*loaders, strict=True):
            model(x)["loss"].backward()
            model(-y)["loss"].backward()
        next(iter(loader))
        sum(len(x) for (x,) in loader)
        train(model, loader)
    passes = [step.values.get("data_pass") for step in packets.steps]
    assert passes == [0, None, 0, None, 0, 0]


def test_interleaved_loaders_over_the_same_data_have_passes_of_their_own(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    data = dataset(8)
    with presum.attach(model, run=tmp_path, quiet=True):
        ahead, behind = iter(loader_of(data)), iter(loader_of(data, batch_size=2))
        for loader in (ahead, behind, ahead, behind):
            (x,) = next(loader)
            model(x)["loss"].backward()
    assert [step.values["data_pass"] for step in packets.steps] == [0, 1, 0, 1]


def test_equal_rows_keep_their_own_indices(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    data = TensorDataset(torch.ones(8, 4))
    with presum.attach(model, run=tmp_path, quiet=True):
        train(model, loader_of(data))
    assert [sorted(step.indices) for step in packets.steps] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_batch_that_changes_on_the_way_is_the_only_one_handed_out(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    with presum.attach(model, run=tmp_path, quiet=True):
        for (x,) in loader_of(dataset()):
            model(x + 0.5)["loss"].backward()
    assert [step.indices for step in packets.steps] == [
        list(range(first, first + 4)) for first in range(0, 24, 4)
    ]
    assert [step.values["data_batch"] for step in packets.steps] == list(range(6))


def test_batches_that_are_mixed_on_the_way_have_a_sampler_and_no_indices(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    with presum.attach(model, run=tmp_path, quiet=True):
        batches = iter(loader_of(dataset()))
        for (x,), (y,) in zip(batches, batches, strict=True):
            model(x + y)["loss"].backward()
    assert all(not step.indices for step in packets.steps)
    assert all("sampler_class" in step.values for step in packets.steps)
    assert all("data_pass" not in step.values for step in packets.steps)


def test_two_loaders_in_turn_are_told_of_once(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    packets: Packets,
    tmp_path: Path,
) -> None:
    loaders = [DataLoader(TensorDataset(part), 2) for part in (PARTS[:12], 100 + PARTS[:8])]
    with presum.attach(model, optimizer=optimizer, run=tmp_path, quiet=True):
        for _ in range(3):
            for batches in zip(*loaders, strict=False):
                for (batch,) in batches:
                    one_step(model, optimizer, batch)
    assert len(packets.steps) == 24 and packets.steps[-1].indices
    assert len(packets.hellos) == 3  # when attached, and with the first batch of each
    assert packets.facts["data"] == "TensorDataset: length=12; TensorDataset: length=8"


def test_a_sampler_that_changes_at_every_step_is_told_of_a_few_times(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    packets: Packets,
    tmp_path: Path,
) -> None:
    sampler: DistributedSampler[object] = DistributedSampler(PARTS, 1, 0)  # type: ignore[arg-type]
    with presum.attach(model, optimizer=optimizer, run=tmp_path, data=sampler, quiet=True):
        for step in range(12):
            sampler.seed = step
            one_step(model, optimizer, PARTS[:2])
    assert len(packets.hellos) <= 6
    assert packets.facts["sampler"].endswith("and others: each step has their hashes")
    assert [step.values["sampler_seed"] for step in packets.steps] == list(range(12))


def test_with_two_loaders_and_no_match_nothing_is_said_of_samplers(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    with presum.attach(model, run=tmp_path, quiet=True):
        for (x,), _ in zip(loader_of(dataset()), loader_of(dataset()), strict=True):
            model(x + 0.5)["loss"].backward()
    assert all("sampler_class" not in step.values for step in packets.steps)


def test_a_loader_that_is_named_is_followed_in_its_order(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    loader, other = loader_of(dataset()), loader_of(dataset(), batch_size=2)
    with presum.attach(model, run=tmp_path, data=[loader], quiet=True, every=2):
        for (x,), _ in zip(loader, other, strict=False):
            model(x + 0.5)["loss"].backward()
    assert [step.indices for step in packets.steps] == [
        [0, 1, 2, 3],
        [8, 9, 10, 11],
        [16, 17, 18, 19],
    ]
    assert [step.values["data_batch"] for step in packets.steps] == [0, 2, 4]


def test_a_sampler_that_is_named_is_read_at_every_step(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    sampler = DistributedSampler(dataset(), num_replicas=2, rank=0, seed=5)
    with presum.attach(model, run=tmp_path, data=sampler, quiet=True):
        for epoch in range(2):
            sampler.set_epoch(epoch)
            model(PARTS[:3])["loss"].backward()
            model(PARTS[:3])  # ends the step
    assert [step.values["sampler_epoch"] for step in packets.steps] == [0, 1]
    assert packets.steps[0].values["sampler_seed"] == 5


def test_iterable_data_sets_have_samples_but_no_indices(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    class Stream(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[torch.Tensor]:
            return iter(PARTS)

    with presum.attach(model, run=tmp_path, quiet=True):
        for x in loader_of(Stream()):
            model(x)["loss"].backward()
    assert [step.rows for step in packets.steps] == [4] * 6
    assert all(not step.indices for step in packets.steps)
    assert [step.values["data_batch"] for step in packets.steps] == list(range(6))


def test_dictionaries_are_matched_by_the_tensor_that_the_forward_pass_gets(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    data = [{"label": torch.tensor(i % 2), "picture": row} for i, row in enumerate(PARTS)]
    with presum.attach(model, run=tmp_path, quiet=True):
        for batch in loader_of(data):
            model(batch["picture"])["loss"].backward()
    assert [step.indices for step in packets.steps][:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_large_batches_are_known_again_by_their_first_rows(
    packets: Packets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("presum.fingerprints.loaders.ELEMENTS_MAX", 8)
    model = DistributedDataParallel(Model())
    with presum.attach(model, run=tmp_path, quiet=True):
        train(model, loader_of(dataset()))
    assert [step.indices for step in packets.steps][:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert packets.steps[0].samples == rows_of(PARTS[:4])


def test_accelerate_s_loader_is_followed(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    accelerate = pytest.importorskip("accelerate")
    loading = pytest.importorskip("accelerate.data_loader")
    accelerate.PartialState()
    loader = loading.prepare_data_loader(
        loader_of(dataset(), shuffle=True),
        num_processes=2,
        process_index=1,
        use_seedable_sampler=True,
        data_seed=11,
        put_on_device=False,
    )
    with presum.attach(model, run=tmp_path, quiet=True):
        for _ in range(2):
            train(model, loader)
    values = [step.values for step in packets.steps]
    assert [v["sampler_epoch"] for v in values] == [0, 0, 0, 1, 1, 1]
    assert {(v["sampler_seed"], v["sampler_rank"], v["sampler_replicas"]) for v in values} == {
        (11, 1, 2)
    }
    seen = [{i for step in packets.steps[at : at + 3] for i in step.indices} for at in (0, 3)]
    assert all(len(indices) == 12 for indices in seen) and seen[0] != seen[1]
    assert [step.samples for step in packets.steps] == [
        rows_of(PARTS[step.indices]) for step in packets.steps
    ]


def test_torch_s_loader_is_as_it_was_after_the_last_monitor(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    def methods() -> list[Any]:
        base = vars(_BaseDataLoaderIter)
        return [vars(DataLoader)["__iter__"], base["__next__"], base["_next_index"]]

    before = methods()
    other = DistributedDataParallel(Model())
    with presum.attach(model, run=tmp_path, quiet=True):
        with presum.attach(other, run=tmp_path, quiet=True):
            assert all(a is not b for a, b in zip(before, methods(), strict=True))
        assert methods() != before
        iterator = iter(loader_of(dataset()))
        next(iterator)
    assert methods() == before
    assert next(iterator)[0].tolist() == PARTS[4:8].tolist()


def test_loaders_raise_and_yield_what_they_always_did(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    class Broken(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            raise KeyError("user's own")

    def seen(loader: Any) -> list[Any]:
        torch.manual_seed(0)
        return [x.tolist() for epoch in range(2) for (x,) in loader]

    shuffled = loader_of(dataset(), shuffle=True)
    expected = seen(shuffled)
    with presum.attach(model, run=tmp_path, quiet=True):
        assert seen(shuffled) == expected
        with pytest.raises(KeyError, match="user's own"):
            next(iter(loader_of(Broken(PARTS))))
        assert list(loader_of(TensorDataset(PARTS[:0]))) == []
        uneven = loader_of(TensorDataset(PARTS[:6]))
        assert [len(x) for (x,) in uneven] == [4, 2] and len(uneven) == 2


def test_a_failing_look_at_data_does_not_reach_the_loader(
    model: DistributedDataParallel,
    packets: Packets,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_args: object, **_options: object) -> None:
        raise RuntimeError("presum's own")

    monkeypatch.setattr("presum.fingerprints.loaders.hash_tensor", broken)
    with presum.attach(model, run=tmp_path, quiet=True):
        train(model, loader_of(dataset()))
    assert len(packets.steps) == 6
    assert packets.notes == ["no fingerprints of data from here on (RuntimeError: presum's own)"]
    assert all("rng_torch" in step.values for step in packets.steps)


def test_loader_workers_and_forks_do_not_watch(
    model: DistributedDataParallel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[Any] = []
    with presum.attach(model, run=tmp_path, quiet=True), monkeypatch.context() as spied:
        spied.setattr(BatchFinder, "offer", lambda _finder, batch: offered.append(batch))
        child = os.fork()
        if child == 0:
            list(loader_of(dataset()))
            os._exit(len(offered))
        assert os.waitpid(child, 0)[1] == 0
        list(loader_of(dataset()))
        assert len(offered) == 6


# ---- failures


def test_a_family_that_fails_leaves_the_others_and_the_training_alone(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    packets: Packets,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_args: object) -> None:
        raise RuntimeError("presum's own")

    monkeypatch.setattr(RngStates, "__call__", broken)
    monkeypatch.setattr("presum.fingerprints.step.report_on_host", broken)
    with presum.attach(model, optimizer=optimizer, run=tmp_path, quiet=True):
        for _ in range(2):
            one_step(model, optimizer, PARTS[:3])
    assert len(packets.steps) == 2 and packets.clock == 2
    assert len(packets.notes) == 3  # rng, parameters, buffers
    for step in packets.steps:
        assert "rng_torch" not in step.values and not step.states
        assert step.samples and "learning_rate" in step.values


def test_half_a_slice_is_not_sent(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    packets: Packets,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Refuses(Observer):
        def state(self, of: int, index: int, *sizes: int) -> None:
            if (of, index) == (BUFFERS, 1):
                raise RuntimeError("planted")
            super().state(of, index, *sizes)

    monkeypatch.setattr("presum.attaching.Observer", Refuses)
    with presum.attach(model, optimizer=optimizer, run=tmp_path, quiet=True):
        one_step(model, optimizer, PARTS[:3])
        one_step(model, optimizer, PARTS[:3])
    assert packets.steps[0].states == {}
    assert {of for _, of in packets.steps[1].states} == {1}


def test_training_has_the_same_bits_with_and_without(tmp_path: Path) -> None:
    ends = []
    for watched in (False, True):
        torch.manual_seed(1)
        inner = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        model = DistributedDataParallel(inner)
        optimizer = torch.optim.AdamW(model.parameters())
        loader = loader_of(dataset(), shuffle=True)
        monitor = (
            presum.attach(model, optimizer=optimizer, run=tmp_path, quiet=True) if watched else None
        )
        for _ in range(3):
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()
        if monitor is not None:
            monitor.close()
        ends.append([x.clone() for x in model.state_dict().values()] + [torch.get_rng_state()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_a_module_inside_copies_and_loads_where_presum_is_not_installed(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    with presum.attach(model, run=tmp_path / "run", quiet=True):
        copy = deepcopy(model.module)
        hooks = pickle.dumps(model.module._forward_pre_hooks)
    assert b"presum" not in hooks
    copy(PARTS[:3])["loss"].backward()
    code = "import pickle, sys; print([h(1, 2) for h in pickle.load(sys.stdin.buffer).values()])"
    command = [sys.executable, "-I", "-S", "-c", code]
    assert (
        subprocess.run(command, input=hooks, capture_output=True, check=True).stdout == b"[None]\n"
    )


# ---- the arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fingerprints": "rng"}, "fingerprints must be"),
        ({"fingerprints": ["rgn"]}, "fingerprints must be"),
        ({"local_buffers": ["("]}, "local_buffers"),
        ({"data": 3}, "data must be"),
        ({"data": [object()]}, "data must be"),
        ({"preflight": 0}, "preflight must be"),
        ({"preflight": 5}, "give optimizer="),
    ],
)
def test_bad_arguments_are_one_clear_line(
    model: DistributedDataParallel, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        presum.attach(model, run=tmp_path, quiet=True, **arguments)
    assert "\n" not in str(caught.value)
    with presum.attach(model, run=tmp_path, quiet=True):
        model(PARTS[:3])["loss"].backward()


def test_a_wrapped_optimizer_is_looked_into(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    packets: Packets,
    tmp_path: Path,
) -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inside: torch.optim.Optimizer) -> None:
            self.optimizer = inside

    with presum.attach(model, optimizer=Wrapper(optimizer), run=tmp_path, quiet=True):
        one_step(model, optimizer, PARTS[:3])
    assert packets.clock == 1
    assert packets.facts["optimizer"] == "SGD"


def test_the_collector_tells_of_steps_and_lets_the_end_through(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    packets: Packets,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[int, int]] = []

    def stepped(steps: int) -> None:
        told.append((steps, len(packets.steps)))
        if steps == 3:
            raise SystemExit(4)

    monkeypatch.setattr(Recording, "stepped", lambda _recording, steps: stepped(steps))
    ends = pytest.raises(SystemExit, match="4")
    with presum.attach(model, optimizer=optimizer, run=tmp_path, quiet=True), ends:
        for _ in range(9):
            one_step(model, optimizer, PARTS[:3])
    assert told == [(1, 1), (2, 2), (3, 3)]
