# SPDX-License-Identifier: Apache-2.0
"""What ranks are fed: shared inputs, samplers that repeat, shares, several loaders."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import (
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
)

from right.run import CLASSES, INPUTS, ROWS, STEPS, Batch, Program, Run, first, network, train

# ---- A: shared input, own randomness or targets


def bandit_with_shared_contexts(run: Run) -> None:
    """Contexts are equal on all ranks; each draws actions of its own."""
    model, optimizer = run.trained()
    contexts = torch.Generator().manual_seed(5)

    def loss(net: nn.Module, x: Batch) -> torch.Tensor:
        logits = net(x)
        action = torch.distributions.Categorical(logits=logits).sample()  # type: ignore[no-untyped-call]
        reward = (action == (x @ run.teacher).argmax(1)).float()
        taken = logits.log_softmax(1).gather(1, action[:, None])[:, 0]
        return -(taken * (reward - reward.mean())).mean()

    train(
        model, optimizer, (torch.randn(16, INPUTS, generator=contexts) for _ in range(STEPS)), loss
    )


def boundary_points_that_all_share(run: Run) -> None:
    """Physics-informed: collocation points are each rank's own, in a second forward pass."""
    model, optimizer = run.trained()
    boundary = run.inputs[:32]

    def loss(net: nn.Module, inside: Batch) -> torch.Tensor:
        residual = (net(inside) - inside @ run.teacher).square().mean()
        return net(boundary).square().mean() + residual

    train(model, optimizer, (torch.randn(32, INPUTS) for _ in range(STEPS)), loss)


def one_graph_with_own_targets(run: Run) -> None:
    """Every rank runs the whole graph, with equal dropout, and learns from nodes of its own."""
    model, optimizer = run.trained(lambda: nn.Sequential(nn.Dropout(0.2), network()))
    torch.manual_seed(7)
    nodes = torch.arange(ROWS)[run.rank :: run.world]

    def loss(net: nn.Module, chosen: Batch) -> torch.Tensor:
        return functional.cross_entropy(net(run.inputs)[chosen], run.labels[chosen])

    picks = (torch.randint(len(nodes), (16,), generator=run.own) for _ in range(STEPS))
    train(model, optimizer, (nodes[pick] for pick in picks), loss)


def equal_data_on_all_ranks(run: Run) -> None:
    """The mistake: nothing divides the data, and the seed is one."""
    model, optimizer = run.trained()
    order = torch.Generator().manual_seed(0)
    train(model, optimizer, run.batches(RandomSampler(run.data, generator=order)))


# ---- B: the wrong tensor taken for the samples


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = network(), nn.Linear(INPUTS, CLASSES)

    def forward(self, shared: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        return self.a(own) + self.b(shared).mean(0)  # type: ignore[no-any-return]


class Prompted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.image = nn.Embedding(50, 8), nn.Linear(INPUTS, 8)

    def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.image(pixel_values) @ self.words(input_ids).mean(1).T  # type: ignore[no-any-return]


def grid_that_all_share(run: Run) -> None:
    model, optimizer = run.trained(Two)
    grid = run.inputs[:8]
    train(
        model,
        optimizer,
        run.batches(),
        lambda net, b: functional.cross_entropy(net(grid, b[0]), b[1]),
    )


def class_prompts(run: Run) -> None:
    """Two towers: the prompts of the classes are equal on all ranks."""
    model, optimizer = run.trained(Prompted)
    prompts = torch.randint(0, 50, (CLASSES, 5), generator=torch.Generator().manual_seed(3))

    def loss(net: nn.Module, b: Batch) -> torch.Tensor:
        return functional.cross_entropy(net(input_ids=prompts, pixel_values=b[0]), b[1])

    train(model, optimizer, run.batches(), loss)


def coordinates_beside_pictures(run: Run) -> None:
    """One grid of coordinates, given by name in each forward pass."""
    model, optimizer = run.trained(Two)
    grid = torch.linspace(-1, 1, 4 * INPUTS).reshape(4, INPUTS)

    def loss(net: nn.Module, b: Batch) -> torch.Tensor:
        return functional.cross_entropy(net(own=b[0], shared=grid), b[1])

    train(model, optimizer, run.batches(), loss)


def grid_and_equal_data(run: Run) -> None:
    """The mistake: the samples beside the grid are equal as well."""
    model, optimizer = run.trained(Two)
    order = RandomSampler(run.data, generator=torch.Generator().manual_seed(0))
    grid = run.inputs[:8]
    train(
        model,
        optimizer,
        run.batches(order),
        lambda net, b: functional.cross_entropy(net(grid, b[0]), b[1]),
    )


# ---- C: input that no loader dealt


def environment_that_resets(run: Run) -> None:
    """Every tenth step all environments are in one state."""
    model, optimizer = run.trained()

    def states() -> Iterator[Batch]:
        x = torch.zeros(4, INPUTS)
        for step in range(STEPS):
            x = torch.zeros(4, INPUTS) if step % 10 == 0 else x + 0.3 * torch.randn(4, INPUTS)
            yield x

    def loss(net: nn.Module, x: Batch) -> torch.Tensor:
        return (net(x) - torch.randn(4, CLASSES)).square().mean()

    train(model, optimizer, states(), loss)


def path_that_is_walked_again(run: Run) -> None:
    """A converged policy: each rank walks one path of its own, again and again."""
    model, optimizer = run.trained()
    path = torch.randn(10, 4, INPUTS, generator=run.own)

    def loss(net: nn.Module, x: Batch) -> torch.Tensor:
        return (net(x) - torch.randn(4, CLASSES)).square().mean()

    train(model, optimizer, (path[step % 10] for step in range(STEPS)), loss)


def replay_buffer(run: Run) -> None:
    """Samples come again by chance, from what a rank has seen itself."""
    model, optimizer = run.trained()
    buffer = torch.randn(64, INPUTS, generator=run.own)
    picks = (torch.randint(64, (8,)) for _ in range(STEPS))

    def loss(net: nn.Module, x: Batch) -> torch.Tensor:
        return (net(x) - x @ run.teacher).square().mean()

    train(model, optimizer, (buffer[pick] for pick in picks), loss)


def noise_of_one_seed(run: Run) -> None:
    """The mistake: what ranks draw themselves is equal in all steps."""
    model, optimizer = run.trained()
    torch.manual_seed(1)

    def loss(net: nn.Module, x: Batch) -> torch.Tensor:
        return (net(x) - x @ run.teacher).square().mean()

    train(model, optimizer, (torch.randn(8, INPUTS) for _ in range(STEPS)), loss)


# ---- D: samplers without end


class TrainingSampler(Sampler[int]):
    """As detectron2's."""

    def __init__(self, size: int, rank: int, world: int, seed: int = 3) -> None:
        self._size, self._rank, self._world_size, self._seed = size, rank, world, seed

    def __iter__(self) -> Iterator[int]:
        yield from itertools.islice(self._all(), self._rank, None, self._world_size)

    def _all(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed)
        while True:
            yield from torch.randperm(self._size, generator=generator).tolist()


class MovingWindow(Sampler[int]):
    """As StyleGAN's: indices change places within a window of half the data."""

    def __init__(self, dataset: Any, rank: int, num_replicas: int) -> None:
        self.dataset, self.rank, self.num_replicas = dataset, rank, num_replicas

    def __iter__(self) -> Iterator[int]:
        order, draws = list(range(len(self.dataset))), random.Random(0)
        draws.shuffle(order)
        for at in itertools.count():
            here = at % len(order)
            if at % self.num_replicas == self.rank:
                yield order[here]
            there = (here - draws.randrange(len(order) // 2)) % len(order)
            order[here], order[there] = order[there], order[here]


class InfiniteSampler(Sampler[int]):
    """Public names, no end, and a length that it does not say."""

    def __init__(self, dataset: Any, rank: int, world_size: int) -> None:
        self.dataset, self.rank, self.world_size, self.seed = dataset, rank, world_size, 5

    def __iter__(self) -> Iterator[int]:
        for epoch in itertools.count():
            generator = torch.Generator().manual_seed(self.seed + epoch)
            order = torch.randperm(len(self.dataset), generator=generator).tolist()
            yield from order[self.rank :: self.world_size]


def sampler_without_end(run: Run) -> None:
    model, optimizer = run.trained()
    train(model, optimizer, run.batches(TrainingSampler(ROWS, run.rank, run.world)))


def moving_window(run: Run) -> None:
    model, optimizer = run.trained()
    train(model, optimizer, run.batches(MovingWindow(run.data, run.rank, run.world)))


def infinite_sampler(run: Run) -> None:
    model, optimizer = run.trained()
    train(model, optimizer, run.batches(InfiniteSampler(run.data, run.rank, run.world)))


def endless_samplers_of_one_rank(run: Run) -> None:
    """The mistake: each believes that it is rank 0."""
    model, optimizer = run.trained()
    train(model, optimizer, run.batches(TrainingSampler(ROWS, 0, run.world)))


# ---- E: repetition by design


class Drawn(Sampler[list[int]]):
    """A batch sampler of the program's own: whatever its function draws."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(STEPS):
            yield self.draw()


def drawn(run: Run, draw: Any) -> Iterator[Batch]:
    return iter(DataLoader(run.data, batch_sampler=Drawn(draw)))


def classes_in_balance(run: Run) -> None:
    model, optimizer = run.trained()
    of = [(run.labels == c).nonzero()[:, 0].tolist() for c in range(CLASSES)]
    draws = random.Random(run.rank)
    train(model, optimizer, drawn(run, lambda: [draws.choice(c) for c in of for _ in range(2)]))


def episodes(run: Run) -> None:
    """Few-shot: each step is an episode."""
    model, optimizer = run.trained()
    draws = random.Random(10 + run.rank)
    train(model, optimizer, drawn(run, lambda: draws.sample(range(ROWS), 8)))


def weighted_draws(run: Run) -> None:
    model, optimizer = run.trained()
    sampler = WeightedRandomSampler((run.labels + 1).double(), 256, generator=run.own)
    train(model, optimizer, run.batches(sampler))


def every_batch_twice(run: Run) -> None:
    model, optimizer = run.trained()
    halves = run.batches(steps=STEPS // 2)
    train(model, optimizer, (batch for batch in halves for _ in range(2)))


def samplers_of_other_seeds(run: Run) -> None:
    """The mistake: shares of differently shuffled data overlap."""
    model, optimizer = run.trained()
    sampler = run.sampler()
    sampler.seed = run.rank
    train(model, optimizer, run.batches(sampler))


# ---- F: rows are not samples


class Positions(Dataset[int]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> int:
        return index


def of_neighbors(run: Run, neighbors: int) -> None:
    """Each target comes with so many sampled neighbors, whose rows are not targets."""
    model, optimizer = run.trained()
    near = torch.randint(
        0, ROWS, (ROWS, neighbors), generator=torch.Generator().manual_seed(neighbors)
    )

    def collate(items: list[int]) -> Batch:
        targets = torch.tensor(items)
        rows = torch.cat([targets, near[targets].flatten()])
        return run.inputs[rows], run.labels[targets]

    def loss(net: nn.Module, b: Batch) -> torch.Tensor:
        return functional.cross_entropy(net(b[0])[: len(b[1])], b[1])

    train(model, optimizer, run.batches(data=Positions(), collate_fn=collate), loss)


def two_neighbors(run: Run) -> None:
    of_neighbors(run, 2)


def six_neighbors(run: Run) -> None:
    of_neighbors(run, 6)


def windows_of_a_series(run: Run) -> None:
    """Windows overlap: their rows are equal in part, their indices are not."""
    model, optimizer = run.trained()
    series = torch.randn(ROWS + INPUTS, generator=torch.Generator().manual_seed(4))
    windows = TensorDataset(series.unfold(0, INPUTS, 1)[:ROWS].contiguous(), run.labels)
    train(model, optimizer, run.batches(data=windows))


def neighbors_of_equal_targets(run: Run) -> None:
    """The mistake: targets are not divided."""
    model, optimizer = run.trained()
    sampler = RandomSampler(run.data, generator=torch.Generator().manual_seed(0))
    near = torch.randint(0, ROWS, (ROWS, 2), generator=run.own)

    def collate(items: list[int]) -> Batch:
        targets = torch.tensor(items)
        return run.inputs[torch.cat([targets, near[targets].flatten()])], run.labels[targets]

    def loss(net: nn.Module, b: Batch) -> torch.Tensor:
        return functional.cross_entropy(net(b[0])[: len(b[1])], b[1])

    batches = run.batches(sampler, data=Positions(), collate_fn=collate)
    train(model, optimizer, batches, loss)


# ---- G: a share by the program's choice


class Chosen(Sampler[int]):
    """A part of the data that changes every three passes, divided among the ranks."""

    def __init__(self, share: float, rank: int, world: int) -> None:
        self.count, self.rank, self.world, self.epoch = int(share * ROWS), rank, world, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count // self.world

    def __iter__(self) -> Iterator[int]:
        chosen = torch.Generator().manual_seed(self.epoch // 3)
        kept = torch.randperm(ROWS, generator=chosen)[: self.count]
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(self.epoch))
        return iter(kept[order].tolist()[self.rank :: self.world])


def hard_half(run: Run) -> None:
    model, optimizer = run.trained()
    train(model, optimizer, run.batches(Chosen(0.5, run.rank, run.world)))


def curriculum_from_two_fifths(run: Run) -> None:
    model, optimizer = run.trained()
    train(model, optimizer, run.batches(Chosen(0.4, run.rank, run.world)))


def one_quarter(run: Run) -> None:
    model, optimizer = run.trained()
    train(model, optimizer, run.batches(Chosen(0.25, run.rank, run.world)))


def data_divided_twice(run: Run) -> None:
    """The mistake: each share is dealt among the ranks once more."""
    model, optimizer = run.trained()
    sampler = run.sampler()
    sampler.num_replicas = run.world**2
    sampler.num_samples = ROWS // run.world**2
    sampler.total_size = ROWS
    train(model, optimizer, run.batches(sampler))


# ---- H: several loaders on a rank


def tasks_that_rotate(run: Run) -> None:
    """Four datasets; at a step each rank is at another."""
    model, optimizer = run.trained()
    sets = [
        TensorDataset(run.inputs[at : at + 128] + at, run.labels[:128])
        for at in range(0, ROWS, 128)
    ]
    loaders = [run.batches(data=one) for one in sets]
    train(model, optimizer, (next(loaders[(step + run.rank) % 4]) for step in range(STEPS)))


def tasks_that_are_drawn(run: Run) -> None:
    """One stream of choices on all ranks, of which each takes its own; lengths and seeds differ."""
    model, optimizer = run.trained()
    draws = random.Random(9)
    sets = [TensorDataset(run.inputs[:n] + n, run.labels[:n]) for n in (400, 200, 120)]
    samplers = [run.sampler(one) for one in sets]
    for seed, sampler in enumerate(samplers):
        sampler.seed = seed
    loaders = [run.batches(s, data=one) for s, one in zip(samplers, sets, strict=True)]
    choices = (draws.choices(range(3), k=run.world)[run.rank] for _ in range(STEPS))
    train(model, optimizer, (next(loaders[choice]) for choice in choices))


def labeled_and_unlabeled(run: Run) -> None:
    """Two loaders in every step."""
    model, optimizer = run.trained()
    unlabeled = run.batches(data=TensorDataset(run.inputs + 9, run.labels), steps=STEPS)

    def loss(net: nn.Module, b: Batch) -> torch.Tensor:
        (x, y), (u, _) = b
        return functional.cross_entropy(net(x), y) + 0.1 * net(u).square().mean()

    train(model, optimizer, zip(run.batches(), unlabeled, strict=False), loss)


def one_rank_has_other_data(run: Run) -> None:
    """The mistake: rank 1 reads a dataset that no other rank reads."""
    model, optimizer = run.trained()
    inputs = run.inputs + (run.rank == 1)
    train(model, optimizer, run.batches(data=TensorDataset(inputs, run.labels)))


# ---- P: passes that start anew


def finder_before_training(run: Run) -> None:
    """A learning-rate finder walks part of the loader, which then begins from its start."""
    model, optimizer = run.trained()
    sampler = run.sampler()
    loader = DataLoader(run.data, 8, sampler=sampler)
    train(model, optimizer, first(12, loader))
    for epoch in range(4):
        sampler.set_epoch(epoch)
        train(model, optimizer, loader)


def warm_up_of_three_batches(run: Run) -> None:
    model, optimizer = run.trained()
    sampler = run.sampler()
    loader = DataLoader(run.data, 8, sampler=sampler)
    train(model, optimizer, first(3, loader))
    for epoch in range(3):
        sampler.set_epoch(epoch)
        train(model, optimizer, loader)


def statistics_before_training(run: Run) -> None:
    """A pass that only looks at the data."""
    model, optimizer = run.trained()
    sampler = run.sampler()
    loader = DataLoader(run.data, 8, sampler=sampler)
    sum(x.sum() for x, _ in loader)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        train(model, optimizer, loader)


def one_order_in_all_passes(run: Run) -> None:
    """The mistake: no `set_epoch`."""
    model, optimizer = run.trained()
    loader = DataLoader(run.data, 8, sampler=run.sampler())
    for _ in range(4):
        train(model, optimizer, loader)


PROGRAMS = [
    *(
        Program("A", p)
        for p in (
            bandit_with_shared_contexts,
            boundary_points_that_all_share,
            one_graph_with_own_targets,
        )
    ),
    *(Program("B", p) for p in (grid_that_all_share, class_prompts, coordinates_beside_pictures)),
    *(Program("C", p) for p in (environment_that_resets, path_that_is_walked_again, replay_buffer)),
    *(Program("D", p) for p in (sampler_without_end, moving_window, infinite_sampler)),
    *(Program("E", p) for p in (classes_in_balance, episodes, weighted_draws, every_batch_twice)),
    *(Program("F", p) for p in (two_neighbors, six_neighbors, windows_of_a_series)),
    *(Program("G", p) for p in (hard_half, curriculum_from_two_fifths, one_quarter)),
    *(Program("H", p) for p in (tasks_that_rotate, tasks_that_are_drawn, labeled_and_unlabeled)),
    *(
        Program("P", p)
        for p in (finder_before_training, warm_up_of_three_batches, statistics_before_training)
    ),
]
FAULTS = [
    Program("A", equal_data_on_all_ranks, "duplicate-data"),
    Program("B", grid_and_equal_data, "duplicate-data"),
    Program("C", noise_of_one_seed, "duplicate-data"),
    Program("D", endless_samplers_of_one_rank, "duplicate-data"),
    Program("E", samplers_of_other_seeds, "sampler-mismatch"),
    Program("F", neighbors_of_equal_targets, "overlapping-data"),
    Program("G", data_divided_twice, "data-coverage"),
    Program("H", one_rank_has_other_data, "dataset-mismatch"),
    Program("P", one_order_in_all_passes, "epoch-not-set"),
]
