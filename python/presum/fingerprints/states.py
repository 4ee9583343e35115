# SPDX-License-Identifier: Apache-2.0
"""Hashes of parameters and buffers as they are before a forward pass."""

from __future__ import annotations

import ctypes
import re
import weakref
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn

from presum._core import Observer
from presum.devices.gradient_pass import dense, fingerprint
from presum.devices.readable import is_distributed, readable
from presum.fingerprints.families import WORD

SLICES = 25
PARAMETERS, BUFFERS = 1, 2
SENTINELS = 4
SENTINEL_VALUES = 64


class NamedState(NamedTuple):
    """A tensor by where its module keeps it: buffers are often replaced."""

    name: str
    owner: weakref.ref[nn.Module]
    where: str  # the owner's attribute
    key: str

    def tensor(self) -> torch.Tensor | None:
        owner = self.owner()
        found = None if owner is None else getattr(owner, self.where).get(self.key)
        return found if isinstance(found, torch.Tensor) else None


def named_states(
    module: nn.Module,
    watched: Collection[str],
    ignored: Collection[str],
    local: Sequence[str],
    families: Collection[str],
) -> list[NamedState]:
    """What is hashed besides the watched parameters: frozen ones and buffers, as far as asked for.

    Left out is what the wrapper was told to ignore, and buffers whose name matches a pattern of
    ``local``.
    """
    found: list[NamedState] = []
    if "parameters" in families:
        own = _held(module, "_parameters", dict(module.named_parameters()))
        found += [held for held in own if held.name not in watched]
    if "buffers" in families:
        own = _held(module, "_buffers", dict(module.named_buffers()))
        found += [h for h in own if not any(re.search(pattern, h.name) for pattern in local)]
    return [held for held in found if held.name not in ignored]


def _held(module: nn.Module, where: str, wanted: dict[str, torch.Tensor]) -> list[NamedState]:
    found = []
    for prefix, part in module.named_modules():
        for key in getattr(part, where):
            name = f"{prefix}.{key}" if prefix else key
            if name in wanted:
                found.append(NamedState(name, weakref.ref(part), where, key))
    return found


class StateSchedule:
    """Which tensors are hashed when: all at the first step, then one slice after the other."""

    def __init__(
        self,
        parameters: Sequence[weakref.ref[nn.Parameter]],
        buffers: Sequence[NamedState],
        *,
        every: int,
    ) -> None:
        self._parameters = parameters
        self._buffers = buffers
        self._every = every
        spacing = max(1, len(parameters) // SENTINELS)
        self._sentinels = parameters[::spacing]
        self._as_stepped: list[tuple[int, int]] | None = None
        self._values: list[torch.Tensor | bytes | None] = []

    def due(self, of: int, step: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Index and elements of each tensor that is hashed at a step."""
        number = step // self._every
        first, stride = (0, 1) if step == 0 else (number % SLICES, SLICES)
        count = len(self._parameters) if of == PARAMETERS else len(self._buffers)
        for index in range(first, count, stride):
            held = (self._parameters[index] if of == PARAMETERS else self._buffers[index].tensor)()
            found = elements(held) if held is not None else None
            if found is not None:
                yield index, found

    def stepped(self) -> None:
        """Remember the parameters as the optimiser has left them."""
        self._as_stepped = self._versions()
        self._values = [_first_values(parameter) for parameter in self._alive()]

    def as_stepped(self) -> bool:
        """Whether nobody has changed the parameters since the optimiser's last step. Waits for
        their device: writes through ``.data`` leave no trace but the values."""
        if self._as_stepped is None or self._as_stepped != self._versions():
            return False
        now = [_first_values(parameter) for parameter in self._alive()]
        return len(now) == len(self._values) and all(map(_same, self._values, now))

    def _versions(self) -> list[tuple[int, int]]:
        return [(p.data_ptr(), p._version) for p in self._alive()]

    def _alive(self) -> Iterator[nn.Parameter]:
        return (p for held in self._sentinels if (p := held()) is not None)


def _first_values(tensor: torch.Tensor) -> torch.Tensor | bytes | None:
    """A copy of some, where they can be read without a collective; of host memory as bytes, which
    takes a tenth of the time."""
    plain = None if is_distributed(tensor) else readable(tensor)
    if plain is None:
        return None
    if plain.is_cpu and plain.is_contiguous():
        count = min(plain.numel(), SENTINEL_VALUES) * plain.element_size()
        return ctypes.string_at(plain.data_ptr(), count)
    return dense(plain.detach()).reshape(-1)[:SENTINEL_VALUES].clone()


def _same(a: torch.Tensor | bytes | None, b: torch.Tensor | bytes | None) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return torch.equal(a, b)
    return a == b if isinstance(a, bytes) or isinstance(b, bytes) else a is b


def elements(tensor: torch.Tensor) -> torch.Tensor | None:
    """Its values in one block of elements of 2, 4 or 8 bytes; None where there is no such block,
    and for a DTensor: which workers should hold the same part is not known."""
    plain = None if is_distributed(tensor) else readable(tensor)
    if plain is None:
        return None
    block = dense(plain.detach())
    if block.is_complex():
        block = torch.view_as_real(block)
    if block.element_size() == 1:
        return block.view(torch.uint8).to(torch.int16)
    return block


def report_on_host(observer: Observer, of: int, due: Iterator[tuple[int, torch.Tensor]]) -> None:
    for index, block in due:
        if not block.is_cpu:
            raise RuntimeError(f"a tensor moved to {block.device} after attach")
        observer.state(of, index, block.data_ptr(), block.numel(), block.element_size())


def queue_on_device(
    of: int, due: Iterator[tuple[int, torch.Tensor]], device: torch.device
) -> list[tuple[int, int, torch.Tensor | int]]:
    """Queues the fingerprints where the tensors are: of, index, value. A value that is in host
    memory beside a device is a number at once: to send it there and back would wait."""
    queued: list[tuple[int, int, torch.Tensor | int]] = []
    for index, block in due:
        value = fingerprint(block)
        known = value.is_cpu and device.type != "cpu"
        queued.append((of, index, int(value) & WORD if known else value))
    return queued
