# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the callbacks for training frameworks."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from presum.frameworks.closing import why_refused
from presum.monitor import Monitor
from presum.options import Record
from presum.parallel.targets import is_watched, outermost_fsdp
from presum.torch_events.losses import kept_value
from presum.torch_events.taps import TAPS, TappedFunction

LIBRARIES = ("transformers", "trl")


class TrainerTap:
    """Observes how the Trainer of transformers normalizes losses. Its callbacks do not receive the
    trainer."""

    def __init__(self) -> None:
        self._tap: TappedFunction | None = None
        self._losses: dict[type, TappedFunction] = {}
        self._training = False

    def apply(self) -> None:
        """A second call does nothing."""
        if self._tap is None:
            from transformers import Trainer

            self._tap = TappedFunction(
                Trainer, "training_step", before=self._begin, always=self._end
            )
            self._tap.apply()

    def _begin(self, trainer: Any, *_args: Any, **_kwargs: Any) -> None:
        self._training = True
        steps = trainer.args.gradient_accumulation_steps
        TAPS.passes_added_up = float(getattr(trainer, "current_gradient_accumulation_steps", steps))
        for kind in type(trainer).__mro__:
            if "compute_loss" in vars(kind) and kind not in self._losses and _is_of_library(kind):
                tap = TappedFunction(kind, "compute_loss", before=self._computes_loss)
                self._losses[kind] = tap
                tap.apply()

    def _computes_loss(
        self,
        trainer: Any,
        _model: Any,
        inputs: Any,
        _outputs: bool = False,
        num_items_in_batch: Any = None,
        **kwargs: Any,
    ) -> None:
        """A library's loss is divided by the token count that it receives, unless the batch has its
        own count. A program's own loss can be divided by anything."""
        own = isinstance(inputs, Mapping) and "num_items_in_batch" in inputs
        if not self._training or num_items_in_batch is None or own:
            return
        TAPS.items = kept_value(num_items_in_batch)
        averages = getattr(trainer.args, "average_tokens_across_devices", False)
        TAPS.loss_factor = float(_data_parallel(trainer)) if averages else 1.0
        # Releases without that attribute count all labels.
        TAPS.shifts_labels = getattr(trainer, "_loss_shifts_labels", False)
        if isinstance(inputs, Mapping) and _smooths_by_items(trainer):
            TAPS.labels = inputs.get("labels")

    def _end(self) -> None:
        self._training = False
        TAPS.items, TAPS.loss_factor, TAPS.shifts_labels = None, 1.0, None
        TAPS.labels = TAPS.passes_added_up = None


def _is_of_library(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in LIBRARIES


def _smooths_by_items(trainer: Any) -> bool:
    """Whether the library computes the loss of smoothed labels itself, without passing labels to
    the model."""
    smoother = getattr(trainer, "label_smoother", None)
    if smoother is None or getattr(trainer, "compute_loss_func", None) is not None:
        return False
    return "num_items_in_batch" in inspect.signature(smoother).parameters


def _data_parallel(trainer: Any) -> int:
    tensor_parallel = trainer.get_tp_size() if hasattr(trainer, "get_tp_size") else 1
    return int(trainer.accelerator.num_processes // tensor_parallel)


TRAINER_TAP = TrainerTap()


class TrainingWatcher:
    """Attaches the model of one training, and closes its monitor."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self.monitors: list[Monitor] = []

    def begin(self, model: nn.Module, *, optimizer: Any, scaler: Any = None) -> None:
        """Attach the model. If that fails, print the reason and let training continue. The user's
        optimizer and scaler take precedence over those of the framework."""
        from presum.attaching import attach

        record = self._options.get("record") or Record()
        if isinstance(record, Record) and record.scaler is None:
            record = replace(record, scaler=scaler)
        arguments = {"optimizer": optimizer, **self._options, "record": record}
        models = [model] if isinstance(model, DistributedDataParallel) else outermost_fsdp(model)
        if not models:
            why = why_refused(model) or "neither DDP nor FSDP2 wraps it"
            self._say(f"presum: {type(model).__name__} is not recorded: {why}")
        for one in models:
            if is_watched(one):
                continue
            try:
                self.monitors.append(attach(one, **arguments))
            except Exception as error:
                self._say(str(error) if isinstance(error, ValueError) else f"presum: {error!r}")

    def end(self) -> None:
        monitors, self.monitors = self.monitors, []
        for monitor in monitors:
            monitor.close()

    def _is_quiet(self) -> bool:
        record = self._options.get("record")
        return isinstance(record, Record) and record.quiet

    def _say(self, text: str) -> None:
        if os.environ.get("RANK", "0") == "0" and not self._is_quiet():
            print(text, file=sys.stderr, flush=True)
