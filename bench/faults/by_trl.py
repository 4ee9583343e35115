# SPDX-License-Identifier: Apache-2.0
"""A training in the loop of TRL's SFTTrainer, with its loss."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset  # type: ignore[import-untyped]
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

import presum
from faults.by_trainer import StepByStep, arguments_of, run

if TYPE_CHECKING:
    from faults.training import Training


class SftStepByStep(StepByStep, SFTTrainer):
    """TRL's trainer and loss, with a training's methods at their places."""

    def loss_of(self, model: Any, inputs: Any) -> torch.Tensor:
        """TRL's loss of one micro-batch."""
        inputs = {"attention_mask": torch.ones_like(inputs["input_ids"])} | inputs
        return SFTTrainer.compute_loss(self, model, inputs)  # type: ignore[no-untyped-call,no-any-return]


def train(training: Training, folder: Path, how: dict[str, Any], tick: Callable[[], None]) -> None:
    """Run all steps, with presum's callback."""
    with tempfile.TemporaryDirectory() as out:
        arguments = SFTConfig(
            **arguments_of(training, out),
            activation_checkpointing=False,
            bf16=False,
            dataset_kwargs={"skip_prepare_dataset": True},
        )
        words = WordLevel({"<end>": 0}, unk_token="<end>")
        tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=Tokenizer(words), eos_token="<end>", pad_token="<end>"
        )
        rows = Dataset.from_dict({"input_ids": [[0]], "labels": [[0]]})  # StepByStep has its own
        more = {"train_dataset": rows, "processing_class": tokenizer}
        watcher = presum.TransformersCallback(run=folder, **how)
        run(SftStepByStep, training, watcher, tick, arguments, **more)
