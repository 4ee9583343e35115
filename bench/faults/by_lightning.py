# SPDX-License-Identifier: Apache-2.0
"""A training in the loop of Lightning's Trainer."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy

import presum
from faults.batches import Batches

if TYPE_CHECKING:
    from faults.training import Training


def train(training: Training, folder: Path, how: dict[str, Any], tick: Callable[[], None]) -> None:
    """Run all steps, with presum's callback."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    watcher = presum.LightningCallback(run=folder, **how)
    module = Module(training)
    batches = Batches(training, lambda: (trainer.strategy.model, watcher.monitors[0]))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=training.workers,
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_steps=training.configuration.steps,
        accumulate_grad_batches=training.configuration.micro_batches,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        callbacks=[_Ticks(tick, training.configuration.micro_batches), watcher],
    )
    trainer.fit(module, batches)


class Module(lightning.LightningModule):
    """Calls a training's methods at the places where the training's own loop does."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.model = training.model
        self._trained_as = [training]  # in a list, so that it does not register as a module

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        training = self._trained_as[0]
        training.backward(training.weigh(training.forward(batch), batch))
        return training.loss  # type: ignore[no-any-return]

    def configure_optimizers(self) -> Any:
        return self._trained_as[0].optimizer


class _Ticks(lightning.Callback):
    def __init__(self, tick: Callable[[], None], micro_batches: int) -> None:
        self._tick, self._micro_batches = tick, micro_batches

    def on_train_batch_end(
        self, _trainer: Any, _module: Any, _outputs: Any, _batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % self._micro_batches == 0:
            self._tick()

    def on_train_end(self, *_: Any) -> None:
        dist.barrier()  # before presum's callback, because some ranks may end early
