# SPDX-License-Identifier: Apache-2.0
"""One worker of trainings by frameworks that accumulate gradients themselves, with exact sums.

Arguments: workers, the folder for results. Rank 0 writes ``parameters.json``, a hash for each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import lightning
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import Trainer, TrainingArguments

import presum
from presum.parallel.sampler import MicroBatchSampler
from workers.integrations import LIGHTNING, arguments, digest, llama
from workers.launch import QUIET, main, write_json

MICRO_BATCHES = 8  # a step, over all workers
SIZE = 4
STEPS = 10


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))


def data() -> TensorDataset:
    torch.manual_seed(1)
    rows = SIZE * MICRO_BATCHES * STEPS
    return TensorDataset(torch.randn(rows, 16), torch.randn(rows, 4))


def accelerate(run: Path, _rank: int, world: int) -> str:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICRO_BATCHES // world)
    plain = layers()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(
        plain, optimizer, DataLoader(data(), batch_size=SIZE)
    )
    with presum.attach(model, optimizer=optimizer, run=run, reduction="exact", record=QUIET):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.mse_loss(model(x), y))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    return digest(model.parameters())


def trainer(run: Path, _rank: int, world: int) -> str:
    model = llama()
    rows = torch.randint(0, 256, (SIZE * MICRO_BATCHES * STEPS, 16))
    given = arguments(MICRO_BATCHES // world) | {"per_device_train_batch_size": SIZE}
    Trainer(
        model=model,
        args=TrainingArguments(**given | {"max_steps": STEPS}),
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
        callbacks=[presum.TransformersCallback(run=run, reduction="exact", record=QUIET)],
    ).train()
    return digest(model.parameters())


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = layers()

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        return nn.functional.mse_loss(self.layers(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def by_lightning(run: Path, rank: int, world: int) -> str:
    rows, model = data(), Module()
    sampler = MicroBatchSampler(
        rows, size=SIZE, micro_batches=MICRO_BATCHES, workers=world, rank=rank
    )
    lightning.Trainer(
        **LIGHTNING,
        devices=world,
        strategy="ddp",
        max_epochs=1,
        accumulate_grad_batches=MICRO_BATCHES // world,
        gradient_clip_val=1.0,
        use_distributed_sampler=False,
        callbacks=[presum.LightningCallback(run=run, reduction="exact", record=QUIET)],
    ).fit(model, DataLoader(rows, batch_sampler=sampler))
    return digest(model.parameters())


FRAMEWORKS: dict[str, Callable[[Path, int, int], str]] = {
    "accelerate": accelerate,
    "trainer": trainer,
    "lightning": by_lightning,
}


def work(rank: int, world: int, out: Path) -> None:
    os.environ |= {"LOCAL_RANK": str(rank), "PRESUM_TEST_OUT": str(out / "trainer-output")}
    found = {name: train(out / name, rank, world) for name, train in FRAMEWORKS.items()}
    if rank == 0:
        write_json(out / "parameters.json", found)


if __name__ == "__main__":
    main(work)
