# SPDX-License-Identifier: Apache-2.0
"""Other programs whose ranks see equal rows, or rows that are no samples."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

from right.run import (
    CLASSES,
    INPUTS,
    ROWS,
    STEPS,
    Batch,
    Program,
    Run,
    first,
    loss_of,
    network,
    train,
)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def one_order(run: Run) -> RandomSampler:
    """`shuffle=True` under one seed: the same order on all ranks, and nothing divided."""
    return RandomSampler(run.data, generator=seeded(0))


def shared_inputs() -> Iterator[torch.Tensor]:
    """New ones in each step, equal on all ranks."""
    draws = seeded(5)
    return (torch.randn(16, INPUTS, generator=draws) for _ in range(STEPS))


def drawn_action(logits: torch.Tensor) -> torch.Tensor:
    return torch.multinomial(logits.detach().softmax(1), 1)[:, 0]


def reinforced(logits: torch.Tensor, action: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
    """The policy gradient's loss."""
    taken = logits.log_softmax(1).gather(1, action[:, None])[:, 0]
    return -(taken * (reward - reward.mean())).mean()


# ---- A: shared input, own randomness or targets


def own_projections(run: Run) -> None:
    """Sliced losses: every rank projects outputs of equal inputs on directions of its own."""
    model, optimizer = run.trained()

    def loss(net: nn.Module, x: Batch) -> torch.Tensor:
        directions = torch.randn(CLASSES, 8)
        return functional.mse_loss(net(x) @ directions, x @ run.teacher @ directions)

    train(model, optimizer, shared_inputs(), loss)


def own_edges(run: Run) -> None:
    """Link prediction: all ranks embed the whole graph; edges, and nodes that are no neighbors,
    are each rank's own."""
    model, optimizer = run.trained()
    edges = torch.randint(ROWS, (2 * ROWS, 2), generator=seeded(6))[run.rank :: run.world]

    def loss(net: nn.Module, chosen: Batch) -> torch.Tensor:
        nodes = net(run.inputs)
        source, target = nodes[chosen[:, 0]], nodes[chosen[:, 1]]
        strangers = nodes[torch.randint(ROWS, (len(chosen),))]
        near, far = (source * target).sum(1), (source * strangers).sum(1)
        return functional.softplus(-near).mean() + functional.softplus(far).mean()

    picks = (torch.randint(len(edges), (16,)) for _ in range(STEPS))
    train(model, optimizer, (edges[pick] for pick in picks), loss)


def own_probes(run: Run, weight: float = 100.0) -> None:
    """A Jacobian's norm by Hutchinson's estimate: each rank draws its own probe vectors."""
    model, optimizer = run.trained()

    def loss(net: nn.Module, x: Batch) -> torch.Tensor:
        y = net(x.requires_grad_(True))
        probe = torch.randn_like(y)
        (product,) = torch.autograd.grad((y * probe).sum(), x, create_graph=True)
        return functional.mse_loss(y, x @ run.teacher) + weight * product.square().mean()

    train(model, optimizer, shared_inputs(), loss)


def own_probes_of_little_weight(run: Run) -> None:
    """The ranks' gradients differ by a ten-thousandth."""
    own_probes(run, 0.1)


def graph_with_equal_targets(run: Run) -> None:
    """The mistake: target nodes are drawn under one seed, and not divided."""
    model, optimizer = run.trained()
    draws = seeded(7)

    def loss(net: nn.Module, chosen: Batch) -> torch.Tensor:
        return functional.cross_entropy(net(run.inputs)[chosen], run.labels[chosen])

    picks = (torch.randint(ROWS, (16,), generator=draws) for _ in range(STEPS))
    train(model, optimizer, picks, loss)


def equal_data_and_own_dropout(run: Run) -> None:
    """The mistake: gradients differ by dropout alone."""
    model, optimizer = run.trained(lambda: nn.Sequential(nn.Dropout(0.2), network()))
    train(model, optimizer, run.batches(one_order(run)))


# ---- B: the wrong tensor taken for the samples


class Reader(nn.Module):
    """Tokens with their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 8), nn.Embedding(6, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, position_ids: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        words = self.words(input_ids) * self.places(position_ids)
        return self.head(words.mean(1))  # type: ignore[no-any-return]


class Beside(nn.Module):
    """Something that comes before the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.other = network(), nn.Linear(INPUTS, CLASSES)

    def forward(self, other: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
        return self.inside(samples) + self.other(other)  # type: ignore[no-any-return]


def tokens(run: Run) -> TensorDataset:
    return TensorDataset(torch.randint(50, (ROWS, 6), generator=seeded(8)), run.labels)


def loss_with_positions(net: nn.Module, batch: Batch) -> torch.Tensor:
    places = torch.arange(6).expand_as(batch[0])
    return functional.cross_entropy(net(places, batch[0]), batch[1])


def positions_before_tokens(run: Run) -> None:
    """`position_ids` are the first argument, and equal on all ranks."""
    model, optimizer = run.trained(Reader)
    train(model, optimizer, run.batches(data=tokens(run)), loss_with_positions)


def grid_in_each_batch(run: Run) -> None:
    """A neural operator's loader hands out the grid with the functions, and hands it out first."""
    model, optimizer = run.trained(Beside)
    grid = torch.linspace(-1, 1, 8 * INPUTS).reshape(8, INPUTS)

    def collate(items: list[Any]) -> Batch:
        return grid, torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])

    def loss(net: nn.Module, b: Batch) -> torch.Tensor:
        return functional.cross_entropy(net(b[0], b[1]), b[2])

    train(model, optimizer, run.batches(collate_fn=collate), loss)


def fixed_classes_and_own_noise(run: Run) -> None:
    """A conditional generator: two of each class in every batch, on all ranks."""
    model, optimizer = run.trained(Beside)
    classes = functional.one_hot(torch.arange(8) % CLASSES, INPUTS).float()

    def loss(net: nn.Module, noise: Batch) -> torch.Tensor:
        return functional.mse_loss(net(classes, noise), noise @ run.teacher)

    train(model, optimizer, (torch.randn(8, INPUTS) for _ in range(STEPS)), loss)


def positions_and_equal_tokens(run: Run) -> None:
    """The mistake: the tokens behind the positions are equal too."""
    model, optimizer = run.trained(Reader)
    train(model, optimizer, run.batches(one_order(run), data=tokens(run)), loss_with_positions)


def grid_and_one_rank_behind(run: Run) -> None:
    """The mistake: rank 1 was given rank 0's place in the sampler."""
    model, optimizer = run.trained(Beside)
    sampler = run.sampler()
    sampler.rank = 0
    grid = run.inputs[:8]

    def loss(net: nn.Module, b: Batch) -> torch.Tensor:
        return functional.cross_entropy(net(grid, b[0]), b[1])

    train(model, optimizer, run.batches(sampler), loss)


# ---- C: input that no loader dealt, or that is drawn where it is needed


def sequences_from_one_prompt(run: Run) -> None:
    """A policy writes three symbols of four after one prompt: ranks often write the same."""
    model, optimizer = run.trained()

    def written() -> torch.Tensor:
        text = torch.zeros(8, 4, CLASSES)
        text[:, 0, 0] = 1
        for place in (1, 2):
            with torch.no_grad():
                symbol = drawn_action(model.module(text.flatten(1)))
            text[:, place] = functional.one_hot(symbol, CLASSES)
        return text.flatten(1)

    def loss(net: nn.Module, text: Batch) -> torch.Tensor:
        logits = net(text)
        symbol = drawn_action(logits)
        return reinforced(logits, symbol, (symbol == 1).float())

    train(model, optimizer, (written() for _ in range(STEPS)), loss)


def walks(run: Run, draws: torch.Generator) -> None:
    """Eight walkers in a world of sixteen places: ranks are often at the same ones."""
    model, optimizer = run.trained()
    place = torch.randint(INPUTS, (8,), generator=draws)
    for _ in range(STEPS):
        logits = model(functional.one_hot(place, INPUTS).float())
        action = torch.multinomial(logits.detach().softmax(1), 1, generator=draws)[:, 0]
        optimizer.zero_grad()
        reinforced(logits, action, (action == place % CLASSES).float()).backward()
        optimizer.step()
        place = (place + action + 1) % INPUTS


def small_world(run: Run) -> None:
    """Each rank walks by draws of its own."""
    walks(run, run.own)


class Sums(IterableDataset[Any]):
    """Sums of two digits below eight, made as they are asked for."""

    def __init__(self, seed: int) -> None:
        self.draws = random.Random(seed)

    def __iter__(self) -> Iterator[Any]:
        while True:
            a, b = self.draws.randrange(8), self.draws.randrange(8)
            x = torch.zeros(INPUTS)
            x[[a, 8 + b]] = 1
            yield x, (a + b) % CLASSES


def sums_of_digits(run: Run) -> None:
    """Only 64 are possible: a batch, and the ranks, often have one twice."""
    model, optimizer = run.trained()
    train(model, optimizer, first(STEPS, DataLoader(Sums(run.rank), 8)))


def walks_of_one_seed(run: Run) -> None:
    """The mistake: all ranks walk alike."""
    walks(run, seeded(0))


def sums_of_one_seed(run: Run) -> None:
    """The mistake: the seed of what makes the data is one."""
    model, optimizer = run.trained()
    train(model, optimizer, first(STEPS, DataLoader(Sums(0), 8)))


# ---- F: rows are not samples


def views(items: list[Any]) -> Batch:
    """Two augmented views of each sample, one after the other."""
    x = torch.stack([x for x, _ in items])
    return torch.cat([x + 0.1 * torch.randn_like(x) for _ in range(2)])


def contrast(net: nn.Module, both: Batch) -> torch.Tensor:
    here, there = functional.normalize(net(both), dim=1).chunk(2)
    return functional.cross_entropy(here @ there.T / 0.2, torch.arange(len(here)))


def two_views(run: Run) -> None:
    """Contrastive: twice as many rows as samples."""
    model, optimizer = run.trained()
    train(model, optimizer, run.batches(collate_fn=views), contrast)


def packed(run: Run, sampler: Any) -> None:
    """Four samples in one row."""
    model, optimizer = run.trained(lambda: network(4 * INPUTS, 4 * CLASSES))

    def loss(net: nn.Module, b: Batch) -> torch.Tensor:
        logits = net(b[0].reshape(-1, 4 * INPUTS)).reshape(-1, CLASSES)
        return functional.cross_entropy(logits, b[1])

    train(model, optimizer, run.batches(sampler), loss)


def four_in_a_row(run: Run) -> None:
    """Packed sequences: fewer rows than samples."""
    packed(run, run.sampler())


def bags(run: Run, sampler: Any) -> None:
    model, optimizer = run.trained()
    of = torch.randint(40, (ROWS, 5), generator=seeded(9))

    def loss(net: nn.Module, b: Batch) -> torch.Tensor:
        bag = net(run.inputs[of[b[0]].flatten()]).reshape(-1, 5, CLASSES).mean(1)
        return functional.cross_entropy(bag, b[1])

    data = TensorDataset(torch.arange(ROWS), run.labels)
    train(model, optimizer, run.batches(sampler, data=data), loss)


def bags_of_few_instances(run: Run) -> None:
    """Multiple instances: each sample is a bag of five out of forty, so all rows come again."""
    bags(run, run.sampler())


def equal_bags(run: Run) -> None:
    """The mistake: all ranks have the same bags."""
    bags(run, one_order(run))


def views_of_one_place(run: Run) -> None:
    """The mistake: all ranks have one place in the sampler; augmentation makes rows differ."""
    model, optimizer = run.trained()
    sampler = run.sampler()
    sampler.rank = 0
    train(model, optimizer, run.batches(sampler, collate_fn=views), contrast)


def packed_under_own_seeds(run: Run) -> None:
    """The mistake: shares of differently shuffled data overlap, and no two rows are equal."""
    sampler = run.sampler()
    sampler.seed = run.rank
    packed(run, sampler)


# ---- R: ranks with batches of their own size


SIZES = (16, 4)


def batches_by_size(run: Run) -> Iterator[Batch]:
    """Each pass divides the data by the ranks' sizes."""
    whole = sum(SIZES)
    before = sum(SIZES[: run.rank])
    for step in range(STEPS):
        epoch, place = divmod(step, ROWS // whole)
        order = torch.randperm(ROWS, generator=seeded(epoch))
        own = order[place * whole + before :][: SIZES[run.rank]]
        yield run.inputs[own], run.labels[own]


def batches_of_two_sizes(run: Run) -> None:
    """Each rank's mean is weighted by its share of the samples."""
    model, optimizer = run.trained()
    share = SIZES[run.rank] * run.world / sum(SIZES)
    train(model, optimizer, batches_by_size(run), lambda net, batch: share * loss_of(net, batch))


def own_share_of_sums(run: Run) -> None:
    """Sums, divided by the number of all samples."""
    model, optimizer = run.trained()

    def loss(net: nn.Module, batch: Batch) -> torch.Tensor:
        summed = functional.cross_entropy(net(batch[0]), batch[1], reduction="sum")
        return summed * run.world / sum(SIZES)

    train(model, optimizer, batches_by_size(run), loss)


def mean_of_two_sizes(run: Run) -> None:
    """The mistake: each rank's mean counts alike."""
    model, optimizer = run.trained()
    train(model, optimizer, batches_by_size(run))


def programs(kind: str, *trainings: Callable[[Run], None]) -> Iterable[Program]:
    return (Program(kind, training) for training in trainings)


PROGRAMS = [
    *programs("A", own_projections, own_edges, own_probes, own_probes_of_little_weight),
    *programs("B", positions_before_tokens, grid_in_each_batch, fixed_classes_and_own_noise),
    *programs("C", sequences_from_one_prompt, small_world, sums_of_digits),
    *programs("F", two_views, four_in_a_row, bags_of_few_instances),
    *programs("R", batches_of_two_sizes, own_share_of_sums),
]
FAULTS = [
    Program("A", graph_with_equal_targets, "duplicate-data", (0, 1)),
    Program("A", equal_data_and_own_dropout, "duplicate-data", (0, 1)),
    Program("B", positions_and_equal_tokens, "duplicate-data", (0, 1)),
    Program("B", grid_and_one_rank_behind, "duplicate-data", (0, 1)),
    Program("C", walks_of_one_seed, "duplicate-data", (0, 1)),
    Program("C", sums_of_one_seed, "duplicate-data", (0, 1)),
    Program("F", equal_bags, "duplicate-data", (0, 1)),
    Program("F", views_of_one_place, "sampler-mismatch", (0, 1)),
    Program("F", packed_under_own_seeds, "sampler-mismatch", (0, 1)),
    Program("R", mean_of_two_sizes, "token-imbalance", (0, 1)),
]
