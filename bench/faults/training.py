# SPDX-License-Identifier: Apache-2.0
"""A run without a fault, divided into small methods that injectors override."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import presum
from experiments.s1 import template
from faults import by_zero_code, data, models
from faults.methods import as_on_rank_0, reducing, sharded
from faults.plan import Case, Configuration, Roles

if TYPE_CHECKING:
    from accelerate import Accelerator

LEARNING_RATE = 3e-3
Batch = dict[str, Tensor]


class Training:
    """One clean run on this rank. REQUIRES: an initialized process group.

    All ranks share the sampler's seed; every random number generator is seeded by rank.
    """

    # Ways of training in which what an injector changes is right, so that there is no fault.
    right_in: ClassVar[tuple[str, ...]] = ()
    calls_presum: ClassVar[bool] = False  # beyond attaching, which a program without code cannot

    def __init__(self, case: Case, corpus: data.Corpus, *, seed: int) -> None:
        self.case = case
        self.configuration: Configuration = case.configuration
        self.corpus = corpus
        self.seed = seed
        self.rank = dist.get_rank()
        self.workers = dist.get_world_size()
        self.roles = Roles(self.workers)
        self.step = 0
        self.loss: Any = None
        self.loss_of: Any = None  # TRL's

    def run(self, folder: Path, *, tick: Callable[[], None]) -> None:
        """Train all steps with presum attached; ``tick`` is called after each."""
        self.seed_generators()
        how = self.configuration.watched()
        if self.configuration.way == "zero-code":
            by_zero_code.watch_next(folder, **how)
        self.model = self.build()
        self.ddp = self.wrap(self.model)
        trained = [p for p in self.ddp.parameters() if p.requires_grad]
        self.optimizer = self.optimizer_of(trained)
        if self.configuration.way == "accelerate":
            self.optimizer = self.accelerator.prepare(self.optimizer)
        if self.configuration.frameworks_loop:
            by = import_module(f"faults.by_{self.configuration.way}")
            by.train(self, folder, how, tick)
            return
        if self.configuration.way == "zero-code":
            try:
                self._train(tick)
            finally:
                by_zero_code.end()
            return
        self.monitor = presum.attach(self.ddp, optimizer=self.optimizer, run=folder, **how)
        with self.monitor:
            self._train(tick)

    def _train(self, tick: Callable[[], None]) -> None:
        with torch.no_grad():
            self.begin()
        batches = self.batches()
        for step in range(self.configuration.steps):
            self.step = step
            with torch.no_grad():
                self.before_step()
            self.optimizer.zero_grad()
            for micro in range(self.configuration.micro_batches):
                self._micro_batch(self.prepare(next(batches), micro), micro)
            self.update()
            tick()
        # without a reduction some ranks end early, and the others would be missing
        dist.barrier()

    def _micro_batch(self, batch: Batch, micro: int) -> None:
        with reducing(self.ddp, self.synchronizes(micro)):
            loss = self.weigh(self.forward(batch), batch)
            self.backward(loss / self.configuration.micro_batches)
        if self.configuration.way == "by-hand" and self.synchronizes(micro):
            self._reduce_by_hand()

    def _reduce_by_hand(self) -> None:
        gradients = [(n, p.grad) for n, p in self.model.named_parameters() if p.grad is not None]
        self.monitor.before_reduction(gradients)
        mean = self.mean_of(torch.cat([gradient.flatten() for _, gradient in gradients]))
        parts = torch.split(mean, [gradient.numel() for _, gradient in gradients])
        for (_, gradient), part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        self.monitor.after_reduction(gradients)

    @property
    def begun(self) -> bool:
        """Whether the fault has begun."""
        return self.step >= self.case.begins

    @property
    def is_culprit(self) -> bool:
        """Whether this is the single rank at fault."""
        return self.rank == self.roles.culprit

    @property
    def at_fault(self) -> bool:
        """Whether this is the rank at fault and the fault has begun."""
        return self.begun and self.is_culprit

    # ---- methods that injectors override

    def generator_seed(self, generator: str) -> int:
        """The seed of "torch", "numpy" or "python" on this rank."""
        return self.seed + 1 + self.rank

    def build(self) -> nn.Module:
        """The model before it is wrapped."""
        kind, dropout = self.configuration.model, self.configuration.dropout
        others = {"policy": models.Policy, "mlp": models.perceptron, "cnn": models.convolution}
        if kind in others:
            return others[kind](dropout=dropout)
        if self.configuration.way == "trl":
            return models.causal_transformer(
                vocabulary=self.corpus.vocabulary, length=data.MAX_LENGTH, dropout=dropout
            )
        model = models.LanguageModel(
            vocabulary=self.corpus.vocabulary,
            length=data.MAX_LENGTH,
            dropout=dropout,
            batch_norm=kind == "batch-norm",
            adapter=kind == "adapter",
        )
        if kind == "adapter":
            model.requires_grad_(False)
            model.adapter.requires_grad_(True)
        return model

    @property
    def part(self) -> str:
        """The name of a module of the model that has parameters."""
        if self.configuration.way == "trl":
            return "transformer.h.0.mlp"
        return "head" if self.configuration.model in ("mlp", "cnn", "policy") else "mlp"

    def optimizer_of(self, trained: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer."""
        return torch.optim.AdamW(trained, lr=LEARNING_RATE)

    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        """The model to train; with FSDP2 it has other methods than DDP's."""
        if self.configuration.augmentation == "noise":
            model.get_submodule(self.part).register_forward_pre_hook(models.add_noise)
        way = self.configuration.way
        if self.configuration.shards:
            return sharded(model, self.part, way)  # type: ignore[no-any-return]
        if way == "by-hand":
            return as_on_rank_0(model)  # type: ignore[return-value]
        if self.configuration.frameworks_loop:
            return model  # type: ignore[return-value]
        if way == "accelerate":
            return self.accelerator.prepare(model)  # type: ignore[no-any-return]
        return DistributedDataParallel(model)

    @cached_property
    def accelerator(self) -> Accelerator:
        """In one process group, as for all runs."""
        from accelerate import Accelerator

        return Accelerator(cpu=True)

    def begin(self) -> None:
        """Called before the first step, with presum attached."""

    def records(self) -> list[data.Item]:
        """The whole dataset, or its first part if epochs are short."""
        kind, share = self.configuration.data, self.configuration.epoch_steps
        if kind in ("points", "point-stream"):
            everything: list[data.Item] = data.labeled_points(self.seed)
        else:
            everything = self.corpus.examples if kind == "instructions" else self.corpus.blocks
        return everything[: share * self.configuration.batch * self.workers or None]

    def dataset(self) -> Any:
        """The loader's dataset."""
        if self.streams:
            return data.Stream(self.records(), first=self.rank, step=self.workers)
        return data.Files(self.records())

    @property
    def streams(self) -> bool:
        """Whether the data are a stream, without a sampler."""
        return self.configuration.data.endswith("stream")

    def sampler_settings(self) -> dict[str, Any]:
        """The arguments of DistributedSampler."""
        return {"num_replicas": self.workers, "rank": self.rank, "seed": self.seed}

    def episode_seed(self) -> int:
        """The seed of the environment."""
        return self.seed + 1 + self.rank

    def begin_epoch(self, sampler: Any, epoch: int) -> None:
        """Called before each pass over the data."""
        if sampler is not None:
            sampler.set_epoch(epoch)

    def before_step(self) -> None:
        """Called before each step's first forward."""

    def prepare(self, batch: Batch, micro: int) -> Batch:
        """A micro-batch for the model, possibly with a randomly masked token."""
        if self.configuration.augmentation in ("numpy", "python"):
            name, nothing = (
                ("inputs", 0) if "inputs" in batch else ("input_ids", self.corpus.pad_id)
            )
            batch[name][:, self._random_position(batch[name].shape[1])] = nothing
        return batch

    def synchronizes(self, micro: int) -> bool:
        """Whether this micro-batch's backward pass reduces the gradients."""
        return micro == self.configuration.micro_batches - 1

    def forward(self, batch: Batch) -> Tensor:
        """The loss."""
        if self.configuration.way == "trl":
            return self.loss_of(self.ddp, batch)  # type: ignore[no-any-return]
        wrapped = self.configuration.way != "lightning"  # Lightning has called the wrapper itself
        return (self.ddp if wrapped else self.model)(**batch)["loss"]  # type: ignore[no-any-return]

    def weigh(self, loss: Tensor, batch: Batch) -> Tensor:
        """The loss whose mean over the ranks is minimized."""
        if not self.configuration.token_weighted:
            return loss
        tokens = (batch["labels"][:, 1:] != models.IGNORED).sum()
        total = tokens.clone()
        dist.all_reduce(total)
        if self.configuration.way != "zero-code":
            self.monitor.loss(loss, weight=float(tokens))
        return loss * tokens * self.workers / total

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient of one micro-batch."""
        if self.configuration.way == "accelerate":
            self.accelerator.backward(loss)
        elif self.configuration.frameworks_loop:
            self.loss = loss  # the framework continues
        else:
            loss.backward()  # type: ignore[no-untyped-call]

    def mean_of(self, gradients: Tensor) -> Tensor:
        """The mean over the ranks, if the program itself reduces."""
        dist.all_reduce(gradients)
        return gradients / self.workers

    def update(self) -> None:
        """Apply the reduced gradient."""
        self.optimizer.step()

    # ---- the rest

    def batches(self) -> Iterator[Batch]:
        """This rank's batches, epoch after epoch, without end."""
        if self.configuration.data == "episodes":
            yield from self._episodes()
        dataset = self.dataset()
        sampler = None if self.streams else self.sampler_of(dataset)
        loader = self.loader_of(dataset, sampler)
        for epoch in itertools.count():
            self.begin_epoch(sampler, epoch)
            yield from loader

    def loader_of(self, dataset: Any, sampler: Any) -> DataLoader[Any]:
        """The loader."""
        size = self.configuration.batch
        return DataLoader(dataset, size, sampler=sampler, collate_fn=self.collate, drop_last=True)

    def sampler_of(self, dataset: Any) -> DistributedSampler[Any]:
        """The sampler of a dataset."""
        return DistributedSampler(dataset, **self.sampler_settings())

    def _episodes(self) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(self.episode_seed())
        shape = self.configuration.batch, models.FEATURES
        while True:
            yield {"states": torch.randn(shape, generator=generator)}

    @property
    def collate(self) -> Callable[[Any], Batch]:
        """The collate function."""
        if self.configuration.data in ("points", "point-stream"):
            return data.collate_points
        if self.configuration.data == "instructions":
            return partial(template.collate, pad_id=self.corpus.pad_id)
        return data.collate_blocks

    def _random_position(self, length: int) -> int:
        if self.configuration.augmentation == "numpy":
            return int(np.random.randint(length))
        return random.randrange(length)

    def seed_generators(self) -> None:
        """Seed all generators for this rank."""
        torch.manual_seed(self.generator_seed("torch"))
        np.random.seed(self.generator_seed("numpy"))
        random.seed(self.generator_seed("python"))
