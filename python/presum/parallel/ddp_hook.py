# SPDX-License-Identifier: Apache-2.0
"""Watching one DistributedDataParallel module from inside its communication hook (opt-in).

There this worker's gradient and the reduced one meet bucket by bucket: their product is exact, at
every step. Every n-th step the workers also exchange their gradients in chunks, and each computes
the Gram matrix of its chunk: all W x W cosines exactly, for half the traffic of an all-reduce more.

Division follows DDP's own, so that parameters are the same bits as without a hook: it multiplies
by 1/W where it copies a gradient into its bucket. Where gradients lie in their buckets it divides
at times, which a hook cannot see: for bucket views W must be a power of two, when both are one.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from presum._core import ParameterHook, has_product, product_of
from presum.devices.torch_pass import CHUNK
from presum.parallel.auditing import Audits, MakeAudit, flat_value
from presum.parallel.collectives import used_here
from presum.parallel.ddp import DdpSource
from presum.steps.step_recorder import StepRecorder
from presum.torch_events.losses import Scalar
from presum.torch_events.taps import ReplacedFunction

TakeKept = Callable[[torch.Tensor], torch.Tensor | None]
CommHook = Callable[[Any, GradBucket], Future[torch.Tensor]]


class BucketSource(DdpSource):
    """As :class:`DdpSource`, for a model whose communication hook is ours."""

    def __init__(self, model: DistributedDataParallel) -> None:
        super().__init__(model)
        self._shares: list[torch.Tensor] = []

    def measures(self) -> bool:
        """Whether the bucket under way belongs to a step that is recorded."""
        return self.recorder.in_backward and self.recorder.observer.records and not self.off

    @property
    def off(self) -> bool:
        return self.recorder.off

    def add_gram(self, gram: torch.Tensor) -> None:
        """A bucket's share of the Gram matrix. Called by several threads."""
        upper = torch.triu_indices(*gram.shape, device=gram.device)
        self._shares.append(gram[upper[0], upper[1]])

    def begin_reading(self) -> None:
        self._shares = []

    def take_gram(self) -> torch.Tensor | None:
        shares, self._shares = self._shares, []
        return torch.stack(shares).sum(0) if shares else None


class DdpHookSource(BucketSource):
    """And exact products with the reduced gradient."""

    def __init__(
        self,
        model: DistributedDataParallel,
        group: dist.ProcessGroup,
        gram_every: int | None,
        every: int,
        audits: Audits | None = None,
    ) -> None:
        super().__init__(model)
        turns = None if gram_every is None else gram_every * every
        self._state = HookState(group, turns, weakref.ref(self), audits)
        self._products: list[Scalar] = []
        self._pass = 0  # the state's number of the step's backward pass
        self._installed = False
        self._hooks: dict[int, weakref.ref[ParameterHook]] = {}  # by their parameter's id

    def hook(self) -> list[Any]:
        if not self._installed:
            self._installed = True
            COMM_HOOKS.install(self.model(), self._state)
        return super().hook()

    def add_product(self, product: Scalar) -> None:
        self._products.append(product)

    def add_share(self, of_pass: int, chunks: torch.Tensor) -> None:
        """A bucket's share of the Gram matrix. Called by several threads."""
        if of_pass != self._pass or self.off:
            return  # of a pass that this worker shadows under join()
        rows = chunks.double()
        self.add_gram(rows @ rows.T)

    def begin_reading(self) -> None:
        super().begin_reading()
        self._products = []
        self._pass = self._state.passes
        self.recorder.keeps = self._reduces and self._reduces_copies and self._state.reads_in_place

    @property
    def _reduces_copies(self) -> bool:
        """Whether DDP leaves ``.grad`` as it is until its bucket was reduced."""
        return self.recorder.setup.on_host and not self._views

    def before_pass(self) -> None:
        self.recorder.keeps = False
        super().before_pass()

    def _gets(self, parameter: nn.Parameter, hook: ParameterHook) -> None:
        self._hooks[id(parameter)] = weakref.ref(hook)

    def take_kept(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """Its gradient, if that is what DDP has copied into its bucket in this pass."""
        reference = self._hooks.get(id(parameter))
        hook = None if reference is None else reference()
        return None if hook is None else hook.take_kept(parameter)

    def take_mean_dot(self) -> Scalar | None:
        products, self._products = self._products, []
        return sum(products) if products else None


class ChunkExchange(NamedTuple):
    """Each worker gets everyone's values of its chunk of a bucket."""

    chunks: torch.Tensor
    padded: torch.Tensor  # alive until it is sent
    done: Future[Any]


def _exchange(local: torch.Tensor, group: dist.ProcessGroup) -> ChunkExchange:
    world = dist.get_world_size(group)
    width = -(-local.numel() // world)
    padded = torch.nn.functional.pad(local, (0, width * world - local.numel()))
    chunks = torch.empty(world, width, dtype=local.dtype, device=local.device)
    work = dist.all_to_all_single(chunks.view(-1), padded, group=group, async_op=True)
    return ChunkExchange(chunks, padded, work.get_future())


class OwnGradients:
    """A bucket's gradients as ``.grad`` holds them: no copy, where DDP reduces one.

    A change that torch does not count, through ``.data``, is not seen.
    """

    def __init__(self, gradients: list[torch.Tensor]) -> None:
        self._gradients = gradients
        self._versions = _versions(gradients)

    @classmethod
    def of(cls, bucket: GradBucket, take: TakeKept) -> OwnGradients | None:
        """None where there are none, or not as they are in the bucket. ``take`` gives a parameter's
        gradient, if it is what was copied into the bucket."""
        parameters = bucket.parameters()
        gradients = [gradient for gradient in map(take, parameters) if gradient is not None]
        whole = (
            len(gradients) == len(parameters)
            and all(parameter.is_contiguous() for parameter in parameters)
            and has_product(gradients, bucket.buffer().detach())
        )
        return cls(gradients) if whole else None

    def product(self, reduced: torch.Tensor) -> float | None:
        """With what the bucket was reduced to; None where they have changed, or cannot be read. To
        be asked for once: they are held no longer, whoever holds this."""
        gradients, self._gradients = self._gradients, []
        return product_of(gradients, reduced) if _versions(gradients) == self._versions else None


def _versions(tensors: list[torch.Tensor]) -> list[int]:
    return [tensor._version for tensor in tensors]


class HookState:
    """What DDP holds of ours for as long as the model lives; the recording may end earlier.

    Copies and pickles as one that does nothing, so that models still do.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        gram_every: int | None = None,
        source: Callable[[], Any] = lambda: None,
        audits: Audits | None = None,
    ) -> None:
        self.group = group
        self.inner: tuple[CommHook, Any] | None = None  # what the user registered
        self.passes = 0  # backward passes that were reduced
        self.audits = audits
        self._gram_every = gram_every
        self._source = source
        self._stay = True  # gradients did so far, until their bucket was reduced

    def __reduce__(self) -> tuple[Any, ...]:
        return (HookState, ())

    @property
    def reads_in_place(self) -> bool:
        """Whether ``.grad`` serves for a copy of the bucket, as far as is known."""
        return self._stay and self.inner is None

    def takes_another(self) -> bool:
        """Whether a hook that the user registers may run inside ours."""
        return self.inner is None

    def reduce(self, bucket: GradBucket) -> Future[torch.Tensor]:
        """Reduces one bucket as ``inner`` or as DDP without a hook would."""
        of_pass, due = self.passes, self._exchange_is_due()
        sparse = bucket.buffer().is_sparse
        audits = self._audit_is_due(bucket)
        self.passes += bucket.is_last()
        source = self._source()
        own = None if source is None else self._own(bucket, source)
        measures = source is not None and source.measures() and self.inner is None
        if sparse or not (due or measures or audits):
            if source is not None and measures:
                source.add_product(math.nan)  # a part of the product is not known
            return self._reduce(bucket)
        if own is not None and not (due or audits):
            return self._measured(bucket, source, own)
        local = self._copied(bucket, source)
        exchange = _exchange(local, self.group) if due and self.group is not None else None
        reduced = self._audited(bucket, local) if audits else self._reduce(bucket)

        def measure(_done: Future[Any]) -> torch.Tensor:
            mean = flat_value(reduced)
            if source is not None:
                with FailureGuard(source.recorder), source.recorder:
                    if measures:
                        source.add_product(_product(local, mean))
                    if exchange is not None:
                        source.add_share(of_pass, used_here(exchange.chunks))
            return mean

        waited = (
            reduced if exchange is None else torch.futures.collect_all([reduced, exchange.done])
        )
        return waited.then(measure)

    def _own(self, bucket: GradBucket, source: Any) -> OwnGradients | None:
        """A bucket's gradients, where they stay as they are until it was reduced."""
        if source.recorder.keeps:
            with FailureGuard(source.recorder), source.recorder:
                return OwnGradients.of(bucket, source.take_kept)
        return None

    def _copied(self, bucket: GradBucket, source: Any) -> torch.Tensor:
        with contextlib.nullcontext() if source is None else source.recorder:
            return bucket.buffer().detach().clone()

    def _measured(self, bucket: GradBucket, source: Any, own: OwnGradients) -> Future[torch.Tensor]:
        def measure(done: Future[Any]) -> torch.Tensor:
            mean = flat_value(done)
            with FailureGuard(source.recorder), source.recorder:
                product = own.product(mean)
                self._stay = self._stay and product is not None
                source.add_product(math.nan if product is None else product)
            return mean

        return self._reduce(bucket).then(measure)

    def _exchange_is_due(self) -> bool:
        """By what DDP does alike on all workers, and also when the recording has ended here: a
        worker that left out an exchange would let the others wait."""
        return self._gram_every is not None and self.passes % self._gram_every == 0

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
        """Has an audit made for whom it concerns. Called by several threads."""
        source = self._source()
        if source is not None and not source.off:
            with FailureGuard(source.recorder):
                source.recorder.add_audit(make_audit())

    def _reduce(self, bucket: GradBucket) -> Future[torch.Tensor]:
        if self.inner is not None:
            return self.inner[0](self.inner[1], bucket)
        return self._mean(bucket.buffer())

    def _mean(self, buffer: torch.Tensor) -> Future[torch.Tensor]:
        world = dist.get_world_size(self.group)
        if buffer.is_sparse:
            buffer.div_(world)
        else:
            buffer.mul_(1.0 / world)
        work = dist.all_reduce(buffer, group=self.group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])  # type: ignore[no-any-return]


class FailureGuard(contextlib.AbstractContextManager[None]):
    """What goes wrong inside switches the recording off, and goes no further."""

    def __init__(self, recorder: StepRecorder) -> None:
        self._recorder = recorder

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> bool:
        if isinstance(error, Exception):
            self._recorder.fail(error)
            return True
        return False


def _product(local: torch.Tensor, mean: torch.Tensor) -> Scalar:
    if local.is_cpu:
        known = product_of([local], mean.detach())
        return math.nan if known is None else known
    local = used_here(local)
    parts = range(0, local.numel(), CHUNK)
    return sum(
        (torch.dot(local[i : i + CHUNK].double(), mean[i : i + CHUNK].double()) for i in parts),
        torch.zeros((), dtype=torch.float64, device=local.device),
    )


def presum_hook(state: Any, bucket: GradBucket) -> Future[torch.Tensor]:
    """The communication hook."""
    return state.reduce(bucket)  # type: ignore[no-any-return]


presum_hook.__annotations__.clear()  # DDP compares them with types, and these are texts


class CommHooks:
    """Models whose communication hook is ours; one that the user registers later runs inside it."""

    def __init__(self) -> None:
        self._replacement = ReplacedFunction(
            DistributedDataParallel, "register_comm_hook", self._register
        )

    def install(self, model: DistributedDataParallel, state: HookState) -> None:
        model.register_comm_hook(state, presum_hook)
        self._replacement.apply()  # for good: the hook of a model cannot be taken off again

    def _register(self, original: Any, model: Any, state: Any, hook: CommHook) -> None:
        ours = installed(model)
        if ours is None or not ours.takes_another():
            original(model, state, hook)
        else:
            model._check_comm_hook(hook)
            ours.inner = (hook, state)


def installed(model: DistributedDataParallel) -> HookState | None:
    """The state of our hook on a model; a copy of a model has none."""
    held = (state for _, state in getattr(model, "_comm_hooks", []))
    ours = (state for state in held if isinstance(state, HookState) and state.group is not None)
    return next(ours, None)


COMM_HOOKS = CommHooks()
