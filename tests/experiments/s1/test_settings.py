# SPDX-License-Identifier: Apache-2.0
"""Seeds and orders of the S1 experiment."""

import random
from itertools import chain

import numpy as np
import pytest

from experiments.s1.settings import (
    SEED_STRIDE,
    make_sampler,
    rank_seed,
    seed_everything,
)

torch = pytest.importorskip("torch")


def _seeds(setting: str) -> list[int]:
    return [rank_seed(setting=setting, seed=7, rank=rank) for rank in range(4)]


def _orders(mode: str, setting: str, *, epoch: int = 0) -> list[list[int]]:
    orders = []
    for rank, seed in enumerate(_seeds(setting)):
        sampler = make_sampler(range(40), mode=mode, seed=seed, rank=rank, workers=4)
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    return orders


def test_settings_give_seeds() -> None:
    assert _seeds("S1-1") == [7, 7, 7, 7]
    assert _seeds("S1-2") == [7 + SEED_STRIDE, 7, 7, 7]
    assert len(set(_seeds("S1-3"))) == 4


def test_strict_shards_partition_the_data() -> None:
    shards = _orders("sharded", "S1-1")
    assert sorted(chain(*shards)) == list(range(40))


def test_independent_shards_overlap_and_skip() -> None:
    assert len(set(chain(*_orders("sharded", "S1-3")))) < 40


def test_replicated_workers_read_everything() -> None:
    for setting in ("S1-1", "S1-2", "S1-3"):
        assert all(sorted(order) == list(range(40)) for order in _orders("replicated", setting))


def test_replicated_orders_follow_the_seeds() -> None:
    strict = _orders("replicated", "S1-1")
    one = _orders("replicated", "S1-2")
    assert all(order == strict[0] for order in strict)
    assert one[0] != one[1] == one[2] == one[3]
    assert len(set(map(tuple, _orders("replicated", "S1-3")))) == 4


def test_no_worker_repeats_another_workers_order_an_epoch_later() -> None:
    epochs = [_orders("replicated", "S1-3", epoch=epoch) for epoch in range(3)]
    assert len({tuple(order) for orders in epochs for order in orders}) == 12


def test_seed_reaches_all_generators() -> None:
    draws = []
    for _ in range(2):
        seed_everything(3)
        draws.append((torch.rand(1).item(), np.random.rand(), random.random()))
    assert draws[0] == draws[1]
