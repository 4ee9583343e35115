# SPDX-License-Identifier: Apache-2.0
"""The parameters of a recorder."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from presum._core import Observer
from presum.devices.readable import own_part
from presum.fingerprints import StepFingerprints
from presum.fingerprints.snapshots import Snapshots
from presum.transport.outbox import LatePacket


@dataclass(frozen=True)
class RecorderSetup:
    """Everything that a recorder needs.

    ``send`` takes each step's packet, or a function that makes it (called on a background thread,
    for gradients that are still on their device). ``failed`` takes the first exception of presum's
    own code, after which nothing more is recorded. ``hello`` is called when there are new facts.
    ``note`` takes a line for the run log. ``stepped`` is called after each optimizer step, when its
    packet has been sent, with the number of steps so far; if it raises SystemExit, training ends.
    """

    observer: Observer
    parameters: Sequence[weakref.ref[nn.Parameter]]
    names: Sequence[str]
    device: torch.device  # of the gradients
    on_host: bool  # the device is host memory
    replicas: int
    optimizers: Sequence[weakref.ref[Optimizer]]
    scaler: torch.amp.GradScaler | None
    every: int
    verify_every: int | None  # recorded steps per recomputed micro-batch
    sketch_size: int
    fingerprints: StepFingerprints
    snapshots: Snapshots | None
    send: Callable[[bytes | LatePacket], None]
    failed: Callable[[Exception], None]
    hello: Callable[[], None]
    note: Callable[[str], None]
    stepped: Callable[[int], None]

    def written(self) -> tuple[int, int] | None:
        """Which gradient the first parameter that has one holds, and how often it was written."""
        for reference in self.parameters:
            parameter = reference()
            grad = None if parameter is None else parameter.grad
            if grad is not None:
                return id(grad), grad._version + own_part(grad)._version
        return None

    def alive(self) -> Iterator[tuple[int, nn.Parameter]]:
        """The place and the parameter of each that is alive."""
        for place, reference in enumerate(self.parameters):
            parameter = reference()
            if parameter is not None:
                yield place, parameter
