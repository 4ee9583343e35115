# SPDX-License-Identifier: Apache-2.0
"""presum's communication hook on a DistributedDataParallel module, for audits and for sums.

It divides as DDP does, so that parameters get the same bits as without a hook: DDP multiplies by
1/W when it copies a gradient into its bucket. If gradients are views of their buckets, DDP
sometimes divides instead, which a hook cannot see; with bucket views W must therefore be a power of
two, for which both give the same bits.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from presum.parallel.auditing import Audits, MakeAudit
from presum.parallel.ddp import DdpSource, HoldsHook
from presum.torch_events.taps import ReplacedFunction

CommHook = Callable[[Any, GradBucket], Future[torch.Tensor]]


class DdpAuditingSource(DdpSource):
    """A :class:`DdpSource` that also audits the reduction."""

    def __init__(
        self, model: DistributedDataParallel, group: dist.ProcessGroup, audits: Audits
    ) -> None:
        super().__init__(model)
        self._state = HookState(group, weakref.ref(self), audits)
        self._installed = False

    def hook(self) -> list[Any]:
        if not self._installed:
            self._installed = True
            COMM_HOOKS.install(self.model(), self._state)
        return super().hook()


class HookState(HoldsHook):
    """What DDP holds of presum for as long as the model lives; the recording may end earlier.

    Copies and pickles of it do nothing, so that models can still be copied and pickled.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        source: Callable[[], Any] = lambda: None,
        audits: Audits | None = None,
    ) -> None:
        self.group = group
        self.inner = None  # the hook that the user registered
        self.passes = 0  # backward passes that were reduced
        self.audits = audits
        self._source = source

    def __reduce__(self) -> tuple[Any, ...]:
        return (HookState, ())

    def takes_another(self) -> bool:
        """Whether a hook that the user registers can run inside this one."""
        return self.inner is None

    def reduce(self, bucket: GradBucket) -> Future[torch.Tensor]:
        """Reduce one bucket as ``inner`` does, or as DDP does without a hook."""
        audits = self._audit_is_due(bucket) and not bucket.buffer().is_sparse
        self.passes += bucket.is_last()
        if not audits:
            return self._reduce(bucket)
        source = self._source()
        with contextlib.nullcontext() if source is None else source.recorder:
            local = bucket.buffer().detach().clone()
        return self._audited(bucket, local)

    def _audit_is_due(self, bucket: GradBucket) -> bool:
        audits = self.audits
        if audits is None:
            return False
        due = audits.due(self.passes, bucket.index())
        if bucket.is_last():
            audits.buckets = bucket.index() + 1
        return due

    def _audited(self, bucket: GradBucket, local: torch.Tensor) -> Future[torch.Tensor]:
        assert self.audits is not None
        gathering = self.audits.gather(local, self.group)
        again = None if self.inner is not None else self._mean(local.clone())
        return self.audits.follow(gathering, self._reduce(bucket), again, self.tell)

    def tell(self, make_audit: MakeAudit) -> None:
        """Make an audit, if the recording is still active. Called by several threads."""
        source = self._source()
        if source is not None and not source.recorder.off:
            try:
                source.recorder.add_audit(make_audit())
            except Exception as error:
                source.recorder.fail(error)

    def _reduce(self, bucket: GradBucket) -> Future[torch.Tensor]:
        if self.inner is not None:
            return self.inner[0](self.inner[1], bucket)  # type: ignore[no-any-return]
        return self._mean(bucket.buffer())

    def _mean(self, buffer: torch.Tensor) -> Future[torch.Tensor]:
        world = dist.get_world_size(self.group)
        if buffer.is_sparse:
            buffer.div_(world)
        else:
            buffer.mul_(1.0 / world)
        work = dist.all_reduce(buffer, group=self.group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])  # type: ignore[no-any-return]


def presum_hook(state: Any, bucket: GradBucket) -> Future[torch.Tensor]:
    return state.reduce(bucket)  # type: ignore[no-any-return]


presum_hook.__annotations__.clear()  # DDP compares them with types, but these are strings


class CommHooks:
    """Models with presum's communication hook; a hook that the user registers later runs inside
    it."""

    def __init__(self) -> None:
        self._replacement = ReplacedFunction(
            DistributedDataParallel, "register_comm_hook", self._register
        )

    def install(self, model: DistributedDataParallel, state: HookState) -> None:
        model.register_comm_hook(state, presum_hook)
        self._replacement.apply()  # permanent: a model's hook cannot be removed

    def _register(self, original: Any, model: Any, state: Any, hook: CommHook) -> None:
        ours = installed(model)
        if ours is None or not ours.takes_another():
            original(model, state, hook)
        else:
            model._check_comm_hook(hook)
            ours.inner = (hook, state)


def installed(model: DistributedDataParallel) -> HookState | None:
    """The state of presum's hook on a model; a copy of a model has none."""
    held = (state for _, state in model._comm_hooks)
    ours = (state for state in held if isinstance(state, HookState) and state.group is not None)
    return next(ours, None)


COMM_HOOKS = CommHooks()
