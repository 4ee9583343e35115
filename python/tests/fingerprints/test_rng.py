# SPDX-License-Identifier: Apache-2.0
"""States of random generators."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from helpers.values import named
from presum.fingerprints.rng import RngStates, memory_of_python

CPU = torch.device("cpu")


def test_reading_the_generators_draws_nothing() -> None:
    before = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
    RngStates(CPU)()
    after = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
    assert torch.equal(before[0], after[0])
    assert np.array_equal(before[1], after[1])
    assert before[2] == after[2]


@pytest.mark.parametrize(
    ("name", "seed", "draw"),
    [
        ("rng_torch", torch.manual_seed, lambda: torch.rand(1)),
        ("rng_numpy", np.random.seed, lambda: np.random.rand()),
        ("rng_python", random.seed, random.random),
    ],
)
def test_a_generator_s_hash_follows_its_state(name: str, seed: Any, draw: Any) -> None:
    states = RngStates(CPU)
    seed(5)
    first = named(states())
    draw()
    drawn = named(states())
    seed(5)
    again = named(RngStates(CPU)())
    assert again[name] == first[name] != drawn[name]
    assert {k for k in first if first[k] != drawn[k]} == {name}


def test_another_numpy_generator_is_left_out() -> None:
    states = RngStates(CPU)
    own = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(1))
        assert "rng_numpy" not in named(states())
    finally:
        np.random.set_bit_generator(own)
    assert "rng_numpy" in named(states())


def test_pythons_generator_is_read_where_it_lies() -> None:
    generator = random.Random(3)
    memory = memory_of_python(generator)
    assert memory is not None, "on CPython"
    before = bytes(memory)
    generator.random()
    assert bytes(memory) != before
    assert memory_of_python(random.SystemRandom()) is None
