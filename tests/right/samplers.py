# SPDX-License-Identifier: Apache-2.0
"""Other samplers and loaders: without end, that repeat, that choose, several, that start anew."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from right.data import Chosen, TrainingSampler
from right.inputs import programs, seeded
from right.run import CLASSES, INPUTS, ROWS, STEPS, Batch, Program, Run, first, loss_of, train

# ---- D: samplers without end


class RepeatFactors(TrainingSampler):
    """As detectron2's for rare classes: a pass holds a sample as often as its factor says, rounded
    by chance."""

    def __init__(self, factors: torch.Tensor, rank: int, world: int) -> None:
        super().__init__(len(factors), rank, world)
        self.factors = factors

    def _all(self) -> Iterator[int]:
        draws = seeded(self._seed)
        while True:
            extra = torch.rand(len(self.factors), generator=draws) < self.factors.frac()
            indices = torch.arange(self._size).repeat_interleave(self.factors.int() + extra.int())
            yield from indices[torch.randperm(len(indices), generator=draws)].tolist()


def rare_classes_repeated(run: Run) -> None:
    """A rare class comes two or three times in a pass that has no end."""
    model, optimizer = run.trained()
    factors = 1 + run.labels * 0.5
    train(model, optimizer, run.batches(RepeatFactors(factors, run.rank, run.world)))


class Buckets(Sampler[list[int]]):
    """As Megatron's, in one iterator without end: each rank shuffles a bucket of its own."""

    def __init__(self, size: int, data_parallel_rank: int, data_parallel_size: int) -> None:
        self.bucket = size // data_parallel_size
        self.start = data_parallel_rank * self.bucket
        self.data_parallel_size = data_parallel_size
        self.consumed_samples = 0

    def __iter__(self) -> Iterator[list[int]]:
        for epoch in itertools.count():
            order = torch.randperm(self.bucket, generator=seeded(epoch)) + self.start
            for batch in order.split(8):
                self.consumed_samples += len(batch) * self.data_parallel_size
                yield batch.tolist()


def buckets_of_ranks(run: Run) -> None:
    model, optimizer = run.trained()
    loader = DataLoader(run.data, batch_sampler=Buckets(ROWS, run.rank, run.world))
    train(model, optimizer, first(STEPS, loader))


class Shards(IterableDataset[Any]):
    """As WebDataset's `resampled=True`: shards are drawn again and again, and shuffled."""

    def __init__(self, data: TensorDataset, seed: int) -> None:
        self.data, self.draws = data, random.Random(seed)

    def __iter__(self) -> Iterator[Any]:
        while True:
            start = 32 * self.draws.randrange(len(self.data) // 32)
            yield from (self.data[at] for at in self.draws.sample(range(start, start + 32), 32))


def shards_drawn_again(run: Run) -> None:
    """Each rank draws shards with replacement; two ranks may read one at once."""
    model, optimizer = run.trained()
    train(model, optimizer, first(STEPS, DataLoader(Shards(run.data, run.rank), 8)))


def endless_samplers_of_own_seeds(run: Run) -> None:
    """The mistake: every rank takes its part of another order."""
    model, optimizer = run.trained()
    sampler = TrainingSampler(ROWS, run.rank, run.world, seed=run.rank)
    train(model, optimizer, run.batches(sampler))


def one_bucket(run: Run) -> None:
    """The mistake: all ranks take the first bucket."""
    model, optimizer = run.trained()
    loader = DataLoader(run.data, batch_sampler=Buckets(ROWS, 0, run.world))
    train(model, optimizer, first(STEPS, loader))


def shards_of_one_seed(run: Run) -> None:
    """The mistake: all ranks draw the same shards."""
    model, optimizer = run.trained()
    train(model, optimizer, first(STEPS, DataLoader(Shards(run.data, 0), 8)))


# ---- E: repetition by design


class Augmented(Dataset[Any]):
    """Every look at a sample is another."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        x, y = self.data[index]
        return x + 0.1 * torch.randn_like(x), y


class Threefold(Sampler[int]):
    """As DeiT's for repeated augmentation: three copies of a sample go to ranks in turn."""

    def __init__(self, dataset: Any, num_replicas: int, rank: int) -> None:
        self.dataset, self.num_replicas, self.rank, self.epoch = dataset, num_replicas, rank, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.dataset) // self.num_replicas

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(len(self.dataset), generator=seeded(self.epoch))
        copies = order.repeat_interleave(3)[self.rank :: self.num_replicas]
        return iter(copies[: len(self)].tolist())


class Wrapped(DistributedSampler[int]):
    """As Catalyst's and Lightning's: a sampler's draws, which all ranks make alike, divided."""

    def __init__(self, sampler: Any, world: int, rank: int) -> None:
        super().__init__(sampler, world, rank, shuffle=False)
        self.sampler = sampler

    def __iter__(self) -> Iterator[int]:
        self.sampler.generator.manual_seed(self.epoch)
        drawn = list(self.sampler)
        return iter([drawn[at] for at in super().__iter__()])


def repeated_augmentation(run: Run) -> None:
    """Two ranks share the copies of a sample."""
    model, optimizer = run.trained()
    data = Augmented(run.data)
    train(model, optimizer, run.batches(Threefold(data, run.world, run.rank), data=data))


def weighted_in_a_wrapper(run: Run) -> None:
    """Draws with replacement, dealt to ranks: both may get a sample."""
    model, optimizer = run.trained()
    weighted = WeightedRandomSampler((run.labels + 1).tolist(), ROWS, generator=seeded(0))
    train(model, optimizer, run.batches(Wrapped(weighted, run.world, run.rank)))


def identities_by_instances(run: Run) -> None:
    """Re-identification: four of 64 identities with two of their eight pictures each."""
    model, optimizer = run.trained()
    draws = random.Random(run.rank)

    def batch() -> list[int]:
        people = draws.sample(range(64), 4)
        return [8 * one + at for one in people for at in draws.sample(range(8), 2)]

    batches = (batch() for _ in range(STEPS))
    train(model, optimizer, DataLoader(run.data, batch_sampler=batches))


def rare_samples_three_times(run: Run) -> None:
    """Upsampled: the dataset itself holds a class three times."""
    model, optimizer = run.trained()
    rare = Subset(run.data, (run.labels == 3).nonzero()[:, 0].tolist())
    train(model, optimizer, run.batches(data=ConcatDataset([run.data, rare, rare])))


def balance_of_one_seed(run: Run) -> None:
    """The mistake: balanced batches are drawn alike on all ranks."""
    model, optimizer = run.trained()
    of = [(run.labels == c).nonzero()[:, 0].tolist() for c in range(CLASSES)]
    draws = random.Random(0)
    batches = ([draws.choice(c) for c in of for _ in range(2)] for _ in range(STEPS))
    train(model, optimizer, DataLoader(run.data, batch_sampler=batches))


def copies_in_one_order(run: Run) -> None:
    """The mistake: no `set_epoch` for repeated augmentation."""
    model, optimizer = run.trained()
    data = Augmented(run.data)
    loader = DataLoader(data, 8, sampler=Threefold(data, run.world, run.rank))
    for _ in range(4):
        train(model, optimizer, loader)


# ---- G: a share by the program's choice


def first_batches_of_each_pass(run: Run) -> None:
    """`limit_train_batches`: every pass ends after ten of 32 batches."""
    model, optimizer = run.trained()
    sampler = run.sampler()
    for epoch in range(12):
        sampler.set_epoch(epoch)
        train(model, optimizer, first(10, DataLoader(run.data, 8, sampler=sampler)))


def pool_that_grows(run: Run) -> None:
    """Active learning: each round has a new, larger part of the data."""
    model, optimizer = run.trained()
    order = torch.randperm(ROWS, generator=seeded(2)).tolist()
    for size in (96, 160, 224, 288):
        pool = Subset(run.data, order[:size])
        train(model, optimizer, run.batches(data=pool, steps=3 * size // 16))


def hard_half_of_a_batch(run: Run) -> None:
    """Selective backpropagation: all losses are computed, the larger half is trained on."""
    model, optimizer = run.trained()
    for x, y in run.batches():
        with torch.no_grad():
            losses = nn.functional.cross_entropy(model(x), y, reduction="none")
        hard = losses.topk(len(x) // 2).indices
        train(model, optimizer, [(x[hard], y[hard])])


def first_half_of_a_batch(run: Run) -> None:
    """The mistake: of every batch the model is given one half."""
    model, optimizer = run.trained()
    train(model, optimizer, ((x[:4], y[:4]) for x, y in run.batches()))


class OwnHalf(Sampler[int]):
    """The samples of a rank's share whose scores are highest."""

    def __init__(self, share: list[int]) -> None:
        self.share, self.scores = share, torch.rand(len(share))

    def __len__(self) -> int:
        return len(self.share) // 2

    def __iter__(self) -> Iterator[int]:
        best = self.scores.topk(len(self)).indices
        self.scores = 0.5 * self.scores + torch.rand(len(self.share))
        return iter([self.share[at] for at in best[torch.randperm(len(best))]])


def best_half_of_own_share(run: Run) -> None:
    """A coreset that each rank chooses from its part of the data, anew in each pass."""
    model, optimizer = run.trained()
    train(model, optimizer, run.batches(OwnHalf([*range(run.rank, ROWS, run.world)])))


def own_part_divided_again(run: Run) -> None:
    """The mistake: a rank's own part of the data is given to a DistributedSampler."""
    model, optimizer = run.trained()
    own = Subset(run.data, [*range(run.rank, ROWS, run.world)])
    train(model, optimizer, run.batches(data=own))


class Broken(Chosen):
    """Deals half of what its length says."""

    def __iter__(self) -> Iterator[int]:
        return itertools.islice(super().__iter__(), len(self) // 2)


def less_than_the_sampler_says(run: Run) -> None:
    """The mistake: the sampler loses half of each rank's share, the same in all passes."""
    model, optimizer = run.trained()
    sampler = Broken(1.0, run.rank, run.world)
    loader = DataLoader(run.data, 8, sampler=sampler)
    for _ in range(6):
        train(model, optimizer, loader)


# ---- H: several loaders on a rank


def tasks(run: Run) -> list[TensorDataset]:
    parts = zip(run.inputs.split(128), run.labels.split(128), strict=True)
    return [TensorDataset(x + at, y) for at, (x, y) in enumerate(parts)]


def memory_beside_new_data(run: Run) -> None:
    """Continual learning: half of each batch comes again from what is kept."""
    model, optimizer = run.trained()
    new, kept = run.batches(batch_size=4), TensorDataset(run.inputs[:64] + 9, run.labels[:64])
    memory = run.batches(batch_size=4, data=kept)

    def both() -> Iterator[Batch]:
        for (x, y), (u, v) in zip(new, memory, strict=True):
            yield torch.cat([x, u]), torch.cat([y, v])

    train(model, optimizer, both())


def validation_that_all_share(run: Run) -> None:
    """Between passes, all ranks evaluate on the same batches."""
    model, optimizer = run.trained()
    held_out = DataLoader(TensorDataset(run.inputs[:64] + 9, run.labels[:64]), 16)
    batches = run.batches()
    for _ in range(STEPS // 30):
        model.train()
        train(model, optimizer, first(30, batches))
        model.eval()
        with torch.no_grad():
            sum(float(loss_of(model, batch)) for batch in held_out)


def tasks_of_other_sizes(run: Run) -> None:
    """Data sets in turn, in batches of four to sixteen, on all ranks alike."""
    model, optimizer = run.trained()
    sizes = (4, 8, 16, 8)
    loaders = [
        run.batches(data=task, batch_size=size)
        for task, size in zip(tasks(run), sizes, strict=True)
    ]
    train(model, optimizer, (next(loaders[step % 4]) for step in range(STEPS)))


def one_task_is_not_divided(run: Run) -> None:
    """The mistake: one loader of four has no sampler that divides."""
    model, optimizer = run.trained()
    loaders = [run.batches(data=task) for task in tasks(run)[:3]]
    last = tasks(run)[3]
    order = torch.utils.data.RandomSampler(last, generator=seeded(0))
    loaders.append(run.batches(order, data=last))
    train(model, optimizer, (next(loaders[step % 4]) for step in range(STEPS)))


def one_task_is_another(run: Run) -> None:
    """The mistake: one dataset of four was prepared otherwise on rank 1."""
    model, optimizer = run.trained()
    sets = tasks(run)
    if run.rank == 1:
        x, y = sets[2].tensors
        sets[2] = TensorDataset(x.flip(0), y.flip(0))
    loaders = [run.batches(data=task) for task in sets]
    train(model, optimizer, (next(loaders[step % 4]) for step in range(STEPS)))


# ---- P: passes that start anew


def iterator_of_each_step(run: Run) -> None:
    """`next(iter(loader))`: each step begins a pass of its own order."""
    model, optimizer = run.trained()
    sampler = run.sampler()
    loader = DataLoader(run.data, 8, sampler=sampler)

    def batches() -> Iterator[Batch]:
        for step in range(STEPS):
            sampler.set_epoch(step)
            yield next(iter(loader))

    train(model, optimizer, batches())


def statistics_between_passes(run: Run) -> None:
    """`update_bn`: after each pass, another over the same loader without gradients."""
    model, optimizer = run.trained(lambda: nn.Sequential(nn.BatchNorm1d(INPUTS), nn.Linear(16, 4)))
    sampler = run.sampler()
    loader = DataLoader(run.data, 8, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        train(model, optimizer, loader)
        with torch.no_grad():
            for x, _ in loader:
                model(x)


def batch_size_sought(run: Run) -> None:
    """Loaders of three sizes are tried for two steps each, and what they did is taken back."""
    model, optimizer = run.trained()
    before = copy.deepcopy(model.state_dict())
    sampler = run.sampler()
    for size in (4, 8, 16):
        train(model, optimizer, first(2, DataLoader(run.data, size, sampler=sampler)))
    model.load_state_dict(before)
    train(model, optimizer, run.batches(sampler))


def continued_in_the_middle(run: Run) -> None:
    """What was trained on before an interruption is skipped, in the same order."""
    model, optimizer = run.trained()
    sampler = run.sampler()
    loader = DataLoader(run.data, 8, sampler=sampler)
    train(model, optimizer, first(12, loader))
    train(model, optimizer, itertools.islice(loader, 12, None))
    for epoch in (1, 2):
        sampler.set_epoch(epoch)
        train(model, optimizer, loader)


def finder_before_one_order(run: Run) -> None:
    """The mistake: after the finder, no pass is shuffled anew."""
    model, optimizer = run.trained()
    loader = DataLoader(run.data, 8, sampler=run.sampler())
    train(model, optimizer, first(12, loader))
    for _ in range(3):
        train(model, optimizer, loader)


def first_batches_again(run: Run) -> None:
    """The mistake: without `set_epoch`, passes that end early all have the same batches."""
    model, optimizer = run.trained()
    loader = DataLoader(run.data, 8, sampler=run.sampler())
    for _ in range(10):
        train(model, optimizer, first(12, loader))


def batches_before_an_interruption_again(run: Run) -> None:
    """The mistake: an interrupted pass goes on from its start, each time."""
    model, optimizer = run.trained()
    sampler = run.sampler()
    loader = DataLoader(run.data, 8, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        train(model, optimizer, first(20, loader))
        train(model, optimizer, loader)


PROGRAMS: list[Program] = [
    *programs("D", rare_classes_repeated, buckets_of_ranks, shards_drawn_again),
    *programs(
        "E",
        repeated_augmentation,
        weighted_in_a_wrapper,
        identities_by_instances,
        rare_samples_three_times,
    ),
    *programs(
        "G",
        first_batches_of_each_pass,
        pool_that_grows,
        hard_half_of_a_batch,
        best_half_of_own_share,
    ),
    *programs("H", memory_beside_new_data, validation_that_all_share, tasks_of_other_sizes),
    *programs(
        "P",
        iterator_of_each_step,
        statistics_between_passes,
        batch_size_sought,
        continued_in_the_middle,
    ),
]
FAULTS = [
    Program("D", endless_samplers_of_own_seeds, "overlapping-data", (0, 1)),
    Program("D", one_bucket, "duplicate-data", (0, 1)),
    Program("D", shards_of_one_seed, "duplicate-data", (0, 1)),
    Program("E", balance_of_one_seed, "duplicate-data", (0, 1)),
    Program("E", copies_in_one_order, "epoch-not-set", (0, 1)),
    Program("G", own_part_divided_again, "data-coverage", (0, 1)),
    Program("G", first_half_of_a_batch, "data-coverage", (0, 1)),
    Program("G", less_than_the_sampler_says, "data-coverage", (0, 1)),
    Program("H", one_task_is_not_divided, "duplicate-data", (0, 1)),
    Program("H", one_task_is_another, "dataset-mismatch", (0, 1)),
    Program("P", finder_before_one_order, "epoch-not-set", (0, 1)),
    Program("P", first_batches_again, "epoch-not-set", (0, 1)),
    Program("P", batches_before_an_interruption_again, "epoch-not-set", (0, 1)),
]
