# SPDX-License-Identifier: Apache-2.0
"""Which batch of which loader a step is told to be of: one worker, its packets read back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from helpers.packets import PARTS, Model, rows_of
from helpers.training import Training
from presum.fingerprints.loaders import LoaderEvents
from presum.fingerprints.samples import BatchFinder

pytestmark = pytest.mark.usefixtures("one_worker")


@pytest.fixture
def training(training: Training) -> Training:
    training.names_optimizer = False
    return training


class Tokens(Model):
    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, object]:
        return super().forward(x.float(), labels)


def dataset(rows: int = 24) -> TensorDataset:
    return TensorDataset(torch.arange(4.0 * rows).reshape(rows, 4))


def loader_of(data: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(data, **{"batch_size": 4, **options})


def indices(training: Training) -> list[list[int]]:
    return [step.indices for step in training.steps]


def train(model: nn.Module, loader: Any, *, limit: int = 100) -> None:
    for number, (x,) in enumerate(loader):
        if number == limit:
            break
        model(x)["loss"].backward()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_s_indices_belong_to_the_step_that_used_them(
    training: Training, workers: int
) -> None:
    sampler = DistributedSampler(dataset(), num_replicas=2, rank=1, seed=3)
    loader = loader_of(
        dataset(), sampler=sampler, num_workers=workers, persistent_workers=workers > 0
    )
    expected: list[list[int]] = []
    with training.watched():
        for epoch in range(2):
            sampler.set_epoch(epoch)
            order = list(sampler)
            expected += [order[at : at + 4] for at in range(0, 12, 4)]
            train(training.model, loader)
    assert indices(training) == expected
    assert training.values("data_pass") == [0, 0, 0, 1, 1, 1]
    assert training.values("data_batch") == [0, 1, 2, 0, 1, 2]
    assert training.values("sampler_epoch") == [0, 0, 0, 1, 1, 1]
    assert training.values("sampler_seed") == [3] * 6
    assert training.values("sampler_rank") == [1] * 6
    assert training.packets.facts["sampler"].startswith("BatchSampler(DistributedSampler): seed=3")
    assert training.packets.facts["data"].startswith("TensorDataset: length=24")
    assert len(training.packets.hellos) == 5  # with inputs, data, precision and the loss
    assert training.packets.hellos[1] < training.steps[0].order


def test_batches_drawn_ahead_and_cut_into_micro_batches_are_matched(training: Training) -> None:
    with training.watched():
        ahead = list(loader_of(dataset()))
        for (x,) in ahead[:2]:
            with training.model.no_sync():
                training.model(x[:2])["loss"].backward()
            training.model(x[2:])["loss"].backward()
    assert indices(training) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_an_evaluation_loader_is_not_taken_for_the_training_s(training: Training) -> None:
    other = TensorDataset(-torch.arange(1.0, 97.0).reshape(24, 4))
    evaluation = loader_of(other, batch_size=3)
    with training.watched():
        for _ in range(2):
            for (x,) in evaluation:
                with torch.no_grad():
                    training.model(x)
            train(training.model, loader_of(dataset()), limit=2)
            next(iter(evaluation))
    assert indices(training) == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2
    assert set(training.values("data_length")) == {24}
    assert training.values("data_batch") == [0, 1, 0, 1]


def test_samples_that_are_evaluated_on_too_stay_the_training_s(training: Training) -> None:
    """The next batch is drawn ahead of an evaluation on the same rows, as Accelerate does."""
    data = dataset()
    copied = TensorDataset(data.tensors[0].clone())
    with training.watched():
        drawn = iter(loader_of(data))
        (ahead,) = next(drawn)
        for _ in range(5):
            (x,), ahead = (ahead,), next(drawn)[0]
            training.model.eval()
            with torch.no_grad():
                for (y,) in loader_of(copied):
                    training.model(y)
            training.model.train()
            training.model(x)["loss"].backward()
    assert set(training.values("data_pass")) == {0}
    assert training.values("data_batch") == [0, 1, 2, 3, 4]


def test_a_new_loader_over_the_same_data_is_the_next_pass(training: Training) -> None:
    data = dataset(8)
    with training.watched():
        for _ in range(3):
            train(training.model, loader_of(data))
    assert training.values("data_pass") == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_that_is_gone_through_is_said_to_have_ended(
    training: Training, workers: int
) -> None:
    loader = loader_of(dataset(8), num_workers=workers)
    with training.watched():
        train(training.model, loader)
        train(training.model, loader, limit=1)
        train(training.model, loader)
        train(training.model, loader)
    assert training.values("data_ended") == [0, 0, 1, 1, 1, 3, 3]
    assert training.packets.final is not None
    final = training.packets.final.values
    assert [final[name] for name in ("data_pass", "data_batch", "data_ended")] == [3, 1, 4]


def test_data_that_are_made_anew_for_each_pass_are_counted_on(training: Training) -> None:
    with training.watched():
        for rows in (8, 8, 12, 8):
            train(training.model, loader_of(dataset(rows)))
    assert training.values("data_pass") == [0, 0, 1, 1, 0, 0, 0, 2, 2]


def test_a_later_training_begins_with_the_first_pass() -> None:
    events = LoaderEvents()
    first = events.loader(loader_of(dataset()))
    again = events.loader(loader_of(dataset()))
    events.forget_recent()
    later = events.loader(loader_of(dataset()))
    assert first.passes is again.passes is not later.passes


def test_a_pass_counts_once_it_is_trained_on(training: Training) -> None:
    data, loader = dataset(8), loader_of(dataset(8))
    loaders = [loader_of(data), loader_of(TensorDataset(data.tensors[0] + 100))]
    with training.watched():
        next(iter(loader))
        for (x,), (y,) in zip(*loaders, strict=True):
            training.model(x)["loss"].backward()
            training.model(-y)["loss"].backward()
        next(iter(loader))
        sum(len(x) for (x,) in loader)
        train(training.model, loader)
    assert training.values("data_pass") == [0, None, 0, None, 0, 0]


def test_interleaved_loaders_over_one_data_set_have_passes_each(training: Training) -> None:
    data = dataset(8)
    with training.watched():
        ahead, behind = iter(loader_of(data)), iter(loader_of(data, batch_size=2))
        for loader in (ahead, behind, ahead, behind):
            (x,) = next(loader)
            training.model(x)["loss"].backward()
    assert training.values("data_pass") == [0, 1, 0, 1]


def test_equal_rows_keep_their_own_indices(training: Training) -> None:
    data = TensorDataset(torch.ones(8, 4))
    with training.watched():
        train(training.model, loader_of(data))
    assert [sorted(step.indices) for step in training.steps] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_batch_that_changes_on_the_way_is_the_only_one_handed_out(training: Training) -> None:
    with training.watched():
        for (x,) in loader_of(dataset()):
            training.model(x + 0.5)["loss"].backward()
    assert indices(training) == [[*range(first, first + 4)] for first in range(0, 24, 4)]
    assert training.values("data_batch") == list(range(6))


def test_rows_that_the_program_changes_are_counted(training: Training) -> None:
    with training.watched():
        for number, (x,) in enumerate(loader_of(dataset())):
            training.model(x + 0.5 if number < 4 else x)["loss"].backward()
    assert training.values("rows_changed") == [4, 4, 4, 4, None, None]


def test_tokens_before_the_last_are_the_rows_of_a_language_model(training: Training) -> None:
    """The targets of a next token are in the same tensor; the model is given all but the last."""
    tokens: Any = torch.arange(120).reshape(24, 5)
    training = training.of(Tokens())
    with training.watched():
        for x in loader_of(tokens):
            training.model(x[:, :-1])["loss"].backward()
    assert indices(training) == [[*range(first, first + 4)] for first in range(0, 24, 4)]
    assert training.values("rows_changed") == [None] * 6


@pytest.mark.parametrize("kind", ["rows_passed_over", "rows_cut"])
def test_rows_of_a_batch_that_are_not_trained_on_are_counted(training: Training, kind: str) -> None:
    with training.watched():
        for (x,) in loader_of(dataset(8)):
            if kind == "rows_passed_over":
                with torch.no_grad():
                    training.model(x)
            training.model(x[::4])["loss"].backward()
        train(training.model, loader_of(dataset(8)))
    assert training.values(kind) == [None, 3, 3, None]
    assert indices(training)[:2] == [[0], [4]]


def test_rows_that_match_by_their_padding_alone_do_not_hide_the_others(training: Training) -> None:
    """A program cuts the last column. Rows that end in padding keep their hash."""
    rows = torch.arange(1.0, 121.0).reshape(24, 5)
    rows[::3, 2:] = 0
    with training.watched():
        for _ in range(2):
            for (x,) in loader_of(TensorDataset(rows)):
                training.model(x[:, :4])["loss"].backward()
    assert training.values("data_batch") == [0, 1, 2, 3, 4, 5] * 2
    assert training.values("data_pass") == [0] * 6 + [1] * 6
    assert indices(training)[1] == [4, 5, 6, 7]


def test_a_batch_that_was_drawn_ahead_is_not_taken_for_the_one_that_matches(
    training: Training,
) -> None:
    rows = torch.arange(1.0, 121.0).reshape(24, 5)
    rows[::2, 2:] = 0
    with training.watched():
        ahead = iter(loader_of(TensorDataset(rows)))
        batch = next(ahead, None)
        while batch is not None:
            (x,), batch = batch, next(ahead, None)
            training.model(x[:, :4])["loss"].backward()
    assert training.values("data_batch") == [0, 1, 2, 3, 4, 5]


def test_a_batch_that_several_steps_share_is_trained_on(training: Training) -> None:
    with training.watched():
        for (x,) in loader_of(dataset(16)):
            for part in x.split(2):
                training.model(part)["loss"].backward()
    assert training.values("rows_cut") == [None] * 8


def test_a_batch_that_is_perturbed_and_used_again_keeps_its_place(training: Training) -> None:
    with training.watched():
        for (x,) in loader_of(dataset()):
            for times in range(3):
                training.model(x + 0.01 * times)["loss"].backward()
            if len(training.steps) > 6:
                break
    assert training.values("data_batch")[:6] == [0, None, None, 1, None, None]
    assert training.values("batch_again")[:6] == [None, 1, 1, None, 1, 1]
    assert indices(training)[:4] == [[0, 1, 2, 3], [], [], [4, 5, 6, 7]]


def test_samples_of_an_evaluation_beyond_the_first_rows_stay_the_training_s(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("presum.fingerprints.loaders.ELEMENTS_MAX", 12)
    held = torch.arange(1.0, 97.0).reshape(24, 4)
    training.model.eval()
    with training.watched():
        evaluation = loader_of(TensorDataset(held[3:].clone()))
        with torch.no_grad():
            for (x,) in evaluation:
                training.model(x)
        training.model.train()
        train(training.model, loader_of(TensorDataset(held)), limit=2)
    assert set(training.values("data_length")) == {24}


def test_batches_mixed_on_the_way_have_a_sampler_and_no_indices(training: Training) -> None:
    with training.watched():
        batches = iter(loader_of(dataset()))
        for (x,), (y,) in zip(batches, batches, strict=True):
            training.model(x + y)["loss"].backward()
    assert all(not step.indices for step in training.steps)
    assert all("sampler_class" in step.values for step in training.steps)
    assert all("data_pass" not in step.values for step in training.steps)


def test_two_loaders_in_turn_are_told_of_once(training: Training) -> None:
    loaders = [DataLoader(TensorDataset(part), 2) for part in (PARTS[:12], 100 + PARTS[:8])]
    with training.watched():
        for _ in range(3):
            for batches in zip(*loaders, strict=False):
                for (batch,) in batches:
                    training.step(batch)
    assert len(training.steps) == 24 and training.steps[-1].indices
    # When attached, with the first batch of each, inputs twice, precision and the loss.
    assert len(training.packets.hellos) == 7
    assert training.packets.facts["data"] == "TensorDataset: length=12; TensorDataset: length=8"


def test_a_sampler_that_changes_at_every_step_is_told_of_a_few_times(training: Training) -> None:
    sampler: DistributedSampler[object] = DistributedSampler(PARTS, 1, 0)  # type: ignore[arg-type]
    training.names_optimizer = True
    with training.watched(data=sampler):
        for step in range(12):
            sampler.seed = step
            training.step(PARTS[:2])
    assert len(training.packets.hellos) <= 10
    assert training.packets.facts["sampler"].endswith("and others: each step has their hashes")
    assert training.values("sampler_seed") == list(range(12))


def test_with_two_loaders_and_no_match_nothing_is_said_of_samplers(training: Training) -> None:
    with training.watched():
        for (x,), _ in zip(loader_of(dataset()), loader_of(dataset()), strict=True):
            training.model(x + 0.5)["loss"].backward()
    assert all("sampler_class" not in step.values for step in training.steps)


def test_a_loader_that_is_named_is_followed_in_its_order(training: Training) -> None:
    loader, other = loader_of(dataset()), loader_of(dataset(), batch_size=2)
    with training.watched(every=2, data=[loader]):
        for (x,), _ in zip(loader, other, strict=False):
            training.model(x + 0.5)["loss"].backward()
    assert indices(training) == [[*range(first, first + 4)] for first in (0, 8, 16)]
    assert training.values("data_batch") == [0, 2, 4]


def test_a_sampler_that_is_named_is_read_at_every_step(training: Training) -> None:
    sampler = DistributedSampler(dataset(), num_replicas=2, rank=0, seed=5)
    with training.watched(data=sampler):
        for epoch in range(2):
            sampler.set_epoch(epoch)
            training.model(PARTS[:3])["loss"].backward()
            training.model(PARTS[:3])  # ends the step
    assert training.values("sampler_epoch") == [0, 1]
    assert training.steps[0].values["sampler_seed"] == 5


def test_iterable_data_sets_have_samples_but_no_indices(training: Training) -> None:
    class Stream(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[torch.Tensor]:
            return iter(PARTS)

    with training.watched():
        for x in loader_of(Stream()):
            training.model(x)["loss"].backward()
    assert [step.rows for step in training.steps] == [4] * 6
    assert all(not step.indices for step in training.steps)
    assert training.values("data_batch") == list(range(6))


def test_dictionaries_are_matched_by_the_tensor_that_is_used(training: Training) -> None:
    data = [{"label": torch.tensor(i % 2), "picture": row} for i, row in enumerate(PARTS)]
    with training.watched():
        for batch in loader_of(data):
            training.model(batch["picture"])["loss"].backward()
    assert indices(training)[:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_large_batches_are_known_again_by_their_first_rows(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("presum.fingerprints.loaders.ELEMENTS_MAX", 8)
    with training.watched():
        train(training.model, loader_of(dataset()))
    assert indices(training)[:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert training.steps[0].samples == rows_of(PARTS[:4])


def test_accelerate_s_loader_is_followed(training: Training) -> None:
    loading = pytest.importorskip("accelerate.data_loader")
    pytest.importorskip("accelerate").PartialState()
    loader = loading.prepare_data_loader(
        loader_of(dataset(), shuffle=True),
        num_processes=2,
        process_index=1,
        use_seedable_sampler=True,
        data_seed=11,
        put_on_device=False,
    )
    with training.watched():
        for _ in range(2):
            train(training.model, loader)
    assert training.values("sampler_epoch") == [0, 0, 0, 1, 1, 1]
    for name, value in {"sampler_seed": 11, "sampler_rank": 1, "sampler_replicas": 2}.items():
        assert training.values(name) == [value] * 6
    seen = [{i for step in training.steps[at : at + 3] for i in step.indices} for at in (0, 3)]
    assert all(len(indices) == 12 for indices in seen) and seen[0] != seen[1]
    assert [step.samples for step in training.steps] == [
        rows_of(PARTS[step.indices]) for step in training.steps
    ]


def test_torch_s_loader_is_as_it_was_after_the_last_monitor(training: Training) -> None:
    def methods() -> list[Any]:
        base = vars(_BaseDataLoaderIter)
        return [vars(DataLoader)["__iter__"], base["__next__"], base["_next_index"]]

    before = methods()
    other = training.of(Model())
    with training.watched():
        with other.watched():
            assert all(a is not b for a, b in zip(before, methods(), strict=True))
        assert methods() != before
        iterator = iter(loader_of(dataset()))
        next(iterator)
    assert methods() == before
    assert next(iterator)[0].tolist() == PARTS[4:8].tolist()


def test_loaders_raise_and_yield_what_they_always_did(training: Training) -> None:
    class Broken(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            raise KeyError("user's own")

    def seen(loader: Any) -> list[Any]:
        torch.manual_seed(0)
        return [x.tolist() for epoch in range(2) for (x,) in loader]

    shuffled = loader_of(dataset(), shuffle=True)
    expected = seen(shuffled)
    with training.watched():
        assert seen(shuffled) == expected
        with pytest.raises(KeyError, match="user's own"):
            next(iter(loader_of(Broken(PARTS))))
        assert list(loader_of(TensorDataset(PARTS[:0]))) == []
        uneven = loader_of(TensorDataset(PARTS[:6]))
        assert [len(x) for (x,) in uneven] == [4, 2] and len(uneven) == 2


def test_a_failing_look_at_data_does_not_reach_the_loader(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object, **_options: object) -> None:
        raise RuntimeError("presum's own")

    monkeypatch.setattr("presum.fingerprints.loaders.hash_tensor", broken)
    with training.watched():
        train(training.model, loader_of(dataset()))
    assert len(training.steps) == 6
    said = "no fingerprints of data from here on (RuntimeError: presum's own)"
    assert training.packets.notes == [said]
    assert all("rng_torch" in step.values for step in training.steps)


def test_loader_workers_and_forks_do_not_watch(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[Any] = []
    with (
        training.watched(),
        monkeypatch.context() as spied,
    ):
        spied.setattr(BatchFinder, "offer", lambda _finder, batch: offered.append(batch))
        child = os.fork()
        if child == 0:
            list(loader_of(dataset()))
            os._exit(len(offered))
        assert os.waitpid(child, 0)[1] == 0
        list(loader_of(dataset()))
        assert len(offered) == 6


def test_two_columns_of_one_batch_are_one_draw_of_its_samples(training: Training) -> None:
    first = torch.arange(96.0).reshape(24, 4)
    second = torch.where(torch.arange(24)[:, None] % 2 == 0, first, first + 1000)
    with training.watched():
        for a, b in loader_of(TensorDataset(first, second)):
            loss = training.model(a)["loss"] + training.model(b)["loss"]
            loss.backward()
    assert indices(training) == [[*range(at, at + 4)] for at in range(0, 24, 4)]
    assert [len(step.samples) for step in training.steps] == [4] * 6
