# SPDX-License-Identifier: Apache-2.0
"""One rank of trainings by frameworks whose programs log a loss, in many ways of making one.

Arguments: ranks, the folder for results. Rank 0 writes ``logged.json``: of each training the losses
that it logs, one a step, as their mean over ranks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

import presum
from workers.integrations import (
    BATCH,
    LIGHTNING,
    Causal,
    arguments,
    cross_entropy_sum,
    llama,
    quietly,
)
from workers.launch import QUIET, main, token_rows, write_json

STEPS = 3
Losses = list[float]


def mean_over_ranks(loss: torch.Tensor) -> float:
    value = loss.detach().double().clone()
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


def logs(trainer: Trainer, run: Path) -> Losses:
    """What the Trainer logs after each step."""
    trainer.add_callback(presum.TransformersCallback(run=run, record=QUIET))
    with quietly():
        trainer.train()
    return [logged["loss"] for logged in trainer.state.log_history if "loss" in logged]


def given(micro: int, **more: Any) -> dict[str, Any]:
    changed = {"max_steps": STEPS, "logging_strategy": "steps", "logging_steps": 1}
    return arguments(micro) | changed | more


# ---- the Trainer of transformers


def trainer(run: Path, kind: type[Trainer] = Trainer, micro: int = 2, **more: Any) -> Losses:
    function = more.pop("compute_loss_func", None)
    settings = TrainingArguments(**given(micro, **more))
    made = kind(model=llama(), args=settings, train_dataset=Causal(), compute_loss_func=function)
    return logs(made, run)


class OwnMean(Trainer):
    """Its loss is the mean of each micro-batch."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        loss = model(**inputs).loss
        return (loss, {}) if return_outputs else loss


class Measuring(Trainer):
    """Its loss is the library's."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(*args, **kwargs)


def by_items(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    logits = outputs.logits[:, :-1].flatten(0, 1)
    loss = nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
    return loss / num_items_in_batch


# ---- TRL


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(256)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="w0", eos_token="w1", unk_token="w0"
    )


def sft(run: Path, *, checkpointing: bool) -> Losses:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    rows = [{"input_ids": r.tolist()[: 12 + i % 20]} for i, r in enumerate(token_rows())]
    settings = SFTConfig(
        **given(2, gradient_checkpointing=checkpointing), max_length=None, dataset_num_proc=None
    )
    made = SFTTrainer(
        model=llama(),
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer(),
    )
    return logs(made, run)


def words(row: torch.Tensor, count: int) -> str:
    return " ".join(f"w{token}" for token in row.tolist()[:count])


def dpo(run: Path) -> Losses:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    rows = token_rows()
    pairs = [
        {
            "prompt": words(rows[i], 6) + " ",
            "chosen": words(rows[i + 1], 4 + i % 9),
            "rejected": words(rows[i + 2], 4 + i % 7),
        }
        for i in range(len(rows) - 2)
    ]
    made = DPOTrainer(
        model=llama(),
        ref_model=llama(),
        args=DPOConfig(**given(2, gradient_checkpointing=False)),
        train_dataset=Dataset.from_list(pairs),
        processing_class=tokenizer(),
    )
    return logs(made, run)


def grpo(run: Path) -> Losses:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    prompts = [{"prompt": words(row, 6)} for row in token_rows()]
    settings = GRPOConfig(
        **given(2, gradient_checkpointing=False, num_generations=2, num_iterations=2),
        max_completion_length=6,
        loss_type="dapo",
    )
    made = GRPOTrainer(
        model=llama(),
        reward_funcs=lambda completions, **_: [float(len(set(c))) for c in completions],
        args=settings,
        train_dataset=Dataset.from_list(prompts),
        processing_class=tokenizer(),
    )
    return logs(made, run)


# ---- loops that a framework divides in


def mean_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    count = (batch["labels"][:, 1:] != -100).sum()
    return cross_entropy_sum(model, **batch) / count


def accelerate(run: Path, micro: int) -> Losses:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=micro)
    plain = llama()
    model, optimizer, loader = accelerator.prepare(
        plain, torch.optim.SGD(plain.parameters(), lr=0.1), DataLoader(Causal(), batch_size=BATCH)
    )
    losses: Losses = []
    with presum.attach(model, optimizer=optimizer, run=run, record=QUIET):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = mean_loss(model, batch)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(mean_over_ranks(loss))
            if len(losses) == STEPS * micro:
                break
    return of_steps(losses, micro)


def of_steps(losses: Losses, micro: int) -> Losses:
    return [sum(losses[at : at + micro]) / micro for at in range(0, len(losses), micro)]


class Module(pl.LightningModule):
    def __init__(self, *, sharded: bool) -> None:
        super().__init__()
        self.model, self.sharded, self.losses = llama(), sharded, Losses()

    def configure_model(self) -> None:
        if self.sharded:
            fully_shard(self.model, mesh=self.device_mesh["data_parallel"])  # type: ignore[index]

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        loss = mean_loss(self.model, batch)
        self.losses.append(mean_over_ranks(loss))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def lightning(run: Path, micro: int, *, sharded: bool) -> Losses:
    from lightning.pytorch.strategies import ModelParallelStrategy

    world = dist.get_world_size()
    module = Module(sharded=sharded)
    with quietly():
        pl.Trainer(
            **LIGHTNING,
            devices=world,
            strategy=ModelParallelStrategy(world, 1) if sharded else "ddp",
            max_steps=STEPS,
            accumulate_grad_batches=micro,
            callbacks=[presum.LightningCallback(run=run, record=QUIET)],
        ).fit(module, DataLoader(Causal(), batch_size=BATCH))
    return of_steps(module.losses, 1 if sharded else micro)  # FSDP2 reduces in every pass


TRAININGS: dict[str, Callable[[Path], Losses]] = {
    "trainer": trainer,
    "trainer-own-tokens": lambda run: trainer(run, average_tokens_across_devices=False),
    "trainer-smoothed": lambda run: trainer(run, label_smoothing_factor=0.1),
    "trainer-function": lambda run: trainer(run, compute_loss_func=by_items),
    "trainer-own-mean": lambda run: trainer(run, OwnMean, micro=3),
    "trainer-measuring": lambda run: trainer(run, Measuring),
    "sft": lambda run: sft(run, checkpointing=True),
    "sft-no-checkpointing": lambda run: sft(run, checkpointing=False),
    "dpo": dpo,
    "grpo": grpo,
    "accelerate": lambda run: accelerate(run, 3),
    "lightning": lambda run: lightning(run, 2, sharded=False),
    "lightning-fsdp2": lambda run: lightning(run, 3, sharded=True),
}


def work(rank: int, world: int, out: Path) -> None:
    os.environ["PRESUM_TEST_OUT"] = str(out / "trainer-output")
    os.environ["LOCAL_RANK"] = str(rank)
    logged = {name: train(out / name) for name, train in TRAININGS.items()}
    if rank == 0:
        write_json(out / "logged.json", logged)


if __name__ == "__main__":
    main(work)
