# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import leftovers
from helpers.loss_model import LossModel
from helpers.packets import Packets
from helpers.training import Training
from presum.transport.outbox import LatePacket
from presum.transport.session import Session

os.environ["XDG_CONFIG_HOME"] = f"{tempfile.gettempdir()}/presum-tests"  # not the user's salt
torch.set_num_threads(1)  # several processes of tests run at once


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left() -> Iterator[None]:
    with leftovers.killed_at_the_end():
        yield


@pytest.fixture(scope="module", autouse=True)
def nothing_left() -> None:
    """Frees what the modules before left: a forked loader worker that were the first to free a
    reducer, and with it a group that is destroyed, would wait for ever for Gloo's threads."""
    gc.collect()


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """This process is a group of its own."""
    store = tmp_path_factory.mktemp("store") / "file"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def model() -> DistributedDataParallel:
    """One that returns its loss."""
    torch.manual_seed(0)
    return DistributedDataParallel(LossModel())


@pytest.fixture
def optimizer(model: DistributedDataParallel) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)


@pytest.fixture
def packets(monkeypatch: pytest.MonkeyPatch) -> Packets:
    """What the worker sends."""
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
def training(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    packets: Packets,
    tmp_path: Path,
) -> Training:
    return Training(model, optimizer, packets, tmp_path)
