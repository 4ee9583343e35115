# SPDX-License-Identifier: Apache-2.0
"""Selects the micro-batches to recompute, and reports the results."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from presum.fingerprints.families import KIND
from presum.steps.gradient_source import in_backward
from presum.steps.recompute import Recomputation
from presum.steps.setup import RecorderSetup
from presum.torch_events.hooks import EventListener, Hook


class Verification:
    """Verifies the first micro-batch of one in ``every`` recorded steps of one model."""

    def __init__(self, setup: RecorderSetup, every: int) -> None:
        self._setup = setup
        self._every = every
        self._recomputation = Recomputation(setup)
        self.pass_ended = self._recomputation.pass_ended

    def hook(self, recorder: EventListener, inner: nn.Module) -> list[Any]:
        """The handles of its hooks, which the recorder removes."""
        keep, gave = Hook(recorder, self._keep), Hook(recorder, self._gave)
        return [
            inner.register_forward_pre_hook(keep, with_kwargs=True),
            inner.register_forward_hook(gave),
        ]

    def verify(self, inner: nn.Module) -> None:
        """Before the optimizer step: recompute the kept micro-batch, if there is one."""
        verdict = self._recomputation.verdict(inner)
        if verdict is None:
            return
        self._setup.fingerprints.tell([(KIND["recomputed"], verdict.answer)])
        if verdict.different:
            text = verdict.text(len(self._setup.names))
            self._setup.observer.fact("recomputed_different", text)
            self._setup.hello()

    def _keep(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        observer = self._setup.observer
        if in_backward() or not torch.is_grad_enabled() or not module.training:
            return
        due = observer.window_begins and observer.next_is_recorded
        if due and observer.turn // self._setup.every % self._every == 0:
            self._recomputation.keep(module, args, kwargs)

    def _gave(self, _module: nn.Module, _args: Any, output: Any) -> None:
        if not in_backward():
            self._recomputation.gave(output)
