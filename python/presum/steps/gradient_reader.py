# SPDX-License-Identifier: Apache-2.0
"""Reads gradients from any kind of memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from presum._core import read_plain
from presum.devices.blocks import DTYPES, dense, memory_of
from presum.devices.gradient_pass import DeviceStep
from presum.devices.readable import readable
from presum.fingerprints.states import shard_of
from presum.steps.setup import RecorderSetup


@dataclass(frozen=True)
class GradientPart:
    """The part of a gradient that a rank of a sharded model contributes, or gets."""

    elements: torch.Tensor
    first: int  # its first element within the parameter
    of: torch.Tensor  # the sharded parameter
    reduced: bool
    added: bool = False  # to the result of earlier reductions
    scale: float = 1.0  # turns the reduced value into the mean


class GradientReader:
    """Reads one model's gradients: passes them to the observer, or queues them on the device."""

    def __init__(self, setup: RecorderSetup) -> None:
        self._setup = setup
        self._observer = setup.observer
        self._device_step: DeviceStep | None = None  # if gradients are not in host memory
        self._repeated: set[int] = set()  # parameters that a step has reported twice
        self._told: set[int] = set()  # parameters whose gradients cannot be read

    def begin(self) -> None:
        """The gradients of a step begin."""
        if not self._setup.on_host:
            self._device_step = self._new_step()

    def take_device_step(self) -> DeviceStep:
        """The queued reads; empty if nothing was queued."""
        step, self._device_step = self._device_step, None
        return step or self._new_step()

    def _new_step(self) -> DeviceStep:
        return DeviceStep(self._setup.device, self._setup.sketch_size, apart=self._repeated)

    def forget(self) -> None:
        """Drop the queued reads."""
        self._device_step = None

    def read(self, index: int, grad: torch.Tensor, *, reduced: bool) -> None:
        """Read one gradient, this rank's own or the reduced one. In host memory it is read now; on
        a device at the latest at the next flush()."""
        if self._device_step is None and read_plain(self._observer, index, grad, reduced):
            return
        grad = grad.detach()
        plain = readable(grad)
        dtype = DTYPES.get(grad.dtype)
        if dtype is None or plain is None:
            self._skip(index, grad, reduced=reduced)
            return
        grad = dense(plain)
        if self._device_step is not None:
            if not reduced:
                self._observer.mark_seen(index)
            seed = self._observer.seed(index)
            self._device_step.observe(index, grad, seed=seed, reduced=reduced)
            return
        read = self._observer.reduced_gradient if reduced else self._observer.gradient
        read(index, *memory_of(grad), dtype)

    def flush(self) -> None:
        """Read all queued gradients now: they may change afterwards."""
        if self._device_step is not None:
            self._device_step.flush()

    @property
    def queued_bytes(self) -> int:
        """Bytes of the gradients that the next flush() reads; they are kept until then."""
        return 0 if self._device_step is None else self._device_step.queued_bytes

    def read_part(self, index: int, part: GradientPart) -> None:
        """Read one rank's part of a gradient in host memory. If it cannot be read, its layer's
        result is unknown."""
        plain, shard = readable(part.elements), shard_of(part.of)
        dtype = DTYPES.get(part.elements.dtype)
        if plain is None or dtype is None or shard is None or not plain.is_cpu:
            self._observer.layer_unknown(index)
            return
        plain = plain.contiguous()
        self._observer.gradient_part(
            index,
            *memory_of(plain),
            dtype,
            first=part.first,
            shard=shard,
            scale=part.scale,
            reduced=part.reduced,
            added=part.added,
        )

    def _skip(self, index: int, grad: torch.Tensor, *, reduced: bool) -> None:
        if not reduced:
            self._observer.mark_seen(index)
            self._observer.skip(1)
        if index not in self._told:
            self._told.add(index)
            name = self._setup.names[index]
            self._setup.note(f"the gradient of {name} is {_kind_of(grad)}: it is not read")


def _kind_of(grad: torch.Tensor) -> str:
    """Why it cannot be read."""
    if grad.dtype not in DTYPES:
        return str(grad.dtype).removeprefix("torch.")
    return "sparse" if grad.is_sparse else f"a {type(grad).__name__} without memory of its own"
