# SPDX-License-Identifier: Apache-2.0
"""Hashes of the states of random generators. Reading a state does not draw from its generator."""

from __future__ import annotations

import ctypes
import random
import sys
from array import array
from typing import Any

import torch
from torch import nn

from presum._core import hash_array, hash_bytes
from presum.fingerprints.families import KIND, WORD, LateValues, Values, hash_text

MT19937_BYTES = 4 * 624 + 4  # the key and the position in it


class RngStates:
    """The generators that a training usually draws from. Absent ones are left out."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._numpy: tuple[Any, Any] = (None, None)  # a bit generator and its memory
        self._python: tuple[Any, Any] = (None, None)  # the same for Python's

    def __call__(self) -> Values:
        found = {
            "rng_torch": _torch_state(),
            "rng_python": self._python_state(),
            "rng_numpy": self._numpy_state(),
            "rng_device": _device_state(self._device),
        }
        return [(KIND[name], value) for name, value in found.items() if value is not None]

    def _python_state(self) -> int:
        """Python's generator, read in place: ``getstate`` creates 625 numbers."""
        generator = random._inst
        if generator is not self._python[0]:
            self._python = (generator, memory_of_python(generator))
        memory = self._python[1]
        return hash_bytes(memory) if memory is not None else hash(random.getstate()[1]) & WORD

    def _numpy_state(self) -> int | None:
        """NumPy's global generator, read in place: ``get_state`` costs 100 us."""
        numpy = sys.modules.get("numpy.random")
        if numpy is None:
            return None
        generator = numpy.get_bit_generator()
        if generator is not self._numpy[0]:
            self._numpy = (generator, _memory_of(generator))
        memory = self._numpy[1]
        return hash_bytes(memory) if memory is not None else None


def forward_draws(before: LateValues, device: torch.device) -> Values:
    """Which of torch's generators a forward pass has drawn from, given their states before it: 1
    for the host's, plus 2 for the device's."""
    states = dict(before)
    on_host = _torch_state() != states[KIND["rng_torch"]]
    now = _device_state(device)
    on_device = now is not None and now != states.get(KIND["rng_device"])
    return [(KIND["forward_draws"], on_host + 2 * on_device)]


def _torch_state() -> int:
    return hash_array(torch.get_rng_state())


def calls_dropout(module: nn.Module) -> bool:
    """Whether the forward of one of its modules calls a dropout function. torch's own modules have
    their rates as attributes."""
    own = (part for part in module.modules() if not type(part).__module__.startswith("torch.nn."))
    return any(
        ("drop" in name or "stochastic_depth" in name) and not hasattr(part, name)
        for part in own
        for name in getattr(getattr(type(part).forward, "__code__", None), "co_names", ())
    )


def _memory_of(generator: Any) -> Any:
    """The state of an MT19937 bit generator, if its memory is laid out as expected; else None."""
    if type(generator).__name__ != "MT19937":
        return None
    memory = (ctypes.c_ubyte * MT19937_BYTES).from_address(generator.ctypes.state_address)
    state = generator.state["state"]
    expected = state["key"].tobytes() + int(state["pos"]).to_bytes(4, sys.byteorder)
    return memory if bytes(memory) == expected else None


def memory_of_python(generator: Any) -> Any:
    """The state of Python's generator (position and key after the object header), if its memory is
    laid out as expected; else None."""
    if type(generator) is not random.Random or random.Random.__basicsize__ < MT19937_BYTES:
        return None
    memory = (ctypes.c_ubyte * MT19937_BYTES).from_address(id(generator) + object.__basicsize__)
    *key, position = generator.getstate()[1]
    return memory if bytes(memory) == array("I", [position, *key]).tobytes() else None


def _device_state(device: torch.device) -> int | None:
    """Seed and offset of a CUDA generator, which the host knows without synchronization."""
    if device.type != "cuda" or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    if torch.cuda.is_current_stream_capturing():
        return None
    index = device.index if device.index is not None else torch.cuda.current_device()
    generator = torch.cuda.default_generators[index]
    return hash_text(f"{generator.initial_seed()} {generator.get_offset()}")
