# SPDX-License-Identifier: Apache-2.0
"""Norms that a program clips by, or reports."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from presum.steps.setup import RecorderSetup
from presum.torch_events.losses import Scalar

L2 = 2.0
NORMS_SAMPLED = 25  # one norm in this many is compared with the norm of the gradients


class ClipNorms:
    """The norms by which one model's gradients are clipped in the current step."""

    def __init__(self, setup: RecorderSetup) -> None:
        self._setup = setup
        self._fingerprints = setup.fingerprints
        self._told: dict[str, int] = {}  # the number of reports per name

    def clips(
        self, parameters: Sequence[torch.Tensor], norm: object, limit: object, kind: float | None
    ) -> None:
        """Gradients are about to be clipped. Counts only if ``parameters`` are all of the
        model's."""
        if not (self._setup.observer.in_window or self._setup.observer.open):
            return
        own = {id(p) for _, p in self._setup.alive() if p.grad is not None}
        if own and own == {id(p) for p in parameters if p.grad is not None}:
            known = math.nan if kind is None or kind < 1 else kind
            self._fingerprints.forget("clipped_share")  # of an earlier call in this step
            self._norm("clip_norm", norm, "clipped_norm", L2 if math.isnan(known) else known)
            self._fingerprints.norm("clip_limit", limit)
            of_squares = math.isnan(known) or known == L2
            if of_squares and self._told["clip_norm"] % NORMS_SAMPLED == 1:
                self._fingerprints.share_of(
                    "clipped_share", self._gradients(), self._setup.replicas
                )
            self._fingerprints.forget("clip_norm_type")
            if known != L2:
                self._fingerprints.norm("clip_norm_type", known)

    def told(self, norm: Scalar) -> None:
        """The program's own norm of the reduced gradient."""
        self._norm("grad_norm_told", norm, "grad_norm_then")

    def _norm(self, name: str, norm: object, of_gradients: str, kind: float = L2) -> None:
        """A norm that the program uses; every NORMS_SAMPLED-th time with the current norm of the
        gradients."""
        times = self._told[name] = self._told.get(name, 0) + 1
        self._fingerprints.norm(name, norm)
        self._fingerprints.forget(of_gradients)  # of an earlier call in this step
        if times % NORMS_SAMPLED == 1:
            self._fingerprints.norm_of(of_gradients, self._gradients(), kind)

    def _gradients(self) -> list[torch.Tensor]:
        return [p.grad for _, p in self._setup.alive() if p.grad is not None]
