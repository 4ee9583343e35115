# SPDX-License-Identifier: Apache-2.0
"""What is known of samplers and datasets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from helpers.unread import Sized, Stream
from helpers.values import named
from presum.fingerprints.families import KIND
from presum.fingerprints.samplers import describe_sampler
from presum.parallel.sampler import MicroBatchSampler


def sampler_of(source: Any) -> tuple[dict[str, int], str]:
    found = describe_sampler(source)
    assert found is not None
    return {k.removeprefix("sampler_"): v for k, v in named(found.values).items()}, found.text


def test_a_distributed_sampler_tells_everything() -> None:
    sampler = DistributedSampler(Sized(10), num_replicas=4, rank=3, seed=7, drop_last=True)
    sampler.set_epoch(5)
    found, text = sampler_of(DataLoader(Sized(10), sampler=sampler, batch_size=2))
    class_ = found.pop("class")
    assert found == {
        "seed": 7,
        "epoch": 5,
        "rank": 3,
        "replicas": 4,
        "length": 2,
        "shuffle": 1,
        "drop_last": 0b10,  # the batch sampler's is 0
        "sets_epoch": 1,
    }
    assert text.startswith("BatchSampler(DistributedSampler): seed=7")
    alone, _ = sampler_of(sampler)
    assert alone["seed"] == 7 and alone["class"] != class_


def test_presum_s_own_sampler_says_how_it_shares_the_data() -> None:
    data = range(64)
    sampler = MicroBatchSampler(data, size=2, micro_batches=4, workers=2, rank=1, shuffle=True)
    found = describe_sampler(DataLoader(data, batch_sampler=sampler))  # type: ignore[arg-type]
    assert found is not None
    values = dict(found.values)
    assert values[KIND["sampler_replicas"]] == 2 and values[KIND["sampler_rank"]] == 1
    assert values[KIND["sampler_seed"]] == 0 and values[KIND["sampler_epoch"]] == 0
    assert values[KIND["sampler_sets_epoch"]] == values[KIND["sampler_shuffle"]] == 1


def test_seeds_of_samplers_that_do_not_share_the_data_are_not_compared() -> None:
    generator = torch.Generator().manual_seed(3)
    found, text = sampler_of(DataLoader(Sized(10), shuffle=True, generator=generator))
    assert "seed" not in found and "replicas" not in found
    assert found["shuffle"] == 1 and "seed=3" in text
    found, _ = sampler_of(DataLoader(Sized(10)))
    assert found["shuffle"] == 0 and found["sets_epoch"] == 0
    drawn = RandomSampler(Sized(10), replacement=True)
    assert "replacement=True" in sampler_of(drawn)[1]


def test_nothing_of_a_user_s_sampler_is_called() -> None:
    class Own(Sampler[int]):
        num_samples = 99  # of the class: only what the object keeps is read

        def __init__(self) -> None:
            self.total_size = 12

        def __len__(self) -> int:
            raise AssertionError("called")

        def __iter__(self) -> Iterator[int]:
            raise AssertionError("called")

    found, _ = sampler_of(Own())
    assert found["length"] == 12


def test_accelerate_s_wrappers_are_looked_through() -> None:
    accelerate = pytest.importorskip("accelerate.data_loader")
    random_sampler = accelerate.SeedableRandomSampler(Sized(12), data_seed=9)
    random_sampler.set_epoch(2)
    shard = accelerate.BatchSamplerShard(
        BatchSampler(random_sampler, 3, False), num_processes=2, process_index=1
    )
    loader = accelerate.DataLoaderShard(Sized(12), batch_sampler=shard)
    found, text = sampler_of(loader)
    known = {k: found[k] for k in ("seed", "epoch", "rank", "replicas", "shuffle")}
    assert known == {
        "seed": 9,
        "epoch": 2,
        "rank": 1,
        "replicas": 2,
        "shuffle": 1,
    }
    assert text.startswith("BatchSamplerShard(BatchSampler(SeedableRandomSampler))")


class Wrapped(DistributedSampler):  # type: ignore[type-arg]
    """As Lightning's DistributedSamplerWrapper."""

    def __init__(self, sampler: Any, **options: Any) -> None:
        super().__init__(Sized(len(sampler)), **options)
        self._sampler = sampler


def test_lightning_s_wrapper_is_looked_through() -> None:
    sampler = Wrapped(SequentialSampler(Sized(9)), num_replicas=3, rank=1, shuffle=False, seed=4)
    found, text = sampler_of(DataLoader(Sized(9), sampler=sampler))
    assert (found["rank"], found["replicas"], found["seed"], found["shuffle"]) == (1, 3, 4, 0)
    assert "Wrapped(SequentialSampler)" in text


def test_iterable_data_sets_have_no_sampler_but_may_divide_themselves() -> None:
    found, _ = sampler_of(DataLoader(Stream()))
    assert "rank" not in found and "length" not in found
    stream = Stream()
    stream.process_index, stream.num_processes = 1, 2  # as Accelerate's IterableDatasetShard
    found, _ = sampler_of(DataLoader(stream))
    assert (found["rank"], found["replicas"]) == (1, 2)


def test_samplers_that_refuse_to_answer_are_no_failure() -> None:
    class Odd:
        seed = "text"

        def __len__(self) -> int:
            raise RuntimeError("no length")

        def __iter__(self) -> Any:
            raise AssertionError("the sampler was called")

    found, _ = sampler_of(DataLoader(Sized(3), sampler=Odd()))
    assert "length" not in found and "seed" not in found
    loop = Odd()
    loop.sampler = loop  # type: ignore[attr-defined]
    assert describe_sampler(loop) is not None


def test_shards_that_are_drawn_with_replacement_say_so() -> None:
    """As WebDataset keeps them: a list of stages, the first of which draws."""

    class ResampledShards(IterableDataset[int]):
        def __init__(self) -> None:
            self.seed = 3

        def __iter__(self) -> Iterator[int]:
            return iter([])

    class Stages(ResampledShards):
        def __init__(self) -> None:
            self.pipeline = [ResampledShards(), len]

    _, text = sampler_of(DataLoader(Stages()))
    assert text.startswith("Stages(ResampledShards)")


def test_torch_samplers_say_their_length() -> None:
    found, _ = sampler_of(DataLoader(Sized(10), shuffle=True))
    assert found["length"] == 10


@pytest.mark.parametrize("draws", [False, True])
def test_a_length_is_asked_for_where_it_is_computed_from_what_is_kept(draws: bool) -> None:
    class Own(Sampler[int]):
        def __init__(self) -> None:
            self.share = [*range(9)]

        def __iter__(self) -> Iterator[int]:
            return iter(self.share)

    class Half(Own):
        def __len__(self) -> int:
            return len(self.share) // 2

    class Drawing(Own):
        def __len__(self) -> int:
            return len([*iter(self)])

    found, _ = sampler_of(DataLoader(Sized(9), sampler=Drawing() if draws else Half()))
    assert found.get("length") == (None if draws else 4)
