# SPDX-License-Identifier: Apache-2.0
"""A small model, and the packets that one worker sent."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from helpers.loss_model import LossModel
from packet_decoder import decode
from presum._core import hash_rows
from presum.fingerprints.families import KIND

STEP, FINGERPRINTS, STATES, SAMPLES, INDICES, FACTS, NOTE, CLOCK = 1, 6, 8, 9, 10, 17, 19, 20
REDUCED = 0xFFFFFFFF
UNUSED = 2
NAMES = {number: name for name, number in KIND.items()}


class Model(LossModel):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("flags", torch.ones(5, dtype=torch.bool))


@dataclass
class Step:
    number: int
    values: dict[str, int] = field(default_factory=dict)
    states: dict[tuple[int, int], int] = field(default_factory=dict)  # (group, of)
    rows: int = 0
    samples: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    order: int = 0  # among all packets
    reduced: bool = True
    unreduced: int = 0  # steps before it that were not
    unused: bool = False  # its gradient was cleared


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
        takers = {"hello": self._hello, "step": self._step, "note": self._note}
        if decoded.kind in takers:
            takers[decoded.kind](decoded.sections, decoded.header["step"])

    def _hello(self, found: dict[int, bytes], _number: int) -> None:
        self.hellos.append(self.count)
        self.facts = dict(pairs(found[FACTS]))

    def _step(self, found: dict[int, bytes], number: int) -> None:
        unreduced, window, use = struct.unpack_from("<QII", found[STEP], 32)
        step = Step(number, order=self.count, reduced=window == REDUCED, unreduced=unreduced)
        step.unused = use == UNUSED
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
            for kind, value in struct.iter_unpack("<IQ", found.get(FINGERPRINTS, b"")):
                self.final.values[NAMES[kind]] = value
            self.clock = words(found[CLOCK])[0]
        else:
            self.notes.append(found[NOTE][4:].decode())


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


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x)["loss"].backward()
    optimizer.step()


def rows_of(x: torch.Tensor) -> list[int]:
    return hash_rows(x)


PARTS = torch.arange(96.0).reshape(24, 4)
