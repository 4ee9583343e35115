# SPDX-License-Identifier: Apache-2.0
"""The steps of one model on one worker: torch's events become those of docs/step.md, and what ends
there becomes packets."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from presum._core import AuditRecord, EndedStep, Observer
from presum.devices.gradient_pass import DTYPES, DeviceStep, FetchedStep, dense, poll_host_copies
from presum.devices.readable import readable
from presum.fingerprints import StepFingerprints, TakenFingerprints
from presum.fingerprints.step import MicroBatchSamples, StepSamples
from presum.steps.gradient_source import GradientSource
from presum.steps.late import LateNumbers
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

LAST_NUMBERS_SECONDS = 1.0  # how long close() waits for a device
READ_NOTHING, READ_SUMS, READ_ARRIVALS = range(3)  # what Observer.pass_begins returns
log = logging.getLogger("presum")


class AuditResult(NamedTuple):
    """What was found of a reduction."""

    record: AuditRecord
    repeat: bool | None  # whether the same reduction gave the same bits again


class ForwardFacts(NamedTuple):
    """What a forward pass of the wrapper told of its micro-batch."""

    forward: int  # its number
    loss: Scalar | None
    tokens: Scalar
    share: Scalar | None  # of the tokens that the loss was divided by, where it is not all of them
    rows: MicroBatchSamples | None


@dataclass(frozen=True)
class RecorderSetup:
    """What every recorder needs.

    ``send`` takes each step's packet, or a function that makes it (run on a background thread, for
    gradients that are still on their device); ``dropped`` tells how many packets were lost so far,
    ``failed`` takes the first exception of our own code; after it nothing more is recorded.
    ``hello`` is called when there are new facts, ``note`` takes a line for the run log. ``stepped``
    is called after each step of the optimiser, its packet sent, with the number of steps so far;
    what it raises as SystemExit ends the training.
    """

    observer: Observer
    parameters: Sequence[weakref.ref[nn.Parameter]]
    names: Sequence[str]
    device: torch.device  # of the gradients
    on_host: bool  # it is host memory
    replicas: int
    optimizers: Sequence[weakref.ref[Optimizer]]
    scaler: torch.amp.GradScaler | None
    every: int
    sketch_size: int
    fingerprints: StepFingerprints
    send: Callable[[bytes | LatePacket], None]
    dropped: Callable[[], int]
    failed: Callable[[Exception], None]
    hello: Callable[[], None]
    note: Callable[[str], None]
    stepped: Callable[[int], None]


class StepRecorder:
    """Turns the backward passes of one model into packets.

    Which of them make a step is the observer's; where gradients come from is the source's. Called
    by the training thread and by autograd's, never by two at once. The model's hooks hold it; it
    holds model, parameters and optimisers weakly.
    """

    def __init__(self, source: GradientSource, setup: RecorderSetup) -> None:
        self.source = source
        self.setup = setup
        self.observer = setup.observer
        self.off = False
        self.failed = False
        self.ended = False
        self.in_backward = False
        self.reads_sums = False  # of the pass under way, what ``.grad`` holds
        self.reads_arrivals = False  # likewise, what is added to it
        self._fingerprints = setup.fingerprints
        self._on_host = setup.on_host
        inner = source.inner()
        self._shifts_labels = inner is not None and shifts_labels(inner)
        self._scaled = setup.scaler is not None
        self._forwards = 0
        self._rows: MicroBatchSamples | None = None  # of the forward pass under way
        self._pass_rows: dict[int, MicroBatchSamples | None] = {}  # by the pass's forwards
        self._samples = StepSamples()  # of the window
        self._late = LateNumbers()  # likewise
        self._windows = 0  # that these are not of
        self._held: Scalar = 0.0  # by ``.grad`` where the pass under way began
        self._versions = 0  # of the parameters when the window's last pass ended
        self._scale_of_pass: Scalar = 1.0
        self._end_queued = False
        self._device_step: DeviceStep | None = None  # where gradients are not in host memory
        self._late_steps: set[int] = set()  # whose packets are not made yet
        self._in_hook = False  # of the optimiser, while others are called out of it
        self._told_of_audit = False
        self._told: set[int] = set()  # parameters whose gradients cannot be read
        self._handles: list[Any] = []
        self._listening = False

    def hook(self) -> None:
        """Register every hook; ``unhook`` takes them off again."""
        wrapper, inner = self.source.wrapper(), self.source.inner()
        assert wrapper is not None and inner is not None
        self._handles += [TAPS.at_beginnings(self._backward_begins), *self.source.start(self)]
        self._handles += [
            wrapper.register_forward_pre_hook(Hook(self, self._before_forward), with_kwargs=True),
            wrapper.register_forward_hook(Hook(self, self._after_forward), with_kwargs=True),
            inner.register_forward_pre_hook(Hook(self, self._before_inner_forward)),
        ]
        for number, reference in enumerate(self.setup.optimizers):
            optimizer = reference()
            if optimizer is not None:
                self._handles += self._hooks_of(optimizer, number)
        self._listen()

    def _hooks_of(self, optimizer: Optimizer, number: int) -> list[Any]:
        before = Hook(self, self._before_optimizer_step)
        after = OptimizerHook(self, self._after_optimizer_step, number)
        return [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]

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

    def alive(self) -> Iterator[tuple[int, nn.Parameter]]:
        """Place and parameter."""
        for place, reference in enumerate(self.setup.parameters):
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
        if module is self.source.wrapper():
            Hook(self, self._before_forward)(module, args, kwargs)
        if module is self.source.inner():
            Hook(self, self._before_inner_forward)(module, args)

    # ---- what the user reports

    def loss(self, value: Scalar, weight: float) -> None:
        """Report a micro-batch's loss; replaces what the model's output says in this step."""
        if not self.off:
            self.observer.loss(self._late.number(value), weight, 0)

    @property
    def optimizer_steps(self) -> int:
        return self.observer.optimizer_steps_done

    # ---- the end

    def close(self) -> None:
        """End an open step, hash the parameters for the final note, and remove every hook."""
        Hook(self, self._close_step)()
        Hook(self, self._take_final_states)()
        Hook(self, self._await_numbers)()
        self.off = self.ended = True
        self._ignore()
        if not self._in_hook:
            self.unhook()  # else they stay and do nothing: torch is walking over them

    def _close_step(self) -> None:
        self.observer.closed()
        self._send_ended()

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
                self._close_step()
            self.observer.begin_states()  # of a step that has not ended: no final ones
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Stop recording. Hooks stay: removing one while torch walks over them is not safe."""
        self.off = self.failed = True
        self._device_step = None
        try:
            self.observer.begin_states()  # half of them must not be taken for all at the end
            self.setup.failed(error)
        except Exception:
            log.debug("presum: could not say what failed", exc_info=True)

    # ---- forward passes

    def _before_forward(
        self, _module: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        poll_host_copies()
        # A forward pass of any kind, evaluation too, ends an open step.
        if not self.in_backward or not in_backward():
            self.end_step()
        if not torch.is_grad_enabled() or in_backward():
            return
        self._pass_rows.clear()
        self.observer.enter_wrapper()
        recorded = self.observer.next_is_recorded
        self._rows = self._fingerprints.rows(args, kwargs, recorded=recorded)

    def end_step(self) -> None:
        """The step that is open has ended, and a backward pass that did not end has failed."""
        self.in_backward = self.reads_sums = self.reads_arrivals = self._end_queued = False
        left: Scalar = self.source.held() if self.observer.asks_what_is_left else 0.0
        self.observer.forward(self._late.number(left))
        self._send_ended()

    def _before_inner_forward(self, _module: object, _args: object) -> None:
        """After DDP has broadcast its buffers; also where the wrapper is passed by."""
        if in_backward() or not torch.is_grad_enabled():
            return
        takes = self.observer.enter_module()
        self._send_ended()
        if takes:
            self._fingerprints.before_step(self.observer.turn, on_host=self._on_host)

    def _after_forward(
        self, _module: object, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        self.source.forward_is_over()
        if not torch.is_grad_enabled() or in_backward():
            return
        loss, recorded = find_loss(output), self.observer.next_is_recorded
        self._forwards += 1
        facts = ForwardFacts(self._forwards, None, 0, None, None)
        if recorded:
            facts = self._facts_of(args, kwargs)
        if loss is not None:
            self._watch(loss, facts._replace(loss=kept_value(loss)) if recorded else facts)
        other = first_tensor(output, but=loss)  # what is trained may be made of that instead
        if other is not None:
            self._watch(other, facts)

    def _facts_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ForwardFacts:
        """What is known of its micro-batch besides the loss."""
        rows, self._rows = self._rows, None
        shifted = self._shifts_labels if TAPS.shifts_labels is None else TAPS.shifts_labels
        tokens = count_tokens(args, kwargs, on_host=self._on_host, shifted=shifted)
        share = share_of_tokens(kwargs, tokens, TAPS.items)
        return ForwardFacts(self._forwards, None, tokens, share, rows)

    def _watch(self, output: torch.Tensor, facts: ForwardFacts) -> None:
        hooks = output._backward_hooks or {}
        for key in [key for key, hook in hooks.items() if belongs_to(hook, self)]:
            del hooks[key]  # of an output that the model gives again
        output.register_hook(OutputHook(self, facts))  # type: ignore[no-untyped-call]

    # ---- backward passes

    def output_reached(self, facts: ForwardFacts) -> None:
        """A backward pass begins at the module's output.

        Its end is queued here, because a parameter inside a reentrant checkpoint sees a nested pass
        only; whether it is a training pass shows when a parameter accumulates. Only a loss that
        gets here counts: validation does not.
        """
        number = self._late.number
        loss = None if facts.loss is None else number(facts.loss)
        share = None if facts.share is None else number(facts.share)
        self.observer.reached(facts.forward, loss, number(facts.tokens), share)
        self._pass_rows.setdefault(facts.forward, facts.rows)
        self.queue_end()

    def queue_end(self) -> None:
        """Have the end of the backward pass under way told, once."""
        if not self._end_queued:
            self._end_queued = True
            self._scale_of_pass = self._scale_now()
            self.source.queue(Hook(self, self._after_backward))

    def _after_backward(self) -> None:
        self.source.pass_is_over()
        self._end_queued = False
        self.observer.forget_reached()
        self._pass_rows = {}

    def _backward_begins(self) -> None:
        """Before each backward pass, of this model or another."""
        if not self.off:
            Hook(self, self._look)()

    def _look(self) -> None:
        """At what ``.grad`` holds before a pass adds to it."""
        if self.in_backward:  # one that did not end
            self.end_step()
        observer = self.observer
        begins = observer.window_begins and observer.next_is_recorded
        self._held = 0.0
        if not self.source.sees_zeroing or not (begins or observer.in_window):
            return
        self._held = self.source.held()
        nothing = not isinstance(self._held, torch.Tensor) and self._held == 0
        if nothing and observer.in_window:
            self._zeroed()
        if not nothing and observer.window_begins:
            self.source.listen_to_arrivals()

    def _zeroed(self) -> None:
        """Without an optimiser parameters that changed tell of its step."""
        changed = not self.setup.optimizers and self._versions_now() != self._versions
        self.observer.zeroed(changed)
        self._send_ended()

    def _versions_now(self) -> int:
        return sum(parameter._version for _, parameter in self.alive())

    def before_backward(self) -> None:
        """The first parameter of a backward pass has its gradient."""
        self.source.before_pass()

    def pass_begins(self, *, reduces: bool, more_follow: bool, readable: bool = True) -> None:
        """A backward pass accumulates into the model's gradients."""
        observer = self.observer
        if observer.open:
            observer.forward(self._late.number(self._held))
            self._send_ended()
        self.in_backward = True
        self.queue_end()
        if not self._pass_rows:
            # A backward pass within the forward (Lightning's manual optimisation), or from an
            # output in which no tensor was found.
            self._pass_rows[0] = self._rows
        readable = readable and not self.is_captured()
        held = self._late.number(self._held)
        read = observer.pass_begins(reduces, more_follow, readable, held)
        self.reads_sums, self.reads_arrivals = read == READ_SUMS, read == READ_ARRIVALS
        if read != READ_NOTHING:
            self.begin_reading()

    def begin_reading(self) -> None:
        """A step's gradients come."""
        if not self._on_host:
            self._device_step = DeviceStep(self.setup.device, self.setup.sketch_size)
        self.source.begin_reading()

    def pass_ends(self) -> None:
        """It has accumulated."""
        observer = self.observer
        self.in_backward = self.reads_sums = self.reads_arrivals = False
        root = None
        if observer.collects:
            root = TAPS.root_loss() if observer.needs_root else None
            for rows in self._pass_rows.values():
                self._samples.add(rows)
        factor = TAPS.loss_factor if TAPS.items is not None else float(self.setup.replicas)
        number = self._late.number
        observer.pass_ends(
            number(self._scale_of_pass),
            None if root is None else number(root),
            TAPS.loss_factor,
            factor,
        )
        if observer.in_window and not self.setup.optimizers:
            self._versions = self._versions_now()

    def reduction(self) -> None:
        """Gradients are handed over to be reduced, perhaps in the middle of a backward pass."""
        if in_backward() and self._pass_rows and not self.in_backward:
            self.pass_begins(reduces=False, more_follow=True, readable=False)
        if self.observer.open:
            self.end_step()
        self.observer.reduction(not self.is_captured())
        if self.observer.records:
            self.begin_reading()

    def shadow(self) -> None:
        """The other workers have reduced; this one took part without a pass of its own."""
        self.end_step()
        self.observer.shadow()
        self._send_ended()

    def is_captured(self) -> bool:
        """Whether the pass is captured into a CUDA graph: what it computes comes when the graph is
        replayed, and then no hook is called."""
        if self.setup.device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            return False
        self._fingerprints.note_once("a CUDA graph was captured: its steps are not read")
        return True

    def _scale_now(self) -> Scalar:
        """The factor on this step's gradients; a copy, because update() changes it in place."""
        scaler = self.setup.scaler or TAPS.scaler()
        if scaler is None or not scaler.is_enabled():
            return 1.0
        if not self._scaled:
            self._scaled = True
            self.observer.fact("grad_scaler", type(scaler).__name__)
            self.setup.hello()
        scale = getattr(scaler, "_scale", None)  # get_scale() would wait for the device
        value = kept_value(scale if isinstance(scale, torch.Tensor) else scaler.get_scale())
        return 1.0 if value is None else value

    # ---- the optimiser

    def count_optimizer_step(self) -> None:
        """All that is left to do after an optimiser step once recording has failed."""
        try:
            self.observer.optimizer_steps(0)
            self.setup.stepped(self.optimizer_steps)
        except Exception:
            log.debug("presum: after a step", exc_info=True)

    def _before_optimizer_step(self, *_: object) -> None:
        self.observer.optimizer_begins()
        if self.observer.in_window and self.source.sees_zeroing:
            held = self.source.held()
            if not isinstance(held, torch.Tensor) and held == 0:
                self._zeroed()

    def _after_optimizer_step(self, which: int, *_: object) -> None:
        self.observer.optimizer_steps(which)
        self._send_ended()
        poll_host_copies()
        self._fingerprints.stepped()
        self._in_hook = True
        try:
            self.setup.stepped(self.observer.steps)
        finally:
            self._in_hook = False

    # ---- one step

    def read(self, index: int, grad: torch.Tensor | None, *, reduced: bool) -> None:
        """One gradient, this worker's own or the reduced one."""
        if grad is None:
            return
        if not reduced:
            grad = self.source.own(index, grad)
        plain = readable(grad)
        dtype = DTYPES.get(grad.dtype)
        if dtype is None or plain is None:
            self._skip(index, grad, reduced=reduced)
            return
        grad = dense(plain)
        if self._device_step is not None:
            if not reduced:
                self.observer.mark_seen(index)
            seed = self.observer.seed(index)
            self._device_step.observe(index, grad, seed=seed, reduced=reduced)
            return
        if not grad.is_cpu:
            raise RuntimeError(f"gradients moved to {grad.device} after attach")
        read = self.observer.reduced_gradient if reduced else self.observer.gradient
        read(index, grad.data_ptr(), grad.numel(), dtype)

    def _skip(self, index: int, grad: torch.Tensor, *, reduced: bool) -> None:
        if not reduced:
            self.observer.mark_seen(index)
            self.observer.skip(1)
        if index not in self._told:
            self._told.add(index)
            name = self.setup.names[index]
            self.setup.note(f"the gradient of {name} is {_kind_of(grad)}: it is not read")

    def add_audit(self, found: AuditResult | None) -> None:
        """What was found of the reduction of the step under way. Called by several threads."""
        if found is None and not self._told_of_audit:
            self._told_of_audit = True
            self.setup.note("a communication hook changes dtype or size: its sum is not audited")
        if found is not None:
            self.observer.audit(found.record, repeat=found.repeat)

    def _send_ended(self) -> None:
        """The step that the last event has ended, if it has; what is late of other windows goes."""
        observer = self.observer
        if observer.windows == self._windows:
            return
        self._windows = observer.windows
        late, self._late = self._late, LateNumbers()
        device, self._device_step = self._device_step, None
        rows = self._samples.take()
        ended = observer.take_ended()
        dot, gram = self.source.take_mean_dot(), self.source.take_gram()
        if ended is None:
            return
        extras = StepExtras(ended, self._fingerprints.take(rows), dot, gram)
        if self._on_host:
            self.setup.send(self._packet(extras))
            return
        number, device = observer.windows, device or self._no_gradients()
        fetch = device.fetch(late.tensors() + extras.numbers(), extras.words())
        self._late_steps.add(number)
        make = partial(self._late_packet, extras, number)
        self.setup.send(
            LatePacket(fetch.ready, lambda: make(fetch()), lambda: self._late_steps.discard(number))
        )

    def _no_gradients(self) -> DeviceStep:
        return DeviceStep(self.setup.device, self.setup.sketch_size)

    def _take_final_states(self) -> None:
        final = self._fingerprints.final_states(on_host=self._on_host)
        if not final.states:
            return
        fetch = self._no_gradients().fetch([], final.tensors())
        deadline = time.monotonic() + LAST_NUMBERS_SECONDS
        while not fetch.ready():
            if time.monotonic() > deadline:
                return
            time.sleep(0.001)
            poll_host_copies()
        self._fingerprints.report_states(final.with_numbers(fetch().words).states, self.observer)

    def _late_packet(self, extras: StepExtras, number: int, fetched: FetchedStep) -> bytes:
        """On the background thread: the numbers have left the device."""
        try:
            ended = extras.ended
            extras = extras.with_numbers(fetched.extra, fetched.words)
            ended.numbers(fetched.extra)
            for gradient in fetched.gradients:
                ended.gradient_sums(*gradient)
            ended.add_sketch(fetched.sketch)
            return self._packet(extras)
        finally:
            self._late_steps.discard(number)

    def _packet(self, extras: StepExtras) -> bytes:
        ended = extras.ended
        if extras.mean_dot is not None:
            ended.mean_dot(float(extras.mean_dot))
        if extras.gram is not None:
            ended.gram(extras.gram.tolist())
        self._fingerprints.report(extras.prints, ended)
        return ended.packet(self.setup.dropped())


def _kind_of(grad: torch.Tensor) -> str:
    """Why it cannot be read."""
    if grad.dtype not in DTYPES:
        return str(grad.dtype).removeprefix("torch.")
    return "sparse" if grad.is_sparse else f"a {type(grad).__name__} without memory of its own"


def in_backward() -> bool:
    """Inside a backward pass: activation checkpointing computes forward passes again."""
    return bool(torch._C._current_graph_task_id() != -1)


class StepExtras(NamedTuple):
    """A step that has ended, and what it is still to be told; some of it may be on a device."""

    ended: EndedStep
    prints: TakenFingerprints
    mean_dot: Scalar | None
    gram: torch.Tensor | None

    def numbers(self) -> list[torch.Tensor]:
        """The scalars that are not numbers yet."""
        return [self.mean_dot] if isinstance(self.mean_dot, torch.Tensor) else []

    def words(self) -> list[torch.Tensor]:
        """Likewise, as bits of 64."""
        gram = [] if self.gram is None else [self.gram.view(torch.int64)]
        return [*self.prints.tensors(), *gram]

    def with_numbers(self, numbers: Sequence[float], words: Sequence[Sequence[int]]) -> StepExtras:
        """The same with what ``words()`` brought, and the last number in place of a tensor."""
        dot = numbers[-1] if isinstance(self.mean_dot, torch.Tensor) else self.mean_dot
        gram = None if self.gram is None else _doubles(words[-1])
        prints = self.prints.with_numbers(words if gram is None else words[:-1])
        return StepExtras(self.ended, prints, dot, gram)


def _doubles(words: Sequence[int]) -> torch.Tensor:
    signed = [word - (1 << 64) if word >= 1 << 63 else word for word in words]
    return torch.tensor(signed, dtype=torch.int64).view(torch.float64)
