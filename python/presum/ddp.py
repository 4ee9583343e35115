# SPDX-License-Identifier: Apache-2.0
"""Watching one DistributedDataParallel module without touching its synchronisation.

Gradients are read in post-accumulate hooks, where they are still this worker's own. A step is one
backward pass that is due to synchronise; it stays open until the optimiser step or the next
training forward, so that a loss reported after ``backward()`` still belongs to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from presum._core import Observer

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

    ``send`` takes each step's packet, ``dropped`` tells how many packets were lost so far,
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
        send: Callable[[bytes], None],
        dropped: Callable[[], int],
        failed: Callable[[Exception], None],
    ) -> None:
        self._model = model
        self._observer = observer
        self._scaler = scaler
        self._every = every
        self._reduced_every = reduced_every
        self._send = send
        self._dropped = dropped
        self._failed = failed
        self._parameters = [p for p in model.module.parameters() if p.requires_grad]
        self._seen = [False] * len(self._parameters)
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
        self._losses: list[tuple[torch.Tensor, int]] = []
        self._explicit: list[tuple[float | torch.Tensor, float]] = []
        self._handles: list[Any] = [
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
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

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
        entry = (loss.detach(), count_tokens(args, kwargs))
        # Only a loss that takes part in a backward pass counts: validation does not.
        loss.register_hook(Hook(self, self._loss_used, entry))  # type: ignore[no-untyped-call]

    def _loss_used(self, entry: tuple[torch.Tensor, int], _grad: torch.Tensor) -> None:
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
                self._observer.begin_step(self._step)
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
            grad = parameter.grad
            if grad is not None and not grad.is_sparse:
                grad = dense(grad)
                dtype = DTYPES[grad.dtype]
                self._observer.reduced_gradient(index, grad.data_ptr(), grad.numel(), dtype)

    def _after_optimizer_step(self, *_args: object) -> None:
        self._optimizer_steps += 1
        self._end_step()

    # ---- one step

    def _observe(self, index: int, grad: torch.Tensor | None) -> None:
        if grad is None:
            return
        self._seen[index] = True
        if grad.is_sparse:
            self._skipped += 1
            return
        grad = dense(grad)
        self._observer.gradient(index, grad.data_ptr(), grad.numel(), DTYPES[grad.dtype])

    def _end_step(self) -> None:
        if not self._open:
            return
        self._open = False
        losses = self._explicit or [(loss, 1.0) for loss, _ in self._losses]
        tokens = [count for _, count in self._losses]
        micro_batches = self._micro_batches
        self._losses, self._explicit, self._micro_batches = [], [], 0
        if not self._collected:
            return
        self._collected = False
        tokens = tokens if len(tokens) == len(losses) else [sum(tokens)] + [0] * len(losses)
        for (value, weight), count in zip(losses, tokens, strict=False):
            self._observer.loss(float(value), weight, count)
        self._send(
            self._observer.end_step(
                self._optimizer_steps, micro_batches, self._skipped, self._scale(), self._dropped()
            )
        )

    def _scale(self) -> float:
        return float(self._scaler.get_scale()) if self._scaler is not None else 1.0


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


def count_tokens(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Target tokens of a micro-batch: labels that are not -100; 0 where no labels are found.

    Labels are the argument of that name, else the integer tensor that holds -100.
    """
    labels = kwargs.get("labels")
    if labels is None:
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
        integers = [t for t in tensors if not t.is_floating_point() and t.dtype != torch.bool]
        labels = next((t for t in integers if bool((t == IGNORED_LABEL).any())), None)
    if not isinstance(labels, torch.Tensor):
        return 0
    return int((labels != IGNORED_LABEL).sum())
