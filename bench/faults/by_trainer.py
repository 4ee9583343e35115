# SPDX-License-Identifier: Apache-2.0
"""A training in the loop of the Trainer of transformers."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import IntervalStrategy

import presum
from faults.batches import Batches

if TYPE_CHECKING:
    from faults.training import Training


def train(training: Training, folder: Path, how: dict[str, Any], tick: Callable[[], None]) -> None:
    """Run all steps, with presum's callback."""
    with tempfile.TemporaryDirectory() as out:
        arguments = TrainingArguments(**arguments_of(training, out))
        run(StepByStep, training, presum.TransformersCallback(run=folder, **how), tick, arguments)


def arguments_of(training: Training, out: str) -> dict[str, Any]:
    """The arguments of TrainingArguments, with a folder that nothing is kept in."""
    return {
        "output_dir": out,
        "use_cpu": True,
        "max_steps": training.configuration.steps,
        "gradient_accumulation_steps": training.configuration.micro_batches,
        "max_grad_norm": 0.0,
        "remove_unused_columns": False,
        "save_strategy": IntervalStrategy.NO,
        "logging_strategy": IntervalStrategy.NO,
        "report_to": [],
        "disable_tqdm": True,
        "ddp_find_unused_parameters": False,
    }


def run(
    kind: type[StepByStep],
    training: Training,
    watcher: presum.TransformersCallback,
    tick: Callable[[], None],
    arguments: TrainingArguments,
    **others: Any,
) -> None:
    """Run all steps in a trainer of this kind."""
    constant = torch.optim.lr_scheduler.LambdaLR(training.optimizer, lambda _: 1.0)
    trainer = kind(
        model=training.model,
        args=arguments,
        callbacks=[_Ticks(tick), watcher],
        optimizers=(training.optimizer, constant),
        **others,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.training, trainer.watcher = training, watcher
    training.loss_of = trainer.loss_of
    training.seed_generators()  # the Trainer has made them equal on all ranks
    trainer.train()


class StepByStep(Trainer):
    """Calls a training's methods at the places where the training's own loop does."""

    training: Training
    watcher: presum.TransformersCallback
    loss_of: Any = None  # of a trainer that computes the loss itself

    def get_train_dataloader(self) -> Any:
        self._micro_batches = itertools.cycle(range(self.args.gradient_accumulation_steps))
        return Batches(self.training, self._attached, ahead=True)

    def _attached(self) -> tuple[Any, Any]:
        return self.model_wrapped, self.watcher.monitors[0]

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
        self.training.ddp = model
        inputs = self.training.prepare(inputs, next(self._micro_batches))
        self.training.backward(self.training.weigh(self.training.forward(inputs), inputs))
        return self.training.loss  # type: ignore[no-any-return]


class _Ticks(TrainerCallback):
    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._tick()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        dist.barrier()  # before presum's callback, because some ranks may end early
