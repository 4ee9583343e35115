# SPDX-License-Identifier: Apache-2.0
"""The steps of one model on one worker: gradients, losses and fingerprints become packets.

A step is one backward pass that is due to synchronise; it stays open until the optimiser step or
the next training forward, so that a loss reported after ``backward()`` still belongs to it.
"""

from __future__ import annotations

import logging
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd import Variable
from torch.optim import Optimizer

from presum._core import AuditRecord, Observer
from presum.devices.gradient_pass import DTYPES, DeviceStep, FetchedStep, dense, poll_host_copies
from presum.devices.readable import in_host_memory, readable
from presum.fingerprints import StepFingerprints, TakenFingerprints
from presum.fingerprints.families import KIND, real_bits
from presum.fingerprints.step import MicroBatchSamples
from presum.torch_events.hooks import Hook, OptimizerHook, OutputHook, belongs_to
from presum.torch_events.losses import (
    Scalar,
    count_tokens,
    find_loss,
    first_tensor,
    kept_value,
    share_of_tokens,
    shifts_labels,
)
from presum.torch_events.taps import TAPS
from presum.transport.outbox import LatePacket

MICRO_BATCHES_MAX = 1024  # more are folded into one, so that packets stay small
LAST_NUMBERS_SECONDS = 1.0  # how long close() waits for a device
log = logging.getLogger("presum")


class AuditResult(NamedTuple):
    """What was found of a reduction."""

    record: AuditRecord
    repeat: bool | None  # whether the same reduction gave the same bits again


class MicroBatch(NamedTuple):
    """A backward pass, and what the forward passes of the wrapper brought that it goes through; or
    one of these."""

    forward: int  # the last one
    loss: Scalar | None
    tokens: Scalar
    share: Scalar | None  # of the tokens that the loss was divided by, where it is not all of them
    rows: tuple[MicroBatchSamples, ...]
    passes: int = 1  # several that were put together; loss, tokens and share are sums then


@dataclass(frozen=True)
class CollectorSetup:
    """What every collector needs.

    ``send`` takes each step's packet, or a function that makes it (run on a background thread, for
    gradients that are still on their device); ``dropped`` tells how many packets were lost so far,
    ``failed`` takes the first exception of our own code; after it nothing more is collected.
    ``hello`` is called when there are new facts, ``note`` takes a line for the run log. ``stepped``
    is called after each step of the optimiser, its packet sent, with the number of synchronised
    steps so far; what it raises as SystemExit ends the training.
    """

    observer: Observer
    parameters: Sequence[weakref.ref[nn.Parameter]]
    names: Sequence[str]
    device: torch.device  # of the gradients
    replicas: int
    optimizer: weakref.ref[Optimizer] | None
    scaler: torch.amp.GradScaler | None
    every: int
    reduced_every: int
    sketch_size: int
    fingerprints: StepFingerprints
    send: Callable[[bytes | LatePacket], None]
    dropped: Callable[[], int]
    failed: Callable[[Exception], None]
    hello: Callable[[], None]
    note: Callable[[str], None]
    stepped: Callable[[int], None]


class Collector(ABC):
    """Turns the backward passes of one model into packets.

    Micro-batches enter through the forward of ``wrapper``; ``inner`` is the bare module (the same
    where there is no wrapper). Where a step's gradients come from is up to subclasses.
    Called by the training thread and by autograd's, never by two at once. The model's hooks hold
    it; it holds model, parameters and optimiser weakly.
    """

    def __init__(self, wrapper: nn.Module, inner: nn.Module, setup: CollectorSetup) -> None:
        self._wrapper = weakref.ref(wrapper)
        self._inner = weakref.ref(inner)
        self._setup = setup
        self._observer = setup.observer
        self._fingerprints = setup.fingerprints
        self._parameters = setup.parameters
        self._shifts_labels = shifts_labels(inner)
        self._factor = 1.0  # on losses that are a share
        self._seen = [False] * len(self._parameters)
        self._on_host = in_host_memory(setup.device)
        self._device_step: DeviceStep | None = None  # where gradients are not in host memory
        self.off = False
        self.failed = False
        self.ended = False
        self._step = -1
        self._last_reduced: int | None = None
        self.optimizer_steps = 0
        self._in_hook = False  # of the optimiser, while others are called out of it
        self._late_steps: set[int] = set()  # whose packets are not made yet
        self.in_backward = False
        self._synchronises = False  # the backward pass under way
        self.collecting = False  # likewise
        self.reads_sums = False  # likewise, what ``.grad`` holds
        self._over: Scalar = 0.0  # how large what it held before the step's first pass is at most
        self._owns_known = True  # the step's gradients are this worker's own
        self._open = False  # a step's backward pass is done, its packet is not sent
        self._collected = False  # the open step has a packet
        self._micro_batches = 0
        self._skipped = 0
        self._scale: Scalar = 1.0
        self._scale_of_pass: Scalar = 1.0
        self._scaled = setup.scaler is not None
        self._rows: MicroBatchSamples | None = None  # of the forward pass under way
        self._forwards = 0
        self._reached: dict[int, MicroBatch] = {}  # forwards, by the backward pass under way
        self._used: list[MicroBatch] = []  # backward passes of the step
        self._begun = False  # the next step has had a forward pass
        self._wrapped = False  # likewise, through the wrapper
        self._entering = False  # a forward pass is on its way from the wrapper to the module
        self._unreduced = 0  # micro-batches since gradients were last due to be reduced
        self._unreduced_steps = 0
        self._end_queued = False
        self._explicit: list[tuple[Scalar, float]] = []
        self._audit: AuditResult | None = None
        self._told_of_audit = False
        self._handles: list[Any] = []
        self._listening = False
        self._told: set[int] = set()  # parameters whose gradients cannot be read

    @abstractmethod
    def _hook_gradients(self) -> None:
        """Have gradients come in; what is to be undone goes to ``_handles``."""

    def hook(self) -> None:
        """Register every hook; ``unhook`` takes them off again."""
        wrapper, inner, optimizer = self._wrapper(), self._inner(), self._optimizer()
        assert wrapper is not None and inner is not None
        self._hook_gradients()
        self._handles += [
            wrapper.register_forward_pre_hook(Hook(self, self._before_forward), with_kwargs=True),
            wrapper.register_forward_hook(Hook(self, self._after_forward), with_kwargs=True),
            inner.register_forward_pre_hook(Hook(self, self._before_inner_forward)),
        ]
        if optimizer is not None:
            stepped = OptimizerHook(self, self._after_optimizer_step)
            self._handles.append(optimizer.register_step_post_hook(stepped))
        self._listen()

    @property
    def hooked(self) -> bool:
        """Whether hooks are on."""
        return bool(self._handles)

    def unhook(self) -> None:
        """Remove every hook. Not to be called out of one."""
        self._ignore()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _optimizer(self) -> Optimizer | None:
        optimizer = self._setup.optimizer
        return None if optimizer is None else optimizer()

    def _alive(self) -> Iterator[tuple[int, nn.Parameter]]:
        """Place and parameter."""
        for place, reference in enumerate(self._parameters):
            parameter = reference()
            if parameter is not None:
                yield place, parameter

    def _listen(self) -> None:
        self._listening = True
        TAPS.add()
        self._fingerprints.listen(True)

    def _ignore(self) -> None:
        if self._listening:
            self._listening = False
            TAPS.remove()
            self._fingerprints.listen(False)

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """For a forward pass of the wrapper or the module inside, during which the hooks were
        registered: theirs came too late."""
        if module is self._wrapper():
            Hook(self, self._before_forward)(module, args, kwargs)
        if module is self._inner():
            Hook(self, self._before_inner_forward)(module, args)

    # ---- what the user reports

    def loss(self, value: Scalar, weight: float) -> None:
        """Report a micro-batch's loss; replaces what the model's output says in this step."""
        if not self.off:
            self._explicit.append((value, weight))
            if len(self._explicit) > 2 * MICRO_BATCHES_MAX:
                self._explicit = [_mean_of(self._explicit)]

    def close(self) -> None:
        """End an open step, hash the parameters for the final note, and remove every hook."""
        Hook(self, self._end_step)()
        Hook(self, self._take_final_states)()
        Hook(self, self._await_numbers)()
        self.off = self.ended = True
        self._ignore()
        if not self._in_hook:
            self.unhook()  # else they stay and do nothing: torch is walking over them

    def _await_numbers(self) -> None:
        """Of steps that are still on a device: after the end nobody looks for them any more."""
        deadline = time.monotonic() + LAST_NUMBERS_SECONDS
        while self._late_steps and time.monotonic() < deadline:
            poll_host_copies()
            time.sleep(0.001)

    def close_without_model(self) -> None:
        """End an open step, where the model is gone: its hooks stay and do nothing. For any thread,
        once none of them runs any more. A step that is on a device is dropped: only the training
        thread may ask that for its numbers."""
        self.off = self.ended = True
        self._device_step = None
        try:
            if self._on_host and not self.in_backward:
                self._end_step()
            self._observer.begin_states()  # of a step that has not ended: no final ones
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Stop collecting. Hooks stay: removing one while torch walks over them is not safe."""
        self.off = self.failed = True
        self._device_step = None
        try:
            self._observer.begin_states()  # half of them must not be taken for all at the end
            self._setup.failed(error)
        except Exception:
            log.debug("presum: could not say what failed", exc_info=True)

    # ---- forward passes

    def _before_forward(
        self, _module: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        poll_host_copies()
        # A forward pass of any kind, evaluation too, ends an open step.
        if not self.in_backward or not in_backward():
            self._end_step()
        if not torch.is_grad_enabled() or in_backward():
            return
        self.in_backward = self.collecting = self.reads_sums = False  # a pass that raised
        self._end_queued = False
        self._reached.clear()
        self._wrapped = self._entering = True
        self._rows = self._fingerprints.rows(args, kwargs, recorded=self._next_is_recorded())

    def _before_inner_forward(self, _module: object, _args: object) -> None:
        """After DDP has broadcast its buffers; also where the wrapper is passed by.

        Fingerprints are those of the last forward through the wrapper before the step's first
        backward pass: one worker alone may well evaluate the bare module in between.
        """
        if in_backward() or not torch.is_grad_enabled():
            return
        entered, self._entering = self._entering, False
        if self._open:
            if self._setup.optimizer is not None:
                return  # the parameters are still to change
            self._end_step()
        again = entered and self._micro_batches == 0
        if (again or not self._begun) and self._next_is_recorded():
            self._begun = True
            self._fingerprints.before_step(self._step + 1, on_host=self._on_host)

    def _next_is_recorded(self) -> bool:
        return (self._step + 1) % self._setup.every == 0

    def _after_forward(
        self, _module: object, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        if not torch.is_grad_enabled() or in_backward():
            return
        loss, recorded = find_loss(output), self._next_is_recorded()
        self._forwards += 1
        micro = MicroBatch(self._forwards, None, 0, None, ())
        if recorded:
            micro = self._micro_batch_of(args, kwargs)
        if loss is not None:
            self._watch(loss, micro._replace(loss=kept_value(loss)) if recorded else micro)
        other = first_tensor(output, but=loss)  # what is trained may be made of that instead
        if other is not None:
            self._watch(other, micro)

    def _micro_batch_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> MicroBatch:
        """What is known of it besides its loss."""
        rows, self._rows = self._rows, None
        shifted = self._shifts_labels if TAPS.shifts_labels is None else TAPS.shifts_labels
        tokens = count_tokens(args, kwargs, on_host=self._on_host, shifted=shifted)
        known = TAPS.items is not None
        self._factor = TAPS.loss_factor if known else float(self._setup.replicas)
        share = share_of_tokens(kwargs, tokens, TAPS.items)
        return MicroBatch(self._forwards, None, tokens, share, () if rows is None else (rows,))

    def _watch(self, output: torch.Tensor, micro_batch: MicroBatch) -> None:
        hooks = output._backward_hooks or {}
        for key in [key for key, hook in hooks.items() if belongs_to(hook, self)]:
            del hooks[key]  # of an output that the model gives again
        output.register_hook(OutputHook(self, micro_batch))  # type: ignore[no-untyped-call]

    # ---- backward passes

    def output_reached(self, micro_batch: MicroBatch) -> None:
        """A backward pass begins at the module's output.

        Its end is queued here, because a parameter inside a reentrant checkpoint sees a nested pass
        only; whether it is a training pass shows when a parameter accumulates. Only a loss that
        gets here counts: validation does not.
        """
        known = self._reached.get(micro_batch.forward)
        if known is None or known.loss is None:
            self._reached[micro_batch.forward] = micro_batch
        self._queue_end()

    def _root_loss(self, factor: float = 1.0) -> Scalar | None:
        """What ``backward()`` was called on, where it is known."""
        value = TAPS.root_loss()
        return None if value is None else value / self._scale_of_pass / factor

    def _queue_end(self) -> None:
        if not self._end_queued:
            self._end_queued = True
            self._scale_of_pass = self._scale_now()
            self._queue(Hook(self, self._after_backward))

    def _queue(self, hook: Hook) -> None:
        Variable._execution_engine.queue_callback(hook)

    def _begin_synchronised(self) -> None:
        self._step += 1
        self.collecting = self._step % self._setup.every == 0 and not self._is_captured()
        if self.collecting:
            self._begin_step()
        self.reads_sums = self.collecting and self._sums_are_own()

    def _sums_are_own(self) -> bool:
        """Whether ``.grad`` will hold what this worker's passes made, and nothing else."""
        return True

    def _is_captured(self) -> bool:
        """Whether the pass is captured into a CUDA graph: what it computes comes when the graph is
        replayed, and then no hook is called."""
        if self._setup.device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            return False
        self._fingerprints.note_once("a CUDA graph was captured: its steps are not read")
        return True

    @abstractmethod
    def _after_backward(self) -> None:
        """Every gradient of a backward pass is there."""

    def _take_reached(self) -> bool:
        """The end of a backward pass: whether a step is due to be ended after it."""
        self._use_reached()
        self.in_backward = False
        self._unreduced = 0 if self._synchronises else self._unreduced + 1
        self._open = self._open or self._synchronises
        if not self._synchronises or not self.collecting:
            return False
        self.collecting = self.reads_sums = False
        self._collected = True
        self._scale = self._scale_of_pass
        return True

    def _use_reached(self) -> None:
        if self._reached and (self.collecting if self._synchronises else self._next_is_recorded()):
            self._used.append(self._reached_by_one_pass())
        self._reached = {}
        if len(self._used) > 2 * MICRO_BATCHES_MAX:
            self._used = [_together(self._used)]

    def _reached_by_one_pass(self) -> MicroBatch:
        """However many forward passes it goes through, they have one loss: that of the model's
        output, where one of them has one, else what ``backward()`` was called on."""
        reached = list(self._reached.values())
        losses = [one.loss for one in reached if one.loss is not None]
        shares = [one.share for one in reached if one.share is not None]
        share = sum(shares) if len(shares) == len(reached) else None
        factor = TAPS.loss_factor if share is not None else 1.0
        return MicroBatch(
            forward=reached[-1].forward,
            loss=losses[0] if len(losses) == 1 else self._root_loss(factor),
            tokens=sum(one.tokens for one in reached),
            share=share,
            rows=tuple(rows for one in reached for rows in one.rows),
        )

    def _reduced_is_due(self) -> bool:
        last = self._last_reduced
        if last is not None and self._step - last < self._setup.reduced_every:
            return False
        self._last_reduced = self._step
        return True

    def _scale_now(self) -> Scalar:
        """The factor on this step's gradients; a copy, because update() changes it in place."""
        scaler = self._setup.scaler or TAPS.scaler()
        if scaler is None or not scaler.is_enabled():
            return 1.0
        if not self._scaled:
            self._scaled = True
            self._observer.fact("grad_scaler", type(scaler).__name__)
            self._setup.hello()
        scale = getattr(scaler, "_scale", None)  # get_scale() would wait for the device
        value = kept_value(scale if isinstance(scale, torch.Tensor) else scaler.get_scale())
        return 1.0 if value is None else value

    def count_optimizer_step(self) -> None:
        """All that is left to do after an optimiser step once collecting has failed."""
        self.optimizer_steps += 1
        try:
            self._setup.stepped(self.optimizer_steps)
        except Exception:
            log.debug("presum: after a step", exc_info=True)

    def _after_optimizer_step(self, *_args: object) -> None:
        self.optimizer_steps += 1
        self._unreduced_steps += self._unreduced > 0 and not self._open
        self._unreduced = 0
        self._end_step()
        poll_host_copies()
        self._fingerprints.stepped()
        self._in_hook = True
        try:
            self._setup.stepped(self._step + 1)
        finally:
            self._in_hook = False

    # ---- one step

    def _begin_step(self) -> None:
        self._seen = [False] * len(self._parameters)
        self._skipped = 0
        self._audit = None
        self._owns_known = True
        if self._on_host:
            self._observer.begin_step(self._step)
        else:
            self._device_step = DeviceStep(self._setup.device, self._setup.sketch_size)

    def read(self, index: int, grad: torch.Tensor | None, *, reduced: bool) -> None:
        """One gradient, this worker's own or the reduced one."""
        if grad is None:
            return
        self._seen[index] = True
        plain = readable(grad)
        dtype = DTYPES.get(grad.dtype)
        if dtype is None or plain is None:
            self._skip(index, grad, reduced=reduced)
            return
        grad = dense(plain)
        if self._device_step is not None:
            seed = self._observer.sketch_seed(index, self._step)
            self._device_step.observe(index, grad, seed=seed, reduced=reduced)
            return
        if not grad.is_cpu:
            raise RuntimeError(f"gradients moved to {grad.device} after attach")
        read = self._observer.reduced_gradient if reduced else self._observer.gradient
        read(index, grad.data_ptr(), grad.numel(), dtype)

    def _skip(self, index: int, grad: torch.Tensor, *, reduced: bool) -> None:
        self._skipped += not reduced
        if index not in self._told:
            self._told.add(index)
            name = self._setup.names[index]
            self._setup.note(f"the gradient of {name} is {_kind_of(grad)}: it is not read")

    def add_audit(self, found: AuditResult | None) -> None:
        """What was found of the reduction of the step under way. Called by several threads."""
        if found is None and not self._told_of_audit:
            self._told_of_audit = True
            self._setup.note("a communication hook changes dtype or size: its sum is not audited")
        self._audit = found

    def _end_step(self) -> None:
        if not self._open:
            return
        self._open = False
        found = StepExtras(
            micro=self._used,
            explicit=self._explicit,
            factor=self._factor,
            optimizer_steps=self.optimizer_steps,
            micro_batches=self._micro_batches,
            skipped=self._skipped,
            scale=self._scale,
            over=self._over,
            one_pass=self._micro_batches == 1,
            owns_known=self._owns_known,
            mean_dot=self._take_mean_dot(),
            gram=self._take_gram(),
            audit=self._audit,
            prints=self._take_prints(),
        )
        self._used, self._explicit, self._micro_batches, self._over = [], [], 0, 0.0
        self._begun = self._wrapped = False
        if not self._collected:
            return
        self._collected = False
        if self._device_step is None:
            self._setup.send(self._packet(found, self._step))
            return
        step, number, self._device_step = self._device_step, self._step, None
        fetch = step.fetch(found.tensors(), found.words())
        self._late_steps.add(number)
        self._setup.send(
            LatePacket(
                fetch.ready,
                lambda: self._late_packet(found, number, fetch()),
                lambda: self._late_steps.discard(number),
            )
        )

    def _take_mean_dot(self) -> Scalar | None:
        """The exact product of this worker's gradient with the reduced one, where it was taken."""
        return None

    def _take_gram(self) -> torch.Tensor | None:
        """This worker's share of the Gram matrix, where it was taken."""
        return None

    def _take_prints(self) -> TakenFingerprints:
        prints = self._fingerprints.take([rows for micro in self._used for rows in micro.rows])
        prints.values += [
            (KIND["unreduced_steps"], self._unreduced_steps),
            (KIND["wrapper_forward"], int(self._wrapped)),
        ]
        return prints

    def _take_final_states(self) -> None:
        final = self._fingerprints.final_states(on_host=self._on_host)
        if not final.states:
            return
        fetch = DeviceStep(self._setup.device, 0).fetch([], final.tensors())
        deadline = time.monotonic() + LAST_NUMBERS_SECONDS
        # Until earlier steps are made as well: they use the same observer.
        while not fetch.ready() or self._late_steps:
            if time.monotonic() > deadline:
                return
            time.sleep(0.001)
            poll_host_copies()
        self._fingerprints.report_states(final.with_numbers(fetch().words).states)

    def _late_packet(self, found: StepExtras, number: int, fetched: FetchedStep) -> bytes:
        """On the background thread: the numbers have left the device."""
        try:
            found = found.with_numbers(fetched.extra, fetched.words)
            self._observer.begin_step(number)
            for place, elements, reduced, *sums in fetched.gradients:
                if not reduced or not found.over:
                    self._observer.gradient_sums(place, elements, reduced, *sums)
            self._observer.add_sketch(fetched.sketch)
            return self._packet(found, number)
        finally:
            self._late_steps.discard(number)

    def _packet(self, found: StepExtras, number: int) -> bytes:
        observer, skipped = self._observer, found.skipped
        if not found.knows_owns():
            observer.begin_step(number)  # forgets them
            skipped = len(self._parameters)
        for value, weight, tokens in found.losses():
            observer.loss(value, weight, tokens)
        weight_of_gradient = found.gradient_weight()
        if weight_of_gradient is not None:
            observer.fingerprint(KIND["gradient_weight"], real_bits(weight_of_gradient))
        if found.mean_dot is not None and not found.over:
            observer.mean_dot(float(found.mean_dot))
        if found.gram is not None and not found.over:
            observer.gram(found.gram.tolist())
        if found.audit is not None:
            observer.audit(found.audit.record, repeat=found.audit.repeat)
        self._fingerprints.report(found.prints)
        return observer.end_step(
            found.optimizer_steps,
            found.micro_batches,
            skipped,
            float(found.scale),
            self._setup.dropped(),
        )


def _kind_of(grad: torch.Tensor) -> str:
    """Why it cannot be read."""
    if grad.dtype not in DTYPES:
        return str(grad.dtype).removeprefix("torch.")
    return "sparse" if grad.is_sparse else f"a {type(grad).__name__} without memory of its own"


def in_backward() -> bool:
    """Inside a backward pass: activation checkpointing computes forward passes again."""
    return bool(torch._C._current_graph_task_id() != -1)


@dataclass(slots=True)
class StepExtras:
    """What a step brought besides its gradients; scalars may still be tensors on a device."""

    micro: Sequence[MicroBatch]
    explicit: Sequence[tuple[Scalar, float]]
    factor: float
    optimizer_steps: int
    micro_batches: int
    skipped: int
    scale: Scalar
    over: Scalar  # how large what ``.grad`` held before its first pass is at most
    one_pass: bool
    owns_known: bool
    mean_dot: Scalar | None
    gram: torch.Tensor | None
    audit: AuditResult | None
    prints: TakenFingerprints

    def _scalars(self) -> Iterator[Scalar | None]:
        for micro in self.micro:
            yield from (micro.loss, micro.tokens, micro.share)
        yield from (value for value, _ in self.explicit)
        yield from (self.scale, self.over, self.mean_dot)

    def knows_owns(self) -> bool:
        """Whether its gradients are this worker's own: of one pass as they arrived, of several as
        their sum, if that began at zero."""
        return self.owns_known and (self.one_pass or not self.over)

    def tensors(self) -> list[torch.Tensor]:
        """The scalars that are not numbers yet."""
        return [s for s in self._scalars() if isinstance(s, torch.Tensor)]

    def words(self) -> list[torch.Tensor]:
        """Likewise, as bits of 64."""
        gram = [] if self.gram is None else [self.gram.view(torch.int64)]
        return [*self.prints.tensors(), *gram]

    def with_numbers(self, numbers: Sequence[float], words: Sequence[Sequence[int]]) -> StepExtras:
        """The same with the numbers of ``tensors()`` and of ``words()``."""
        rest = iter(numbers)
        known = [next(rest) if isinstance(s, torch.Tensor) else s for s in self._scalars()]
        scalars = iter(known)
        micro = [
            m._replace(loss=next(scalars), tokens=next(scalars) or 0, share=next(scalars))
            for m in self.micro
        ]
        explicit = [(next(scalars) or 0.0, weight) for _, weight in self.explicit]
        gram = None if self.gram is None else _doubles(words[-1])
        prints = self.prints.with_numbers(words if gram is None else words[:-1])
        scale, over, mean_dot = next(scalars) or 1.0, next(scalars) or 0.0, next(scalars)
        return replace(
            self,
            micro=micro,
            explicit=explicit,
            scale=scale,
            over=over,
            mean_dot=mean_dot,
            gram=gram,
            prints=prints,
        )

    def losses(self) -> list[tuple[float, float, int]]:
        """Loss, weight and tokens of each micro-batch; explicit losses replace the model's."""
        tokens = [int(m.tokens) for m in self.micro if m.loss is not None]
        losses = [(float(loss), weight) for loss, weight in self.explicit]
        losses = losses or [_loss_of_tokens(m) for m in self.micro if m.loss is not None]
        if len(tokens) != len(losses):
            tokens = [sum(tokens)] + [0] * (len(losses) - 1)
        return [(*loss, count) for loss, count in zip(losses, tokens, strict=False)]

    def gradient_weight(self) -> float | None:
        """How many times larger than that of its mean loss over tokens the gradient is."""
        shares = [m.share for m in self.micro]
        if not shares or any(share is None for share in shares):
            return None
        weight = self.factor * sum(float(share) for share in shares if share is not None)
        return weight if weight > 0 else None


def _together(micro: Sequence[MicroBatch]) -> MicroBatch:
    """Many micro-batches as one, where nothing ends their step. Its samples are not known."""
    with_loss = [m for m in micro if m.loss is not None]
    shares = [m.share for m in with_loss if m.share is not None]
    rows = [rows for m in micro for rows in m.rows][:1]
    return MicroBatch(
        micro[-1].forward,
        sum(m.loss for m in with_loss if m.loss is not None) if with_loss else None,
        sum(m.tokens for m in micro),
        sum(shares) if shares and len(shares) == len(with_loss) else None,
        tuple(replace(first, hashes=(), others=0) for first in rows),
        sum(m.passes for m in with_loss),
    )


def _mean_of(losses: Sequence[tuple[Scalar, float]]) -> tuple[Scalar, float]:
    weight = sum(weight for _, weight in losses)
    return sum(loss * weight for loss, weight in losses) / (weight or 1.0), weight


def _loss_of_tokens(micro: MicroBatch) -> tuple[float, float]:
    """A micro-batch's loss and its weight: with a share of all tokens, the mean over its own."""
    loss = float(micro.loss or 0.0)
    if micro.share is None:
        return loss / max(1, micro.passes), float(micro.passes)
    return (loss / float(micro.share) if micro.share else loss), float(micro.tokens)


def _doubles(words: Sequence[int]) -> torch.Tensor:
    signed = [word - (1 << 64) if word >= 1 << 63 else word for word in words]
    return torch.tensor(signed, dtype=torch.int64).view(torch.float64)
