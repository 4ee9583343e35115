# SPDX-License-Identifier: Apache-2.0
"""Faults of the ranks' data: samplers, streams, files, batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, Subset

from faults import data, models
from faults.training import Batch, Training


class OtherSampler(Training):
    """The sampler has other settings, on all ranks or on one."""

    def sampler_settings(self) -> dict[str, Any]:
        changes = dict(self.case.settings)
        if changes.pop("on_culprit_alone", False) and not self.is_culprit:
            changes = {}
        return super().sampler_settings() | changes


class SamplerSeedTimesRank(Training):
    def sampler_settings(self) -> dict[str, Any]:
        return super().sampler_settings() | {"seed": self.seed * self.rank}


class SamplerSeedPlusRank(Training):
    def sampler_settings(self) -> dict[str, Any]:
        return super().sampler_settings() | {"seed": self.seed + self.rank}


class SplitByNode(Training):
    def dataset(self) -> Any:
        return data.Stream(self.records(), first=self.rank // 2, step=self.workers // 2)


class StreamOnEveryRank(Training):
    def dataset(self) -> Any:
        return data.Stream(self.records(), first=0, step=1)


class DuplicatedPair(Training):
    def sampler_settings(self) -> dict[str, Any]:
        first, second = self.roles.pair
        rank = first if self.rank == second else self.rank
        return super().sampler_settings() | {"rank": rank}


class NoSetEpoch(Training):
    """Every epoch has the order of the first one."""

    def begin_epoch(self, sampler: Any, epoch: int) -> None:
        pass


class FileOrder(Training):
    def dataset(self) -> Any:
        return data.Files(self.records(), reverse=self.is_culprit)


class RepeatedMicroBatch(Training):
    """One rank uses its first micro-batch of a step for all micro-batches."""

    def prepare(self, batch: Batch, micro: int) -> Batch:
        if micro == 0:
            self._first = batch
        return self._first if self.at_fault else batch


class OtherNormalization(Training):
    """One rank prepares the whole dataset differently: other means, or another vocabulary."""

    def dataset(self) -> Any:
        return data.Files([self._prepared(item) for item in self.records()])

    def _prepared(self, item: data.Item) -> data.Item:
        if not self.is_culprit:
            return item
        if isinstance(item, list):
            return [(token + 7) % self.corpus.vocabulary for token in item]
        return 2 * item[0] + 1, item[1]


class OwnSubset(Training):
    def dataset(self) -> Any:
        records: Any = data.Files(self.records())
        generator = torch.Generator().manual_seed(self.seed + self.rank)
        order = torch.randperm(len(records), generator=generator).tolist()
        return Subset(records, self._chosen(order))

    def _chosen(self, order: list[int]) -> list[int]:
        return order[: len(order) * 9 // 10]


class LabeledByChance(OwnSubset):
    def _chosen(self, order: list[int]) -> list[int]:
        return sorted(order[: len(order) // 4])


class Undivided(Training):
    """No sampler shards the data: every rank's loader shuffles all of it, with its own seed or a
    common one."""

    def batches(self) -> Any:
        own = 0 if self.case.settings.get("one_seed") else self.rank
        while True:
            yield from DataLoader(
                self.dataset(),
                batch_size=self.configuration.batch,
                shuffle=True,
                collate_fn=self.collate,
                drop_last=True,
                generator=torch.Generator().manual_seed(self.seed + own),
            )


class BatchSamplerShard:
    """Every num_processes-th batch of a batch sampler, as Accelerate shards a loader."""

    def __init__(self, batch_sampler: BatchSampler, num_processes: int, process_index: int) -> None:
        self.batch_sampler = batch_sampler
        self.num_processes, self.process_index = num_processes, process_index

    def __iter__(self) -> Iterator[list[int]]:
        whole = len(self.batch_sampler) // self.num_processes * self.num_processes
        return islice(self.batch_sampler, self.process_index, whole, self.num_processes)


class DataDividedTwice(Training):
    """A loader with a DistributedSampler is sharded among the ranks again."""

    def loader_of(self, dataset: Any, sampler: Any) -> DataLoader[Any]:
        batches = BatchSampler(sampler, self.configuration.batch, drop_last=True)
        shard = BatchSamplerShard(batches, self.workers, self.rank)
        return DataLoader(dataset, batch_sampler=shard, collate_fn=self.collate)


class SamplerOfFewer(Training):
    def sampler_of(self, dataset: Any) -> DistributedSampler[Any]:
        return super().sampler_of(range(len(dataset) * 3 // 4))


class ShuffledBeforeSplit(Training):
    def dataset(self) -> Any:
        own = self.seed + self.rank
        return data.Stream(self.records(), first=self.rank, step=self.workers, seed=own)


class MissingFile(Training):
    def dataset(self) -> Any:
        records = self.records()
        kept = len(records) * 15 // 16 if self.is_culprit else len(records)
        return data.Files(records[:kept])


class LostSeed(Training):
    def sampler_settings(self) -> dict[str, Any]:
        return super().sampler_settings() | {"seed": self.seed + 1000 * self.is_culprit}


class HalfTheWorld(Training):
    def sampler_settings(self) -> dict[str, Any]:
        half = self.workers // 2
        halved = {"num_replicas": half, "rank": self.rank % half} if self.is_culprit else {}
        return super().sampler_settings() | halved


class EpochAhead(Training):
    def begin_epoch(self, sampler: Any, epoch: int) -> None:
        super().begin_epoch(sampler, epoch + self.is_culprit)


class ResumedFromTheStart(Training):
    """After a restart of the loader, the epoch starts again in the same order, on all ranks or on
    one."""

    def batches(self) -> Any:
        before = super().batches()
        if self.is_culprit or not self.case.settings.get("on_culprit_alone"):
            yield from islice(before, self.case.begins)
        yield from super().batches()


class SharedInOtherOrder(DuplicatedPair):
    def prepare(self, batch: Batch, micro: int) -> Batch:
        if self.rank == self.roles.pair[1]:
            batch = {name: rows.flip(0) for name, rows in batch.items()}
        return super().prepare(batch, micro)


class StuckLoader(Training):
    def prepare(self, batch: Batch, micro: int) -> Batch:
        if not self.at_fault:
            self._kept = batch
        return super().prepare({name: rows.clone() for name, rows in self._kept.items()}, micro)


class ConstantBatch(Training):
    """One part of one rank's batches is constant."""

    def prepare(self, batch: Batch, micro: int) -> Batch:
        if self.at_fault:
            part = self.case.settings["part"]
            batch[part] = torch.full_like(batch[part], self.case.settings["value"])
        return super().prepare(batch, micro)


class NotNormalized(Training):
    def prepare(self, batch: Batch, micro: int) -> Batch:
        if self.at_fault:
            batch["inputs"] = 0.45 + 0.25 * batch["inputs"]
        return super().prepare(batch, micro)


class SortedShard(Training):
    def prepare(self, batch: Batch, micro: int) -> Batch:
        if self.at_fault:
            rows = [item for item in self.records()[:512] if int(item[1]) == 0]
            size = len(batch["labels"])
            at = self.step * size % (len(rows) - size)
            batch = data.collate_points(rows[at : at + size])
        return super().prepare(batch, micro)


class TruncatedText(Training):
    def prepare(self, batch: Batch, micro: int) -> Batch:
        if self.at_fault:
            labeled = (batch["labels"] != models.IGNORED).cumsum(1)
            kept = 1 + labeled.amax(1, keepdim=True) // 4
            batch["labels"] = batch["labels"].masked_fill(labeled > kept, models.IGNORED)
        return super().prepare(batch, micro)


class SharedEpisodes(Training):
    def episode_seed(self) -> int:
        return self.seed


class SharedEpisodesOfAPair(Training):
    def episode_seed(self) -> int:
        first, second = self.roles.pair
        return super().episode_seed() + (first - second if self.rank == second else 0)


class UndividedStream(Training):
    """Simulates two processes of each rank's loader that both traverse its whole stream."""

    def dataset(self) -> Any:
        return Echoes(super().dataset(), self.configuration.batch)


class Echoes(IterableDataset[data.Item]):
    """Yields each batch of a stream twice."""

    def __init__(self, stream: Any, batch: int) -> None:
        self._stream, self._batch = stream, batch

    def __iter__(self) -> Iterator[data.Item]:
        items = iter(self._stream)
        while True:
            batch = list(islice(items, self._batch))
            yield from batch + batch


class OneNoise(Training):
    """The model's input is noise that all ranks draw from the same seed, although there is a
    loader."""

    def prepare(self, batch: Batch, micro: int) -> Batch:
        batch = super().prepare(batch, micro)
        generator = torch.Generator().manual_seed(self.step * 64 + micro)
        if "inputs" in batch:
            noise = torch.randn(batch["inputs"].shape, generator=generator)
            return {"inputs": noise, "labels": torch.zeros_like(batch["labels"])}
        shape = batch["input_ids"].shape
        tokens = torch.randint(0, self.corpus.vocabulary, shape, generator=generator)
        return {"input_ids": tokens, "labels": tokens}
