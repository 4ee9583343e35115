# SPDX-License-Identifier: Apache-2.0
"""Watching one DistributedDataParallel module without touching its synchronisation.

Gradients are read in post-accumulate hooks, where they are still this worker's own. A step is one
backward pass that is due to synchronise; it stays open until the optimiser step or the next
training forward, so that a loss reported after ``backward()`` still belongs to it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch._compile import _disable_dynamo
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from presum._core import Observer, count_targets
from presum.device_pass import DeviceStep, FetchedStep, dense
from presum.fingerprints import StepFingerprints, StepPrints
from presum.fingerprints.families import KIND
from presum.fingerprints.step import Rows
from presum.session import LatePacket

DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
IGNORED_LABEL = -100
MICRO_BATCHES_MAX = 1024  # more are folded into one, so that packets stay small
LAST_NUMBERS_SECONDS = 1.0  # how long close() waits for a device
log = logging.getLogger("presum")


class Hook:
    """A bound method that torch calls; it never raises, and copies and pickles as one of Python's
    own that does nothing, so that models still do, and load where presum is not installed."""

    def __init__(
        self,
        collector: DdpCollector | None = None,
        method: Callable[..., None] | None = None,
        *bound: object,
    ) -> None:
        self._collector = collector
        self._method = method
        self._bound = bound

    @_disable_dynamo  # a compiled wrapper calls it as it is
    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self._collector is None or self._collector.off:
            return
        try:
            assert self._method is not None
            self._method(*self._bound, *args, **kwargs)
        except Exception as error:
            self._collector.fail(error)

    def __reduce__(self) -> tuple[Any, ...]:
        return (getattr, (contextlib.nullcontext(), "__exit__"))


class ParameterHook(Hook):
    """The hook of one parameter: as :class:`Hook`, with as few steps as possible."""

    def __init__(self, collector: DdpCollector | None = None, index: int = 0) -> None:
        super().__init__(collector)
        self._index = index

    def __call__(self, *args: Any, **_kwargs: Any) -> None:
        collector = self._collector
        if collector is None or collector.off:
            return
        try:
            if not collector.in_backward:
                collector.before_backward()
            if collector.collecting:
                collector.read(self._index, args[0].grad, reduced=False)
        except Exception as error:
            collector.fail(error)


class MicroBatch(NamedTuple):
    """A forward pass through the wrapper."""

    loss: Scalar | None
    tokens: Scalar
    rows: Rows | None


class OptimizerHook(Hook):
    """The hook after the optimiser's step: as :class:`Hook`, but steps count on when collecting has
    failed, so that a preflight still ends."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self._collector is not None and self._collector.off:
            self._collector.count_optimizer_step()
        else:
            super().__call__(*args, **kwargs)


class DdpCollector:
    """Turns the backward passes of one module into packets.

    ``send`` takes each step's packet, or a function that makes it (run on a background thread, for
    gradients that are still on their device); ``dropped`` tells how many packets were lost so far,
    ``failed`` takes the first exception of our own code; after it nothing more is collected.
    ``stepped`` is called after each step of the optimiser, its packet sent, with the number of
    synchronised steps so far; what it raises as SystemExit ends the training.
    Called by the training thread and by autograd's, never by two at once.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        observer: Observer,
        *,
        parameters: Sequence[torch.nn.Parameter],
        optimizer: Optimizer | None,
        scaler: torch.amp.GradScaler | None,
        every: int,
        reduced_every: int,
        sketch_size: int,
        fingerprints: StepFingerprints,
        send: Callable[[bytes | LatePacket], None],
        dropped: Callable[[], int],
        failed: Callable[[Exception], None],
        stepped: Callable[[int], None],
    ) -> None:
        self._model = model
        self._observer = observer
        self._scaler = scaler
        self._every = every
        self._reduced_every = reduced_every
        self._send = send
        self._sketch_size = sketch_size
        self._dropped = dropped
        self._failed = failed
        self._stepped = stepped
        self._fingerprints = fingerprints
        self._parameters = list(parameters)
        self._seen = [False] * len(self._parameters)
        self._on_host = all(p.device.type == "cpu" for p in self._parameters)
        self._device_step: DeviceStep | None = None  # where gradients are not in host memory
        self.off = False
        self._step = -1
        self._last_reduced: int | None = None
        self.optimizer_steps = 0
        self._in_hook = False  # of the optimiser, while others are called out of it
        self._late_packets = 0  # not made yet
        self.in_backward = False
        self._synchronises = False  # the backward pass under way
        self.collecting = False  # likewise
        self._open = False  # a step's backward pass is done, its packet is not sent
        self._collected = False  # the open step has a packet
        self._micro_batches = 0
        self._skipped = 0
        self._scale: Scalar = 1.0
        self._rows: Rows | None = None  # of the forward pass under way
        self._reached: list[MicroBatch] = []  # by the backward pass under way
        self._used: list[MicroBatch] = []  # by the step
        self._begun = False  # the next step has had a forward pass
        self._wrapped = False  # likewise, through the wrapper
        self._entering = False  # a forward pass is on its way from the wrapper to the module
        self._unreduced = 0  # micro-batches since gradients were last due to be reduced
        self._unreduced_steps = 0
        self._end_queued = False
        self._explicit: list[tuple[Scalar, float]] = []
        self._optimizer = optimizer
        self._handles: list[Any] = []

    def hook(self) -> None:
        """Register every hook; ``unhook`` takes them off again."""
        model, optimizer = self._model, self._optimizer
        self._handles += [
            parameter.register_post_accumulate_grad_hook(ParameterHook(self, index))  # type: ignore[no-untyped-call]
            for index, parameter in enumerate(self._parameters)
        ]
        self._handles += [
            model.register_forward_pre_hook(Hook(self, self._before_forward), with_kwargs=True),
            model.register_forward_hook(Hook(self, self._after_forward), with_kwargs=True),
            model.module.register_forward_pre_hook(Hook(self, self._before_inner_forward)),
        ]
        if optimizer is not None:
            stepped = OptimizerHook(self, self._after_optimizer_step)
            self._handles.append(optimizer.register_step_post_hook(stepped))
        self._fingerprints.listen(True)

    def unhook(self) -> None:
        """Remove every hook. Not to be called out of one."""
        self._fingerprints.listen(False)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    # ---- what the user reports

    def loss(self, value: float | torch.Tensor, weight: float) -> None:
        """Report a micro-batch's loss; replaces what the model's output says in this step."""
        if not self.off:
            self._explicit.append((_kept(value), weight))

    def close(self) -> None:
        """End an open step, hash the parameters for the final note, and remove every hook."""
        Hook(self, self._end_step)()
        Hook(self, self._take_final_states)()
        self.off = True
        self._fingerprints.listen(False)
        if not self._in_hook:
            self.unhook()  # else they stay and do nothing: torch is walking over them

    def fail(self, error: Exception) -> None:
        """Stop collecting. Hooks stay: removing one while torch walks over them is not safe."""
        self.off = True
        try:
            self._observer.begin_states()  # half of them must not be taken for all at the end
            self._failed(error)
        except Exception:
            log.debug("presum: could not say what failed", exc_info=True)

    # ---- hooks

    def _before_forward(
        self, _module: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        # A forward pass of any kind, evaluation too, ends an open step.
        if torch.is_grad_enabled():
            if self._model._join_config.enable:
                # A rank without input runs no forward, so its steps would be counted differently.
                raise RuntimeError("uneven inputs under join() cannot be followed yet")
            self.in_backward = self.collecting = False  # a backward pass that raised
            self._end_queued = False
            self._reached.clear()
        self._end_step()
        if torch.is_grad_enabled():
            self._wrapped = self._entering = True
            self._rows = self._fingerprints.rows(args, kwargs, recorded=self._next_is_recorded())

    def _before_inner_forward(self, _module: object, _args: object) -> None:
        """After DDP has broadcast its buffers; also where the wrapper is passed by.

        Fingerprints are those of the last forward through the wrapper before the step's first
        backward pass: one worker alone may well evaluate the bare module in between.
        """
        in_backward = torch._C._current_graph_task_id() != -1  # activation checkpointing
        if in_backward or not torch.is_grad_enabled():
            return
        entered, self._entering = self._entering, False
        if self._open:
            if self._optimizer is not None:
                return  # the parameters are still to change
            self._end_step()
        again = entered and self._micro_batches == 0
        if (again or not self._begun) and self._next_is_recorded():
            self._begun = True
            self._fingerprints.before_step(self._step + 1, on_host=self._on_host)

    def _next_is_recorded(self) -> bool:
        return (self._step + 1) % self._every == 0

    def _after_forward(
        self, _module: object, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        if not torch.is_grad_enabled():
            return
        rows, self._rows = self._rows, None
        loss = find_loss(output)
        if loss is not None:
            tokens = count_tokens(args, kwargs, on_host=self._on_host)
            self._watch(loss, MicroBatch(_kept(loss), tokens, rows))
        else:
            first = first_tensor(output)
            if first is not None:
                self._watch(first, MicroBatch(None, 0, rows))

    def _watch(self, output: torch.Tensor, micro_batch: MicroBatch) -> None:
        hook = Hook(self, self._output_reached, micro_batch)
        output.register_hook(hook)  # type: ignore[no-untyped-call]

    def _output_reached(self, micro_batch: MicroBatch, _grad: torch.Tensor) -> None:
        """A backward pass begins at the module's output.

        Its end is queued here, because a parameter inside a reentrant checkpoint sees a nested pass
        only; whether it is a training pass shows when a parameter accumulates. Only a loss that
        gets here counts: validation does not.
        """
        self._reached.append(micro_batch)
        self._queue_end()

    def _queue_end(self) -> None:
        if not self._end_queued:
            self._end_queued = True
            Variable._execution_engine.queue_callback(Hook(self, self._after_backward))

    def before_backward(self) -> None:
        """The first parameter of a backward pass has its gradient."""
        self._end_step()
        self.in_backward = True
        self._micro_batches += 1
        self._synchronises = bool(self._model.require_backward_grad_sync)
        if self._synchronises:
            self._step += 1
            self.collecting = self._step % self._every == 0
            if self.collecting:
                self._begin_step()
        self._queue_end()

    def _after_backward(self) -> None:
        """Every gradient is still local, but in view mode: DDP puts the sums in place later."""
        self._end_queued = False
        reached, self._reached = self._reached, []
        if not self.in_backward:
            return  # torch.autograd.grad: no parameter took part
        self._used += reached
        self.in_backward = False
        self._unreduced = 0 if self._synchronises else self._unreduced + 1
        if not self._synchronises:
            return
        self._open = True
        if not self.collecting:
            return
        self.collecting = False
        self._collected = True
        self._scale = _scale_of(self._scaler)
        self._read_left_out()
        last = self._last_reduced
        if last is None or self._step - last >= self._reduced_every:
            self._last_reduced = self._step
            # Twice: with a static graph DDP's own first callback queues another one.
            hook = Hook(self, self._after_reduction)
            Variable._execution_engine.queue_callback(
                lambda: Variable._execution_engine.queue_callback(hook)
            )

    def _read_left_out(self) -> None:
        """Parameters that only earlier micro-batches used hold a gradient that is summed too; in
        view mode it may be reduced already, so it is counted as not read."""
        if self._micro_batches == 1 or all(self._seen):
            return
        for index, parameter in enumerate(self._parameters):
            if self._seen[index] or parameter.grad is None:
                continue
            if self._model.gradient_as_bucket_view:
                self._skipped += 1
            else:
                self.read(index, parameter.grad, reduced=False)

    def _after_reduction(self) -> None:
        for index, parameter in enumerate(self._parameters):
            self.read(index, parameter.grad, reduced=True)

    def count_optimizer_step(self) -> None:
        """All that is left to do after an optimiser step once collecting has failed."""
        self.optimizer_steps += 1
        try:
            self._stepped(self.optimizer_steps)
        except Exception:
            log.debug("presum: after a step", exc_info=True)

    def _after_optimizer_step(self, *_args: object) -> None:
        self.optimizer_steps += 1
        self._unreduced_steps += self._unreduced > 0 and not self._open
        self._unreduced = 0
        self._end_step()
        self._fingerprints.stepped()
        self._in_hook = True
        try:
            self._stepped(self._step + 1)
        finally:
            self._in_hook = False

    # ---- one step

    def _begin_step(self) -> None:
        self._seen = [False] * len(self._parameters)
        self._skipped = 0
        if self._on_host:
            self._observer.begin_step(self._step)
        else:
            self._device_step = DeviceStep(self._parameters[0].device, self._sketch_size)

    def read(self, index: int, grad: torch.Tensor | None, *, reduced: bool) -> None:
        """One gradient, this worker's own or the reduced one."""
        if grad is None:
            return
        self._seen[index] = True
        dtype = DTYPES.get(grad.dtype)
        if dtype is None or grad.is_sparse:
            self._skipped += not reduced
            return
        grad = dense(grad)
        if self._device_step is not None:
            seed = self._observer.sketch_seed(index, self._step)
            self._device_step.observe(index, grad, seed=seed, reduced=reduced)
            return
        if not grad.is_cpu:
            raise RuntimeError(f"gradients moved to {grad.device} after attach")
        read = self._observer.reduced_gradient if reduced else self._observer.gradient
        read(index, grad.data_ptr(), grad.numel(), dtype)

    def _end_step(self) -> None:
        if not self._open:
            return
        self._open = False
        with_loss = [micro for micro in self._used if micro.loss is not None]
        found = Found(
            losses=[micro.loss for micro in with_loss if micro.loss is not None],
            tokens=[micro.tokens for micro in with_loss],
            explicit=self._explicit,
            optimizer_steps=self.optimizer_steps,
            micro_batches=self._micro_batches,
            skipped=self._skipped,
            scale=self._scale,
            prints=self._take_prints(),
        )
        self._used, self._explicit, self._micro_batches = [], [], 0
        self._begun = self._wrapped = False
        if not self._collected:
            return
        self._collected = False
        if self._device_step is None:
            self._send(self._packet(found))
            return
        step, number, self._device_step = self._device_step, self._step, None
        fetch = step.fetch(found.tensors(), found.prints.tensors())
        self._late_packets += 1
        self._send(LatePacket(fetch.ready, lambda: self._late_packet(found, number, fetch())))

    def _take_prints(self) -> StepPrints:
        prints = self._fingerprints.take([micro.rows for micro in self._used])
        prints.values += [
            (KIND["unreduced_steps"], self._unreduced_steps),
            (KIND["wrapper_forward"], int(self._wrapped)),
        ]
        return prints

    def _take_final_states(self) -> None:
        final = self._fingerprints.final_states(on_host=self._on_host)
        if not final.states:
            return
        fetch = DeviceStep(self._parameters[0].device, 0).fetch([], final.tensors())
        deadline = time.monotonic() + LAST_NUMBERS_SECONDS
        # Until earlier steps are made as well: they use the same observer.
        while not fetch.ready() or self._late_packets > 0:
            if time.monotonic() > deadline:
                return
            time.sleep(0.001)
        self._fingerprints.report_states(final.with_numbers(fetch().words).states)

    def _late_packet(self, found: Found, number: int, fetched: FetchedStep) -> bytes:
        """On the background thread: the numbers have left the device."""
        try:
            self._observer.begin_step(number)
            for gradient in fetched.gradients:
                self._observer.gradient_sums(*gradient)
            self._observer.add_sketch(fetched.sketch)
            return self._packet(found.with_numbers(fetched.extra, fetched.words))
        finally:
            self._late_packets -= 1

    def _packet(self, found: Found) -> bytes:
        for value, weight, tokens in found.micro():
            self._observer.loss(value, weight, tokens)
        self._fingerprints.report(found.prints)
        return self._observer.end_step(
            found.optimizer_steps,
            found.micro_batches,
            found.skipped,
            float(found.scale),
            self._dropped(),
        )


Scalar = float | int | torch.Tensor


@dataclass(slots=True)
class Found:
    """What a step brought besides its gradients; scalars may still be tensors on a device."""

    losses: Sequence[Scalar]  # float, or a tensor on a device
    tokens: Sequence[Scalar]
    explicit: Sequence[tuple[Scalar, float]]
    optimizer_steps: int
    micro_batches: int
    skipped: int
    scale: Scalar
    prints: StepPrints

    def _scalars(self) -> list[Scalar]:
        return [*self.losses, *self.tokens, *(value for value, _ in self.explicit), self.scale]

    def tensors(self) -> list[torch.Tensor]:
        """The scalars that are not numbers yet."""
        return [s for s in self._scalars() if isinstance(s, torch.Tensor)]

    def with_numbers(self, numbers: Sequence[float], words: Sequence[Sequence[int]]) -> Found:
        """The same with the numbers of ``tensors()``, and with the words of ``prints``."""
        rest = iter(numbers)
        found = [next(rest) if isinstance(s, torch.Tensor) else s for s in self._scalars()]
        losses, found = found[: len(self.losses)], found[len(self.losses) :]
        tokens, found = found[: len(self.tokens)], found[len(self.tokens) :]
        weights = [weight for _, weight in self.explicit]
        explicit = list(zip(found, weights, strict=False))
        return replace(
            self,
            losses=losses,
            tokens=tokens,
            explicit=explicit,
            scale=found[-1],
            prints=self.prints.with_numbers(words),
        )

    def micro(self) -> list[tuple[float, float, int]]:
        """Loss, weight and tokens of each micro-batch; explicit losses replace the model's."""
        losses = self.explicit or [(loss, 1.0) for loss in self.losses]
        tokens = [int(count) for count in self.tokens]
        if len(losses) > MICRO_BATCHES_MAX:
            weight = sum(weight for _, weight in losses)
            mean = sum(float(loss) * weight for loss, weight in losses) / (weight or 1.0)
            return [(mean, weight, sum(tokens))]
        if len(tokens) != len(losses):
            tokens = [sum(tokens)] + [0] * (len(losses) - 1)
        return [
            (float(loss), weight, count)
            for (loss, weight), count in zip(losses, tokens, strict=False)
        ]


def _kept(value: Scalar) -> Scalar:
    """A number, or a copy on its device: the user may change the tensor in place."""
    if isinstance(value, torch.Tensor):
        return float(value.detach()) if value.is_cpu else value.detach().clone()
    return float(value)


def _scale_of(scaler: torch.amp.GradScaler | None) -> Scalar:
    """The factor on this step's gradients; a copy, because update() changes it in place."""
    if scaler is None or not scaler.is_enabled():
        return 1.0
    scale = getattr(scaler, "_scale", None)  # get_scale() would wait for the device
    return _kept(scale if isinstance(scale, torch.Tensor) else scaler.get_scale())


def is_watched(model: DistributedDataParallel) -> bool:
    """Whether a collector's hooks are on a model."""
    return any(isinstance(hook, Hook) for hook in model._forward_pre_hooks.values())


def find_loss(output: Any) -> torch.Tensor | None:
    """The loss in a module's output, if it takes part in training (requires grad), else None.

    Looked for as ``output["loss"]``, ``output.loss``, the first item of a tuple, the output itself;
    it must have one element.
    """
    if isinstance(output, dict):
        loss = output.get("loss")
    elif isinstance(output, tuple) and output:
        loss = output[0]
    else:
        loss = getattr(output, "loss", output)
    trains = isinstance(loss, torch.Tensor) and loss.requires_grad and loss.numel() == 1
    return loss if trains else None


def first_tensor(output: Any) -> torch.Tensor | None:
    """The first tensor in a module's output that takes part in training, if any."""
    if isinstance(output, torch.Tensor):
        return output if output.requires_grad else None
    values = output.values() if isinstance(output, dict) else output
    if not isinstance(values, (tuple, list)) and not isinstance(output, dict):
        return None
    found = (first_tensor(value) for value in values)
    return next((tensor for tensor in found if tensor is not None), None)


def count_tokens(args: tuple[Any, ...], kwargs: dict[str, Any], *, on_host: bool) -> Scalar:
    """Target tokens of a micro-batch: labels that are not -100; 0 where no labels are found.

    Labels are the argument of that name, else, in host memory, the integer tensor that holds -100
    (looking for it elsewhere would wait for the device).
    """
    labels = kwargs.get("labels")
    if labels is None and on_host:
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
        integers = [t for t in tensors if not t.is_floating_point() and t.dtype != torch.bool]
        labels = next((t for t in integers if bool((t == IGNORED_LABEL).any())), None)
    if not isinstance(labels, torch.Tensor):
        return 0
    if labels.is_cpu and labels.dtype == torch.int64 and labels.is_contiguous():
        return count_targets(labels.data_ptr(), labels.numel(), IGNORED_LABEL)
    count = (labels != IGNORED_LABEL).sum()
    return int(count) if labels.is_cpu else count
