# SPDX-License-Identifier: Apache-2.0
"""What a recorder is given."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from presum._core import Observer
from presum.fingerprints import StepFingerprints
from presum.fingerprints.snapshots import Snapshots
from presum.transport.outbox import LatePacket


@dataclass(frozen=True)
class RecorderSetup:
    """What every recorder needs.

    ``send`` takes each step's packet, or a function that makes it (run on a background thread, for
    gradients that are still on their device). ``failed`` takes the first exception of our own
    code; after it nothing more is recorded.
    ``hello`` is called when there are new facts, ``note`` takes a line for the run log. ``stepped``
    is called after each step of the optimizer, its packet sent, with the number of steps so far;
    what it raises as SystemExit ends the training.
    """

    observer: Observer
    parameters: Sequence[weakref.ref[nn.Parameter]]
    names: Sequence[str]
    device: torch.device  # of the gradients
    on_host: bool  # it is host memory
    replicas: int
    optimizers: Sequence[weakref.ref[Optimizer]]
    scaler: torch.amp.GradScaler | None
    every: int
    verify_every: int | None  # recorded steps of which a micro-batch is computed once more
    sketch_size: int
    fingerprints: StepFingerprints
    snapshots: Snapshots | None
    send: Callable[[bytes | LatePacket], None]
    failed: Callable[[Exception], None]
    hello: Callable[[], None]
    note: Callable[[str], None]
    stepped: Callable[[int], None]

    def alive(self) -> Iterator[tuple[int, nn.Parameter]]:
        """Place and parameter."""
        for place, reference in enumerate(self.parameters):
            parameter = reference()
            if parameter is not None:
                yield place, parameter
