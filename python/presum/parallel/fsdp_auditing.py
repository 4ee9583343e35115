# SPDX-License-Identifier: Apache-2.0
"""Audits FSDP2's reduce-scatter: ``attach(audit=N)``, docs/audit.md.

Each rank compares a sample of its own shard with the exact sum of all ranks' inputs to it. presum
wraps the function that a parameter group calls, for as long as the model lives.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from presum.parallel.auditing import Audits, audit_result
from presum.parallel.fsdp import FsdpSource, ReduceScatterStandIn, parameter_groups
from presum.torch_events.hooks import Hook
from presum.torch_events.taps import TAPS


class FsdpAuditingSource(FsdpSource):
    """A :class:`FsdpSource` that also audits FSDP2's sums."""

    def __init__(self, model: nn.Module, audits: Audits) -> None:
        super().__init__(model)
        self._audits = audits
        self._auditor: FsdpAuditor | None = None

    def hook(self) -> list[Any]:
        if self._auditor is None:
            groups = list(parameter_groups(self.model()))
            self._auditor = FsdpAuditor(groups, self._audits, self, lambda: True)
        return super().hook()


class FsdpAuditor:
    """Decides which group of which backward pass is audited, from what FSDP does alike on all
    ranks."""

    def __init__(
        self,
        groups: Sequence[Any],
        audits: Audits,
        source: FsdpSource,
        whole: Callable[[], bool],
    ) -> None:
        """``whole`` returns whether the current input is everything that a shard is the sum of."""
        self.audits = audits
        self._source = weakref.ref(source)
        self._whole = whole
        self._pass = -1
        self._passes = -1  # that reduced, before the current one
        self._calls = 0
        TAPS.add()  # permanent
        for group in groups:
            group._reduce_scatter_comm = AuditedReduceScatter(group._reduce_scatter_comm, self)

    def due(self) -> bool:
        """Whether to audit the call that begins."""
        if self._pass != TAPS.backward_passes:
            self._pass = TAPS.backward_passes
            self._passes += 1
            self.audits.buckets = max(1, self._calls)
            self._calls = 0
        self._calls += 1
        return self.audits.due(self._passes, self._calls - 1) and self._whole()

    def tell(self, make_audit: Callable[[], Any]) -> None:
        """Make an audit, unless the recording on this rank has ended."""
        source = self._source()
        if source is not None and not source.recorder.off:
            recorder = source.recorder
            Hook(recorder, lambda: recorder.add_audit(make_audit()))()


class AuditedReduceScatter(ReduceScatterStandIn):
    """Calls the reduce-scatter inside, and audits the result."""

    def __init__(self, inside: Any, auditor: FsdpAuditor) -> None:
        super().__init__(inside)
        self._auditor = auditor
        # Only torch's own is known to do the same when called twice.
        self._repeats = type(inside).__module__.startswith("torch.")

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        known = op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG)
        if not self._auditor.due() or async_op or not known:
            return self.inside(output_tensor, input_tensor, group, op, async_op)
        divisor = group.size() if op == dist.ReduceOp.AVG else 1
        gathering = self._auditor.audits.exchange(input_tensor, group, divisor)
        again = None
        if self._repeats:
            again = torch.empty_like(output_tensor)
            self.inside(again, input_tensor.clone(), group, op)
        done = self.inside(output_tensor, input_tensor, group, op)
        gathering.done.wait()
        self._auditor.tell(lambda: audit_result(gathering, output_tensor, again))
        return done
