# SPDX-License-Identifier: Apache-2.0
"""Records the steps of one model on one rank: turns torch's events into those of docs/step.md, and
ended steps into packets."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from presum._core import Mark, PassFlags, Read, canonical_name
from presum.devices.gradient_pass import poll_host_copies
from presum.devices.marks import marks_of
from presum.devices.queue import capturing
from presum.fingerprints.families import Families
from presum.fingerprints.step import MicroBatchSamples
from presum.steps.accumulation import AccumulationWindow
from presum.steps.clipping import ClipNorms
from presum.steps.copies import differing, told
from presum.steps.ended_steps import EndedSteps
from presum.steps.forwards import ForwardFacts, ForwardPasses
from presum.steps.gradient_reader import GradientPart, GradientReader
from presum.steps.gradient_source import AuditResult, GradientSource, in_backward, queue_last
from presum.steps.late import Number
from presum.steps.optimizer_steps import OptimizerSteps
from presum.steps.overhead import Overhead
from presum.steps.setup import RecorderSetup
from presum.steps.verification import Verification
from presum.steps.waiting import Waiting
from presum.torch_events.clipping import CLIPS
from presum.torch_events.divisions import DIVISIONS
from presum.torch_events.hooks import Hook, OptimizerHook, in_optimizer_step
from presum.torch_events.losses import Scalar, kept_value
from presum.torch_events.taps import TAPS, EngineRun

ASIDE = (
    "lost gradients",
    "rounded updates",
    "snapshots",
    "reduced layers",
    "other optimizers",
    "two optimizers",
    "gradient factor",
    "small gradients",
    "token weights",
)
QUEUED_BYTES_MAX = 64 << 20  # of gradients on a device that wait to be read together
log = logging.getLogger("presum")


class StepRecorder(PassFlags):
    """Turns the backward passes of one model into packets.

    The observer decides which passes form a step; the source provides the gradients. The training
    thread and autograd's threads call it, never two at once. The model's hooks hold it; it holds
    the model, its parameters and the optimizers weakly.
    """

    def __init__(self, source: GradientSource, setup: RecorderSetup) -> None:
        super().__init__()
        self.source = source
        self.setup = setup
        self.observer = setup.observer
        self.failed = False
        self.ended = False
        self._fingerprints = setup.fingerprints
        self._aside = Families(ASIDE, setup.note)  # an error in one of these ends only that one
        self.waiting = Waiting()
        timed = not setup.on_host and source.tells_waits
        self._marks = marks_of(setup.device) if timed else None
        self._window = AccumulationWindow(setup, source)
        self._optimizers = OptimizerSteps(setup, self._window, self._aside)
        every = setup.verify_every
        self._verification = Verification(setup, every) if every else None
        self.clip_norms = ClipNorms(setup)
        self._forwards = ForwardPasses(setup, source.inner(), self._window)
        self._reader = GradientReader(setup)
        self._ended = EndedSteps(setup)
        self._overhead = Overhead(setup, self)
        self._scaled = setup.scaler is not None
        self._pass_rows: dict[int, MicroBatchSamples | None] = {}  # by the number of the forward
        self._held: Scalar = 0.0  # in ``.grad`` when the current pass began
        self._left: tuple[int, int] | None = None  # what the last pass has written to `.grad`
        self._versions = 0  # of the parameters when the window's last pass ended
        self._scale_of_pass: Scalar = 1.0
        self._tokens_told: tuple[Scalar, Scalar] | None = None  # of the coming pass, and of each
        self._end_queued = False
        self._run: EngineRun | None = None  # of the current pass
        self._run_told: EngineRun | None = None  # the run whose loss is known
        self._looked: EngineRun | None = None  # the run before which `.grad` was examined
        self.gathers = False  # read() may wait for more gradients, on a device
        self._task = -1  # the same, if the program has called the engine itself
        self._in_hook = False  # of the optimizer, while it calls others
        self._told_of_audit = False
        self._handles: list[Any] = []
        self._listening = False

    def hook(self) -> None:
        """Register every hook; ``unhook`` removes them."""
        wrapper, inner = self.source.wrapper(), self.source.inner()
        assert wrapper is not None and inner is not None
        self._handles += [TAPS.at_beginnings(self._backward_begins), *self.source.start(self)]
        self._handles += [CLIPS.add(Hook(self, self._before_clipping))]
        self._handles += [
            wrapper.register_forward_pre_hook(Hook(self, self._before_forward), with_kwargs=True),
            wrapper.register_forward_hook(
                Hook(self, self._after_forward), with_kwargs=True, always_call=True
            ),
            inner.register_forward_pre_hook(Hook(self, self._before_inner_forward)),
        ]
        if self.source.broadcasts:
            first = Hook(self, self._has_broadcast)
            self._handles += [inner.register_forward_pre_hook(first, prepend=True)]
        if self._verification is not None:
            self._handles += self._verification.hook(self, inner)
        for number, reference in enumerate(self.setup.optimizers):
            optimizer = reference()
            if optimizer is not None:
                self._handles += self._hooks_of(optimizer, number)
        self._handles += self._optimizers.hook_all(self)
        self._listen()

    def _hooks_of(self, optimizer: Optimizer, number: int) -> list[Any]:
        before = Hook(self, self._before_optimizer_step)
        after = OptimizerHook(self, self._after_optimizer_step, number)
        saves = Hook(self, self._optimizers.saves)
        return [
            optimizer.register_step_pre_hook(before),
            optimizer.register_step_post_hook(after),
            optimizer.register_state_dict_pre_hook(saves),
        ]

    def tell_layers(self, call: Callable[..., None], *args: Any) -> None:
        """Observe what a reduction does with each layer, through private names of torch that may
        change."""
        self._aside.call("reduced layers", call, *args)

    @property
    def hooked(self) -> bool:
        return bool(self._handles)

    def unhook(self) -> None:
        """Remove every hook. Must not be called from inside one."""
        self._ignore()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _listen(self) -> None:
        self._listening = True
        TAPS.add()
        DIVISIONS.add()
        self._fingerprints.listen(True)

    def _ignore(self) -> None:
        if self._listening:
            self._listening = False
            TAPS.remove()
            DIVISIONS.remove()
            self._fingerprints.listen(False)

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Catch up on a forward pass of the wrapper or of the module inside, during which the hooks
        were registered: its own hooks came too late."""
        if module is self.source.wrapper():
            Hook(self, self._before_forward)(module, args, kwargs)
        if module is self.source.inner():
            Hook(self, self._before_inner_forward)(module, args)

    # ---- reports of the user

    def loss(self, value: Scalar, weight: float) -> None:
        """Report a micro-batch's loss. It replaces the loss in the model's output for this step."""
        if not self.off:
            self.observer.loss(self._ended.late.number(value), weight, 0)

    def token_weight(self, tokens: Scalar, weight: Scalar) -> None:
        """Report the target tokens of the coming backward pass, and what one weighs in its loss."""
        if not self.off:
            self._tokens_told = tokens, weight

    def compare(self, name: str, copies: Sequence[tuple[str, torch.Tensor]]) -> list[str]:
        """Compare copies of parameters now. Raises ValueError."""
        inner = self.source.inner()
        named = () if inner is None else inner.named_parameters(remove_duplicate=False)
        own = {canonical_name(name): parameter for name, parameter in named}
        own |= {canonical_name(self.setup.names[place]): p for place, p in self.setup.alive()}
        different = differing(own, copies)
        self._fingerprints.tell_next("compared_different", len(different))
        if different:
            self.observer.fact("compared_different", told(name, different, len(copies)))
            self.setup.hello()
        return different

    # ---- the end

    def close(self) -> None:
        """End an open step, hash the parameters for the final note, and remove every hook."""
        Hook(self, self._close_step)()
        Hook(self, self._optimizers.recording_ends)()
        Hook(self, self._ended.take_final_states)()
        Hook(self, self._ended.await_numbers)()
        self.off = self.ended = True
        self.waiting.end()
        self._ignore()
        if not self._in_hook:
            self.unhook()  # else they stay and do nothing, because torch is iterating over them

    def _close_step(self) -> None:
        self.observer.closed()
        self._send_ended()

    def close_without_model(self) -> None:
        """End an open step after the model is gone; its hooks stay and do nothing. For any thread,
        once no hook runs. A step on a device is dropped: only the training thread may fetch its
        numbers."""
        self.off = self.ended = True
        self._reader.forget()
        try:
            if self.setup.on_host and not self.in_backward:
                self._close_step()
            self.observer.begin_states()  # drops partial hashes of a step that has not ended
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Stop recording. The hooks stay: removing one while torch iterates over them is unsafe."""
        self.off = self.failed = True
        self.waiting.end()
        self._reader.forget()
        try:
            self.observer.begin_states()  # partial hashes must not count as complete at the end
            self.setup.failed(error)
        except Exception:
            log.debug("presum: could not say what failed", exc_info=True)

    # ---- forward passes

    def _before_forward(
        self, _module: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        poll_host_copies()
        # A forward pass of any kind, including evaluation, ends an open step.
        if not self.in_backward or not in_backward():
            self._leave_failed_step()
            self.waiting.end()
            self.end_step()
        if in_backward():
            return
        if not torch.is_grad_enabled():
            self.observer.evaluates()
            self._fingerprints.evaluates(args, kwargs)
            self._mark(Mark.EVALUATES)
            return
        self._look_for_zeros()
        self._pass_rows.clear()
        self.observer.enter_wrapper()
        self._fingerprints.before_broadcast()
        self._forwards.begin(args, kwargs)
        self._mark(Mark.FORWARD)
        if self.source.broadcasts:
            self.waiting.begin()

    def _has_broadcast(self, _module: object, _args: object) -> None:
        """Runs first of the hooks before the module's forward pass: the time of the others is the
        rank's own."""
        self.waiting.end()

    def _mark(self, mark: Mark) -> None:
        """Mark the device's time; the observer has the host's."""
        if self._marks is not None:
            self._marks.add(mark)

    def end_step(self) -> None:
        """End the open step. A backward pass that did not end has failed."""
        self.in_backward = self.reads_sums = self.reads_arrivals = self._end_queued = False
        left: Scalar = math.nan
        if self.source.sees_zeroing and self.observer.asks_what_is_left:
            left = self._held_now()
        self.observer.forward(self._ended.late.number(left))
        self._send_ended()

    def _before_inner_forward(self, _module: object, _args: object) -> None:
        """After DDP has broadcast its buffers, and also if the program bypasses the wrapper."""
        if in_backward():
            return
        if not torch.is_grad_enabled():
            self.observer.evaluates()
            return
        self._optimizers.training_thread = threading.get_ident()
        takes = self.observer.enter_module()
        self._mark(Mark.FORWARD)
        self._send_ended()
        if takes:
            self._optimizers.model_begins()
            self._fingerprints.before_step(self.observer.turn, on_host=self.setup.on_host)
            self._optimizers.window_begins()

    def _after_forward(
        self, _module: object, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        self.source.forward_is_over()
        if not torch.is_grad_enabled() or in_backward():
            return
        self._fingerprints.after_forward()
        self._forwards.end(self, args, kwargs, output)

    # ---- backward passes

    def output_reached(self, facts: ForwardFacts) -> None:
        """A backward pass begins at the module's output.

        Its end is queued here, because a parameter inside a reentrant checkpoint sees only a nested
        pass. Accumulation into a parameter shows that it is a training pass. A loss counts only if
        it gets here, which excludes validation.
        """
        self._enter_engine(reached_first=True)
        self.source.output_reached(facts.forward)
        if not self._end_queued:
            self.observer.backward(True)
            self._mark(Mark.BACKWARD)
        number = self._ended.late.number
        loss = None if facts.loss is None else number(facts.loss)
        share = None if facts.share is None else number(facts.share)
        self.observer.reached(facts.forward, loss, number(facts.tokens), share)
        self._pass_rows.setdefault(facts.forward, facts.rows)
        self._window.reached(facts.forward)
        self.queue_end()

    def queue_end(self) -> None:
        """Queue the end of the current backward pass, once."""
        if not self._end_queued:
            self._end_queued = True
            self._run = TAPS.run()
            self._scale_of_pass = self._scale_now()
            end = Hook(self, self._after_backward)
            TAPS.in_outermost(Hook(self, self.source.queue, end))

    def _enter_engine(self, *, reached_first: bool) -> None:
        """Examine ``.grad`` if that has not been done, because threads train concurrently, or
        because the program has called the engine itself, as Megatron does. Once a parameter has its
        gradient it is too late."""
        task = torch._C._current_graph_task_id()
        run = TAPS.run()
        looked = run is not None and (run is self._looked or not run.accumulates)
        if looked or TAPS.is_nested or task == self._task:
            return
        self._task = task
        if reached_first:
            self._look()
        else:
            self._held = math.nan

    def _after_backward(self) -> None:
        self.source.pass_is_over()
        self._end_queued = False
        self.observer.forget_reached()
        self._pass_rows = {}

    def _backward_begins(self) -> None:
        """Before each backward pass, of this model or another.

        It leaves alone what another thread may be writing; ``.grad`` is then examined when the pass
        reaches this model's output.
        """
        mine = self._optimizers.training_thread in (0, threading.get_ident())
        if mine and not TAPS.others_run and not self.off:
            self._looked = TAPS.run()
            Hook(self, self._look)()
            if self._looked is not None:
                Hook(self, self._fingerprints.backward_begins)(self._looked.roots())
                if self.observer.next_is_recorded:
                    Hook(self, self._aside.call)("token weights", self._looked.weighs_tokens)
            Hook(self, self.observer.backward)(False)

    def _look(self) -> None:
        """Examine ``.grad`` before a pass adds to it."""
        if self._run is not None and not self._run.over:
            return  # a pass of this model is running in another thread
        if self.in_backward:  # one that did not end
            self.end_step()
        self._leave_failed_step()
        self._end_queued = False
        self._pass_rows = {}
        observer = self.observer
        observer.forget_reached()
        self._aside.call("lost gradients", self._window.pass_begins)
        begins = observer.window_begins and observer.next_is_recorded
        self._held = 0.0
        if not self.source.sees_zeroing or not (begins or observer.in_window):
            return
        self._held = self._held_now()
        nothing = not isinstance(self._held, torch.Tensor) and self._held == 0
        if nothing and observer.in_window:
            self._zeroed()
        elif nothing:
            self._aside.call("lost gradients", self._window.zeroed, self._scale_of_pass)
        if not nothing and observer.window_begins:
            self.source.listen_to_arrivals()

    def _held_now(self) -> Scalar:
        """The largest absolute value in ``.grad``; above 0 if only passes with a gradient of 0 have
        written to it, such as that of a micro-batch without a target."""
        held = self.source.held()
        if isinstance(held, torch.Tensor) or held != 0 or self._left is None:
            return held
        return math.ulp(0.0) if self.setup.written() == self._left else held

    def _zeroed(self) -> None:
        """Without an optimizer, changed parameters reveal its step."""
        self._aside.call("lost gradients", self._window.zeroed, self._scale_of_pass)
        changed = not self.setup.optimizers and self._versions_now() != self._versions
        self.observer.zeroed(changed)
        self._send_ended()

    def _versions_now(self) -> int:
        return sum(parameter._version for _, parameter in self.setup.alive())

    def before_backward(self) -> None:
        """The first parameter of a backward pass has its gradient."""
        self.source.before_pass()

    def accumulated(self, index: int) -> None:
        """A parameter has its gradient, in a pass whose arrivals are read."""
        if not self.observer.seen(index):
            self.observer.skip(1)  # its node is not the one that is listened to

    def pass_begins(self, *, reduces: bool, more_follow: bool, readable: bool = True) -> None:
        """A backward pass accumulates into the model's gradients."""
        self._enter_engine(reached_first=False)
        observer = self.observer
        if observer.open:
            left = self._held if self.source.sees_zeroing else math.nan
            observer.forward(self._ended.late.number(left))
            self._send_ended()
        self.in_backward = True
        if not self._end_queued:
            observer.backward(True)
            self._mark(Mark.BACKWARD)
        self.queue_end()
        if not self._pass_rows:
            # A backward pass inside the forward (Lightning's manual optimization), or from an
            # output in which no tensor was found.
            self._pass_rows[0] = self._forwards.take_rows()
        held = self._ended.late.number(self._held if self.source.reads_grad else 0.0)
        read = observer.pass_begins(reduces, more_follow, readable, held)
        self.reads_sums, self.reads_arrivals = read is Read.SUMS, read is Read.ARRIVALS
        if read is not Read.NOTHING:
            self.begin_reading()

    def begin_reading(self) -> None:
        """The gradients of a step begin."""
        self._reader.begin()
        self.source.begin_reading()

    def pass_ends(self, *, part: bool = False) -> None:
        """The pass has accumulated. ``part``: the expected reduction waits for another pass."""
        observer = self.observer
        self.in_backward = self.reads_sums = self.reads_arrivals = False
        root, weighed = None, None
        told, self._tokens_told = self._tokens_told, None
        if observer.collects:
            first = self._run is not self._run_told  # of the passes in this run of the engine
            if self._run and first:
                root = self._run.root_loss() if observer.needs_root else None
                weighed = self._aside.call("token weights", self._weighed, told, self._run)
            self._run_told = self._run
            for rows in self._pass_rows.values():
                self._ended.samples.add(rows)
        self._mark(Mark.PASS_ENDS)
        factor = TAPS.loss_factor if TAPS.items is not None else float(self.setup.replicas)
        number = self._ended.late.number
        passes = TAPS.passes_added_up or 1.0  # a share already refers to all of them
        observer.pass_ends(
            number(self._scale_of_pass),
            None if root is None else number(root * DIVISIONS.divisor * passes),
            TAPS.loss_factor * passes,
            factor,
            *(weighed or (0.0, math.nan)),
            part,
        )
        self._aside.call("lost gradients", self._window.pass_ends, self._pass_rows.values())
        if self._verification is not None:
            self._verification.pass_ended()
        if self._window.asks_for_the_last:
            queue_last(Hook(self, self._aside.call, "lost gradients", self._window.keep))
        self._optimizers.pass_ends()
        if weighed is None:
            self._optimizers.unweighed()
        else:
            self._optimizers.weighed(self)
        self._left = self.setup.written()
        if observer.in_window and not self.setup.optimizers:
            self._versions = self._versions_now()

    def _weighed(
        self, told: tuple[Scalar, Scalar] | None, run: EngineRun
    ) -> tuple[Number, Number] | None:
        """The pass's targets and what they weigh together, as the program reports or as measured;
        None if unknown."""
        number = self._ended.late.number
        if told is not None:
            tokens, weight = told
            return number(tokens), number(tokens * weight * self._scale_of_pass)
        if run.token_weights is None:
            return None
        weights = run.token_weights
        if weights.unread or weights.has_other_terms:
            self._fingerprints.tell_loss(weights.unread, several=weights.has_other_terms)
        found = weights.result()
        if found is None:
            of_parameters = weights.has_penalty and not weights.has_terms
            return (number(0), number(0.0)) if of_parameters else None
        return number(0 if found.targets is None else found.targets), number(found.sum)

    def awaits_reduction(self) -> None:
        """The pass has ended on this rank; the framework waits for the other ranks before it is
        over."""
        self.waiting.begin()
        queue_last(Hook(self, self._reduced))

    def _reduced(self) -> None:
        self.waiting.end()
        self._mark(Mark.REDUCED)

    def reduction(self) -> None:
        """Gradients are passed on to be reduced, possibly in the middle of a backward pass."""
        if in_backward() and self._pass_rows and not self.in_backward:
            self.pass_begins(reduces=False, more_follow=True, readable=False)
        if self.observer.open:
            self.end_step()
        self._aside.call("lost gradients", self._window.hands_over, self._scale_of_pass)
        self.observer.reduction()
        if self.observer.records:
            self.begin_reading()

    def shadow(self) -> None:
        """The other ranks have reduced; this one took part without a pass of its own."""
        self.end_step()
        self.observer.shadow()
        self._send_ended()

    def is_captured(self) -> bool:
        """Whether a CUDA graph is being captured. Its replays call no hooks, but would repeat work
        that hooks had queued. So the hooks queue nothing, and recording stops here."""
        if self.setup.on_host or not capturing(self.setup.device):
            return False
        if not self.off:
            self.fail(RuntimeError("a CUDA graph is captured: its replays call no hook"))
        return True

    def _scale_now(self) -> Scalar:
        """The loss scale of this step's gradients; a copy, because update() changes it in place."""
        scaler = self.setup.scaler or (self._run.scaler if self._run else None)
        if scaler is None or not scaler.is_enabled():
            return 1.0
        if not self._scaled:
            self._scaled = True
            self.observer.fact("grad_scaler", type(scaler).__name__)
            self.setup.hello()
        scale = getattr(scaler, "_scale", None)  # get_scale() would synchronize with the device
        value = kept_value(scale if isinstance(scale, torch.Tensor) else scaler.get_scale())
        return 1.0 if value is None else value

    # ---- the optimizer

    def count_optimizer_step(self) -> None:
        """The only work left after an optimizer step once recording has failed. It also sends the
        numbers of earlier steps, after which the failure is reported."""
        try:
            poll_host_copies()
            self.observer.optimizer_steps(0)
            self.setup.stepped(self.observer.optimizer_steps_done)
        except Exception:
            log.debug("presum: after a step", exc_info=True)

    def _before_optimizer_step(self, optimizer: Optimizer, *_: object) -> None:
        if self.observer.in_window or self.observer.open:
            self._optimizers.begins(optimizer, self._scale_of_pass)
            self._verify()
        self.waiting.end()
        self.observer.optimizer_begins()
        self._mark(Mark.OPTIMIZER_BEGINS)
        self._look_for_zeros()

    def _before_clipping(self, parameters: Sequence[torch.Tensor], *how: Any) -> None:
        self._optimizers.clips(parameters)
        self.clip_norms.clips(parameters, *how)

    def _verify(self) -> None:
        inner = self.source.inner()
        if self._verification is None or inner is None:
            return
        self.off = True  # its hooks are called by the recomputation too
        try:
            self._verification.verify(inner)
        finally:
            self.off = self.failed

    def _look_for_zeros(self) -> None:
        """Check whether accumulated gradients in ``.grad`` were zeroed."""
        if self.observer.in_window and self.source.sees_zeroing:
            held = self._held_now()
            if not isinstance(held, torch.Tensor) and held == 0:
                self._zeroed()

    def _leave_failed_step(self) -> None:
        """Leave the step of an optimizer that raised."""
        if self.observer.in_optimizer_step and not in_optimizer_step():
            self.observer.optimizer_fails()

    def _after_optimizer_step(self, which: int, optimizer: Optimizer, *_: object) -> None:
        self._optimizers.ends(optimizer)
        self._mark(Mark.OPTIMIZER_ENDS)
        self.observer.optimizer_steps(which)
        self._send_ended()
        poll_host_copies()
        self._fingerprints.stepped()
        self._in_hook = True
        self.leave()  # the program's callbacks do not count as presum's time
        try:
            self.setup.stepped(self.observer.steps)
        finally:
            self.enter()
            self._in_hook = False

    # ---- one step

    def read(self, index: int, grad: torch.Tensor | None, *, reduced: bool) -> None:
        """Read one gradient, this rank's own or the reduced one."""
        if grad is not None:
            own = grad if reduced else self.source.own(index, grad)
            self._reader.read(index, own, reduced=reduced)
            # A nested run is reduced at its own end, before the end of the pass is reported.
            waits = self.gathers and not TAPS.is_nested
            if not waits or self._reader.queued_bytes > QUEUED_BYTES_MAX:
                self._reader.flush()

    def read_queued(self) -> None:
        """Read what read() has queued; from now on it does not queue."""
        self.gathers = False
        self._reader.flush()

    def read_all(
        self, gradients: Iterable[tuple[int, torch.Tensor | None]], *, reduced: bool
    ) -> None:
        """Read gradients that have all arrived, in one launch if they are on a device."""
        self.gathers, before = True, self.gathers
        try:
            for index, grad in gradients:
                self.read(index, grad, reduced=reduced)
        finally:
            self.gathers = before
        self._reader.flush()

    @property
    def layers_due(self) -> bool:
        """Whether the current reduction's input and output are compared layer by layer."""
        return self.setup.on_host and self.observer.layers_due

    def read_part(self, index: int, part: GradientPart | None) -> None:
        """Read this rank's part of a gradient that is reduced, if layers are due; None if it is
        unknown."""
        if part is None:
            self.observer.layer_unknown(index)
        else:
            self._reader.read_part(index, part)

    def add_audit(self, found: AuditResult | None) -> None:
        """Add an audit of the current step's reduction. Called by several threads."""
        if found is None and not self._told_of_audit:
            self._told_of_audit = True
            self.setup.note("a communication hook changes dtype or size: its sum is not audited")
        if found is not None:
            self.observer.audit(found.record, repeat=found.repeat)

    def _send_ended(self) -> None:
        """Send the step that the last event has ended, if it has."""
        if self._ended.due():
            device, source = self._reader.take_device_step, self.source
            marks = [] if self._marks is None else self._marks.end_step()
            if self._ended.send(device, source.take_gram(), marks):
                self._overhead.step_recorded()
