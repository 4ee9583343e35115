# SPDX-License-Identifier: Apache-2.0
"""What FSDP2's reduce-scatter really does: ``attach(audit=N)``, docs/audit.md.

Each worker compares a sample of its own shard with the exact sum of what all put in for it. The
function that a parameter group calls is wrapped, for as long as the model lives.
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
    """As :class:`FsdpSource`, and audits what FSDP2 sums."""

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
    """Which group of which backward pass is audited: by what FSDP does alike on all workers."""

    def __init__(
        self,
        groups: Sequence[Any],
        audits: Audits,
        source: FsdpSource,
        whole: Callable[[], bool],
    ) -> None:
        """``whole`` tells whether what is handed over now is all that a shard is the sum of."""
        self.audits = audits
        self._source = weakref.ref(source)
        self._whole = whole
        self._pass = -1
        self._passes = -1  # that reduced, before the one under way
        self._calls = 0
        TAPS.add()  # for good
        for group in groups:
            group._reduce_scatter_comm = AuditedReduceScatter(group._reduce_scatter_comm, self)

    def due(self) -> bool:
        """Whether the call that begins is to be audited."""
        if self._pass != TAPS.backward_passes:
            self._pass = TAPS.backward_passes
            self._passes += 1
            self.audits.buckets = max(1, self._calls)
            self._calls = 0
        self._calls += 1
        return self.audits.due(self._passes, self._calls - 1) and self._whole()

    def tell(self, make_audit: Callable[[], Any]) -> None:
        """Has an audit made, unless the recording has ended here."""
        source = self._source()
        if source is not None and not source.recorder.off:
            recorder = source.recorder
            Hook(recorder, lambda: recorder.add_audit(make_audit()))()


class AuditedReduceScatter(ReduceScatterStandIn):
    """Calls the one inside, and has what it did compared."""

    def __init__(self, inside: Any, auditor: FsdpAuditor) -> None:
        super().__init__(inside)
        self._auditor = auditor
        # Only torch's own is known to do the same when it is called once more.
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
