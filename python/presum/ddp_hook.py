# SPDX-License-Identifier: Apache-2.0
"""Watching one DistributedDataParallel module from inside its communication hook (opt-in).

There this worker's gradient and the reduced one meet bucket by bucket: their product is exact, at
every step. Every n-th step the workers also exchange their gradients in chunks, and each computes
the Gram matrix of its chunk: all W x W cosines exactly, for half the traffic of an all-reduce more.

Division follows DDP's own, so that parameters are the same bits as without a hook: it multiplies
by 1/W where it copies a gradient into its bucket, and divides where the gradient lies there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from presum.collector import Setup
from presum.ddp import DdpCollector
from presum.device_pass import CHUNK
from presum.losses import Scalar
from presum.taps import Replacement

CommHook = Callable[[Any, GradBucket], Future[torch.Tensor]]


class DdpHookCollector(DdpCollector):
    """As :class:`DdpCollector`, and exact products with the reduced gradient."""

    def __init__(
        self,
        model: DistributedDataParallel,
        group: dist.ProcessGroup,
        gram_every: int | None,
        setup: Setup,
    ) -> None:
        super().__init__(model, setup)
        self._group = group
        self._gram_every = gram_every
        self._products: list[Scalar] = []
        self._gram: torch.Tensor | None = None
        self._passes = 0  # backward passes that were reduced
        self._installed = False

    def _hook_gradients(self) -> None:
        super()._hook_gradients()
        if not self._installed:
            self._installed = True
            COMM_HOOKS.install(self._model, self)

    def reduce(
        self, inner: tuple[CommHook, Any] | None, bucket: GradBucket
    ) -> Future[torch.Tensor]:
        """Reduces one bucket as ``inner`` or as DDP without a hook would."""
        local, exchange = None, None
        due = self._exchange_is_due(bucket)
        with _Guard(self):
            if due or (self.collecting and inner is None):
                local = bucket.buffer().detach().clone()
                exchange = Exchange(local, self._group) if due else None
        if inner is None:
            reduced = _reduce_as_ddp(bucket, self._group)
        else:
            reduced = inner[0](inner[1], bucket)
        if local is None:
            return reduced
        return self._measured(local if inner is None else None, reduced, exchange)

    def _exchange_is_due(self, bucket: GradBucket) -> bool:
        """Counts what DDP does alike on all workers, and goes on when this collector has failed or
        is closed: a worker that left out an exchange would let the others wait."""
        of_pass = self._passes
        self._passes += bucket.is_last()
        every = self._setup.every
        if self._gram_every is None or of_pass % every:
            return False
        return of_pass // every % self._gram_every == 0

    def _measured(
        self,
        local: torch.Tensor | None,
        reduced: Future[torch.Tensor],
        exchange: Exchange | None,
    ) -> Future[torch.Tensor]:
        """``local`` is given where what is reduced is the mean: another hook rounds it."""

        def measure(_done: Future[Any]) -> torch.Tensor:
            mean = reduced.value()
            mean = mean[0] if isinstance(mean, (list, tuple)) else mean
            with _Guard(self):
                if local is not None and not self.off:
                    self._products.append(_product(local, mean.view(-1)))
                if exchange is not None and not self.off:
                    self._add_gram(exchange.chunks)
            return mean

        waited = (
            reduced if exchange is None else torch.futures.collect_all([reduced, exchange.done])
        )
        return waited.then(measure)

    def _add_gram(self, chunks: torch.Tensor) -> None:
        rows = chunks.double()
        gram = rows @ rows.T
        upper = torch.triu_indices(len(rows), len(rows), device=gram.device)
        share = gram[upper[0], upper[1]]
        self._gram = share if self._gram is None else self._gram + share

    def _begin_step(self) -> None:
        super()._begin_step()
        self._products = []
        self._gram = None

    def _take_mean_dot(self) -> Scalar | None:
        return sum(self._products) if self._products else None

    def _take_gram(self) -> torch.Tensor | None:
        return self._gram


class Exchange:
    """Each worker gets everyone's values of its chunk of a bucket."""

    def __init__(self, local: torch.Tensor, group: dist.ProcessGroup) -> None:
        world = dist.get_world_size(group)
        width = -(-local.numel() // world)
        padded = torch.nn.functional.pad(local, (0, width * world - local.numel()))
        self.chunks = torch.empty(world, width, dtype=local.dtype, device=local.device)
        self._padded = padded  # alive until it is sent
        work = dist.all_to_all_single(self.chunks.view(-1), padded, group=group, async_op=True)
        self.done: Future[Any] = work.get_future()


class _Guard(contextlib.AbstractContextManager[None]):
    """What goes wrong inside switches the collector off, and goes no further."""

    def __init__(self, collector: DdpHookCollector) -> None:
        self._collector = collector

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> bool:
        if isinstance(error, Exception):
            self._collector.fail(error)
            return True
        return False


def _product(a: torch.Tensor, b: torch.Tensor) -> Scalar:
    parts = range(0, a.numel(), CHUNK)
    total = sum(
        (torch.dot(a[i : i + CHUNK].double(), b[i : i + CHUNK].double()) for i in parts),
        torch.zeros((), dtype=torch.float64, device=a.device),
    )
    return total.item() if total.is_cpu else total


def _reduce_as_ddp(bucket: GradBucket, group: dist.ProcessGroup | None) -> Future[torch.Tensor]:
    world = dist.get_world_size(group)
    buffer = bucket.buffer()
    if world & (world - 1) == 0:
        buffer.mul_(1.0 / world)  # the same bits either way
    else:
        for view, parameter in zip(bucket.gradients(), bucket.parameters(), strict=True):
            aliased = parameter.grad is not None and parameter.grad.data_ptr() == view.data_ptr()
            view.div_(world) if aliased else view.mul_(1.0 / world)
    work = dist.all_reduce(buffer, group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])  # type: ignore[no-any-return]


class _State:
    """What DDP holds of ours. Copies and pickles as nothing, so that models still do."""

    def __init__(self, collector: DdpHookCollector | None = None) -> None:
        self.collector = collector
        self.inner: tuple[CommHook, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (_State, ())


def presum_hook(state: Any, bucket: GradBucket) -> Future[torch.Tensor]:
    """The communication hook."""
    if state.collector is None:
        return _reduce_as_ddp(bucket, dist.group.WORLD)
    return state.collector.reduce(state.inner, bucket)  # type: ignore[no-any-return]


presum_hook.__annotations__.clear()  # DDP compares them with types, and these are texts


class CommHooks:
    """Models whose communication hook is ours; one that the user registers later runs inside it."""

    def __init__(self) -> None:
        self._replacement = Replacement(
            DistributedDataParallel, "register_comm_hook", self._register
        )
        self._applied = False

    def install(self, model: DistributedDataParallel, collector: DdpHookCollector) -> None:
        model.register_comm_hook(_State(collector), presum_hook)
        if not self._applied:
            self._applied = True  # for good: the hook of a model cannot be taken off again
            self._replacement.apply()

    def _register(self, original: Any, model: Any, state: Any, hook: CommHook) -> None:
        ours = [held for _, held in getattr(model, "_comm_hooks", []) if isinstance(held, _State)]
        if not ours or ours[0].inner is not None:
            original(model, state, hook)
        else:
            ours[0].inner = (hook, state)


COMM_HOOKS = CommHooks()
