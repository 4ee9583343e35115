# SPDX-License-Identifier: Apache-2.0
"""Watching one DistributedDataParallel module without touching its synchronisation.

Gradients are read in post-accumulate hooks, where they are still this worker's own. A step is one
backward pass that is due to synchronise; it stays open until the optimiser step or the next
training forward, so that a loss reported after ``backward()`` still belongs to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from presum._core import Observer
from presum.device_pass import DeviceStep, FetchedStep

DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
IGNORED_LABEL = -100


class Hook:
    """A bound method that torch calls; it never raises, and copies and pickles as one that does
    nothing, so that models still do."""

    def __init__(
        self,
        collector: DdpCollector | None = None,
        method: Callable[..., None] | None = None,
        *bound: object,
    ) -> None:
        self._collector = collector
        self._method = method
        self._bound = bound

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self._collector is None or self._collector.off:
            return
        try:
            assert self._method is not None
            self._method(*self._bound, *args, **kwargs)
        except Exception as error:
            self._collector.fail(error)

    def __reduce__(self) -> tuple[type[Hook], tuple[()]]:
        return (Hook, ())


class DdpCollector:
    """Turns the backward passes of one module into packets.

    ``send`` takes each step's packet, or a function that makes it (run on a background thread, for
    gradients that are still on their device); ``dropped`` tells how many packets were lost so far,
    ``failed`` takes the first exception of our own code; after it nothing more is collected.
    Called by the training thread and by autograd's, never by two at once.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        observer: Observer,
        *,
        optimizer: Optimizer | None,
        scaler: torch.amp.GradScaler | None,
        every: int,
        reduced_every: int,
        sketch_size: int,
        send: Callable[[bytes | Callable[[], bytes]], None],
        dropped: Callable[[], int],
        failed: Callable[[Exception], None],
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
        self._parameters = [p for p in model.module.parameters() if p.requires_grad]
        self._seen = [False] * len(self._parameters)
        self._on_host = all(p.device.type == "cpu" for p in self._parameters)
        self._device_step: DeviceStep | None = None  # where gradients are not in host memory
        self.off = False
        self._step = -1
        self._last_reduced: int | None = None
        self._optimizer_steps = 0
        self._in_backward = False
        self._synchronises = False  # the backward pass under way
        self._collecting = False  # likewise
        self._open = False  # a step's backward pass is done, its packet is not sent
        self._collected = False  # the open step has a packet
        self._micro_batches = 0
        self._skipped = 0
        self._scale: Scalar = 1.0
        self._losses: list[tuple[torch.Tensor, torch.Tensor | int]] = []
        self._explicit: list[tuple[float | torch.Tensor, float]] = []
        self._optimizer = optimizer
        self._handles: list[Any] = []
        self.hook()

    def hook(self) -> None:
        """Register every hook; ``unhook`` takes them off again."""
        model, optimizer = self._model, self._optimizer
        self._handles += [
            parameter.register_post_accumulate_grad_hook(Hook(self, self._accumulated, index))
            for index, parameter in enumerate(self._parameters)
        ]
        self._handles += [
            model.register_forward_pre_hook(Hook(self, self._before_forward)),
            model.register_forward_hook(Hook(self, self._after_forward), with_kwargs=True),
        ]
        if optimizer is not None:
            hook = Hook(self, self._after_optimizer_step)
            self._handles.append(optimizer.register_step_post_hook(hook))

    def unhook(self) -> None:
        """Remove every hook. Not to be called out of one."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    # ---- what the user reports

    def loss(self, value: float | torch.Tensor, weight: float) -> None:
        """Report a micro-batch's loss; replaces what the model's output says in this step."""
        if not self.off:
            kept = value.detach() if isinstance(value, torch.Tensor) else value
            self._explicit.append((kept, weight))

    def close(self) -> None:
        """End an open step and remove every hook."""
        Hook(self, self._end_step)()
        self.off = True
        self.unhook()

    def fail(self, error: Exception) -> None:
        """Stop collecting. Hooks stay: removing one while torch walks over them is not safe."""
        self.off = True
        self._failed(error)

    # ---- hooks

    def _accumulated(self, index: int, parameter: torch.Tensor) -> None:
        if not self._in_backward:
            self._before_backward()
        if self._collecting:
            self._observe(index, parameter.grad)

    def _before_forward(self, _module: object, _args: object) -> None:
        if not torch.is_grad_enabled():
            return
        self._in_backward = self._collecting = False  # a backward pass that raised
        if self._open:
            self._end_step()

    def _after_forward(
        self, _module: object, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        loss = find_loss(output)
        if loss is None:
            return
        entry = (loss.detach(), count_tokens(args, kwargs, on_host=self._on_host))
        # Only a loss that takes part in a backward pass counts: validation does not.
        loss.register_hook(Hook(self, self._loss_used, entry))  # type: ignore[no-untyped-call]

    def _loss_used(
        self, entry: tuple[torch.Tensor, torch.Tensor | int], _grad: torch.Tensor
    ) -> None:
        self._losses.append(entry)

    def _before_backward(self) -> None:
        if self._open:
            self._end_step()
        self._in_backward = True
        self._micro_batches += 1
        self._synchronises = bool(self._model.require_backward_grad_sync)
        if self._synchronises:
            self._step += 1
            self._collecting = self._step % self._every == 0
            if self._collecting:
                self._begin_step()
                self._seen = [False] * len(self._parameters)
                self._skipped = 0
        Variable._execution_engine.queue_callback(Hook(self, self._after_backward))

    def _after_backward(self) -> None:
        """Every gradient is still local: this runs before DDP puts the sums in place."""
        self._in_backward = False
        if not self._synchronises:
            return
        self._open = True
        if not self._collecting:
            return
        self._collecting = False
        self._scale = _scale_of(self._scaler)
        self._observe_left_out()
        last = self._last_reduced
        if last is None or self._step - last >= self._reduced_every:
            self._last_reduced = self._step
            Variable._execution_engine.queue_callback(Hook(self, self._after_reduction))
        self._collected = True

    def _observe_left_out(self) -> None:
        """Parameters that only earlier micro-batches used hold a gradient that is summed too."""
        if self._micro_batches == 1 or all(self._seen) or self._model.gradient_as_bucket_view:
            return
        for index, parameter in enumerate(self._parameters):
            if not self._seen[index] and parameter.grad is not None:
                self._observe(index, parameter.grad)

    def _after_reduction(self) -> None:
        for index, parameter in enumerate(self._parameters):
            if parameter.grad is not None and not parameter.grad.is_sparse:
                self._read(index, dense(parameter.grad), reduced=True)

    def _after_optimizer_step(self, *_args: object) -> None:
        self._optimizer_steps += 1
        self._end_step()

    # ---- one step

    def _begin_step(self) -> None:
        if self._on_host:
            self._observer.begin_step(self._step)
        else:
            self._device_step = DeviceStep(self._parameters[0].device, self._sketch_size)

    def _observe(self, index: int, grad: torch.Tensor | None) -> None:
        if grad is None:
            return
        self._seen[index] = True
        if grad.is_sparse:
            self._skipped += 1
        else:
            self._read(index, dense(grad), reduced=False)

    def _read(self, index: int, grad: torch.Tensor, *, reduced: bool) -> None:
        if self._device_step is not None:
            seed = self._observer.sketch_seed(index, self._step)
            self._device_step.observe(index, grad, seed=seed, reduced=reduced)
            return
        read = self._observer.reduced_gradient if reduced else self._observer.gradient
        read(index, grad.data_ptr(), grad.numel(), DTYPES[grad.dtype])

    def _end_step(self) -> None:
        if not self._open:
            return
        self._open = False
        found = Found(
            losses=[loss for loss, _ in self._losses],
            tokens=[count for _, count in self._losses],
            explicit=self._explicit,
            optimizer_steps=self._optimizer_steps,
            micro_batches=self._micro_batches,
            skipped=self._skipped,
            scale=self._scale,
        )
        self._losses, self._explicit, self._micro_batches = [], [], 0
        if not self._collected:
            return
        self._collected = False
        if self._device_step is None:
            self._send(self._packet(found))
            return
        step, number, self._device_step = self._device_step, self._step, None
        fetched = step.fetch(found.tensors())
        self._send(lambda: self._late_packet(found, number, fetched()))

    def _late_packet(self, found: Found, number: int, fetched: FetchedStep) -> bytes:
        """On the background thread: the numbers have left the device."""
        self._observer.begin_step(number)
        for gradient in fetched.gradients:
            self._observer.gradient_sums(*gradient)
        self._observer.add_sketch(fetched.sketch)
        return self._packet(found.with_numbers(fetched.extra))

    def _packet(self, found: Found) -> bytes:
        for value, weight, tokens in found.micro():
            self._observer.loss(value, weight, tokens)
        return self._observer.end_step(
            found.optimizer_steps,
            found.micro_batches,
            found.skipped,
            float(found.scale),
            self._dropped(),
        )


Scalar = float | int | torch.Tensor


@dataclass(frozen=True)
class Found:
    """What a step brought besides its gradients; scalars may still be tensors on a device."""

    losses: Sequence[Scalar]
    tokens: Sequence[Scalar]
    explicit: Sequence[tuple[Scalar, float]]
    optimizer_steps: int
    micro_batches: int
    skipped: int
    scale: Scalar

    def _scalars(self) -> list[Scalar]:
        return [*self.losses, *self.tokens, *(value for value, _ in self.explicit), self.scale]

    def tensors(self) -> list[torch.Tensor]:
        """The scalars that are not numbers yet."""
        return [s for s in self._scalars() if isinstance(s, torch.Tensor)]

    def with_numbers(self, numbers: Sequence[float]) -> Found:
        """The same with each of ``tensors()`` replaced by its number."""
        rest = iter(numbers)
        found = [next(rest) if isinstance(s, torch.Tensor) else s for s in self._scalars()]
        losses, found = found[: len(self.losses)], found[len(self.losses) :]
        tokens, found = found[: len(self.tokens)], found[len(self.tokens) :]
        weights = [weight for _, weight in self.explicit]
        explicit = list(zip(found, weights, strict=False))
        return replace(self, losses=losses, tokens=tokens, explicit=explicit, scale=found[-1])

    def micro(self) -> list[tuple[float, float, int]]:
        """Loss, weight and tokens of each micro-batch; explicit losses replace the model's."""
        losses = self.explicit or [(loss, 1.0) for loss in self.losses]
        tokens = [int(count) for count in self.tokens]
        if len(tokens) != len(losses):
            tokens = [sum(tokens)] + [0] * (len(losses) - 1)
        return [
            (float(loss), weight, count)
            for (loss, weight), count in zip(losses, tokens, strict=False)
        ]


def _scale_of(scaler: torch.amp.GradScaler | None) -> Scalar:
    """The factor on this step's gradients; a copy, because update() changes it in place."""
    if scaler is None or not scaler.is_enabled():
        return 1.0
    scale = getattr(scaler, "_scale", None)  # get_scale() would wait for the device
    return scale.clone() if isinstance(scale, torch.Tensor) else float(scaler.get_scale())


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where its elements fill one block of memory, else a contiguous copy."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if tensor.is_contiguous():
        return tensor
    channels_last = formats.get(tensor.dim())
    if channels_last is not None and tensor.is_contiguous(memory_format=channels_last):
        return tensor
    return tensor.contiguous()


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


def count_tokens(
    args: tuple[Any, ...], kwargs: dict[str, Any], *, on_host: bool
) -> torch.Tensor | int:
    """Target tokens of a micro-batch: labels that are not -100; 0 where no labels are found.

    Labels are the argument of that name, else, in host memory, the integer tensor that holds -100
    (looking for it elsewhere would wait for the device).
    """
    labels = kwargs.get("labels")
    if labels is None and on_host:
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
        integers = [t for t in tensors if not t.is_floating_point() and t.dtype != torch.bool]
        labels = next((t for t in integers if (t.numpy() == IGNORED_LABEL).any()), None)
    if not isinstance(labels, torch.Tensor):
        return 0
    if on_host:  # NumPy does this ten times as fast on a batch of labels
        return int(np.count_nonzero(labels.detach().numpy() != IGNORED_LABEL))
    return (labels != IGNORED_LABEL).sum()
