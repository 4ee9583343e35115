# SPDX-License-Identifier: Apache-2.0
"""The recording of one model on this rank, from ``attach`` to its end.

A session holds its recordings, and so do a model's hooks. A recording holds its model weakly, so
the program frees the model as it would without presum. A recording ends when its monitor is closed,
when its model is freed, when the module is wrapped again, and with the process.
"""

from __future__ import annotations

import logging
import multiprocessing
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator

from torch import nn

from presum._core import Observer
from presum.fingerprints.families import Values
from presum.steps.step_recorder import StepRecorder
from presum.text import one_line, printable
from presum.transport.session import Session, open_sessions

log = logging.getLogger("presum")
# Recorders whose hooks are still registered: they ended off the training thread, or in a hook.
_left: deque[StepRecorder] = deque()


class Recording:
    """The recording of one model. Thread-safety: ``end_without_model`` is for the session's thread,
    the rest for the training thread."""

    def __init__(
        self, session: Session, observer: Observer, ranks: tuple[int, ...], *, preflight: int | None
    ) -> None:
        self.session = session
        self.recorder: StepRecorder | None = None
        self.ended = False
        self.model_is_gone = False
        self._observer = observer
        self._preflight = preflight
        self._ending = threading.Lock()
        self._error_before = getattr(sys, "last_value", None)  # of an earlier cell of a notebook
        self._finalizer: weakref.finalize[..., nn.Module] | None = None
        self._module: Callable[[], nn.Module | None] = lambda: None
        self._process_group: object = None
        session.join(self, ranks)
        session.send(observer.hello())

    def watch(self, wrapper: nn.Module, module: nn.Module, recorder: StepRecorder) -> None:
        """Start to record. The recording ends when ``wrapper`` is freed; ``module`` is the module
        inside."""
        self.recorder = recorder
        self._module = weakref.ref(module)
        # Python must hold the last reference to DDP's process group: if DDP's reducer holds it,
        # torch (2.13) waits for Gloo's threads with the GIL held, and these threads may wait for
        # the GIL.
        self._process_group = getattr(wrapper, "process_group", None)
        self._finalizer = weakref.finalize(wrapper, _model_goes, self)
        self._finalizer.atexit = False

    def is_of(self, module: object) -> bool:
        """Whether this records the module, in any wrapper."""
        return self._module() is module

    # ---- its end

    def end(self) -> None:
        """Stop recording and send the final packet. A second call does nothing."""
        if self.model_is_gone:
            self.end_without_model()
            unhook_ended()
        elif self._take_the_end():
            recorder = self.recorder
            if recorder is not None:
                recorder.close()
                if recorder.hooked:  # it ended inside a hook
                    _left.append(recorder)
            self._say_goodbye()

    def end_without_model(self) -> None:
        """Do the same on any thread, once the model is gone and none of its hooks runs."""
        if self._take_the_end():
            if self.recorder is not None:
                self.recorder.close_without_model()
                _left.append(self.recorder)
            self._say_goodbye()

    def _take_the_end(self) -> bool:
        with self._ending:
            ended, self.ended = self.ended, True
        if self._finalizer is not None:
            self._finalizer.detach()
        return not ended

    def _say_goodbye(self) -> None:
        session, optimizer_steps = self.session, 0
        values: Values = []
        if self.recorder is not None:
            optimizer_steps = self.recorder.observer.optimizer_steps_done
            values = self.recorder.setup.fingerprints.final_values()
        self.recorder = None
        self._process_group = None
        session.forget(self)
        try:
            ended = _how_it_ended(self._error_before)
            session.send(self._observer.goodbye(optimizer_steps, values, ended))
        except Exception as error:
            session.channel.remark(f"the end of the recording was not sent ({one_line(error)})")

    # ---- calls from its recorder

    def stepped(self, steps: int) -> None:
        """Called after an optimizer step, on the training thread, with the number of steps so
        far."""
        self.session.stepped()
        if self._preflight is not None and steps >= self._preflight and not self.ended:
            raise SystemExit(self.session.end_preflight())

    def failed(self, error: Exception) -> None:
        """The recorder has stopped."""
        what = f"recording failed ({type(error).__name__}: {one_line(error)})"
        self.session.channel.complain(what)
        self.session.send(self._observer.broken(printable(what)))

    def note(self, text: str) -> None:
        """Add a line to the run log."""
        self.session.send(self._observer.note(printable(text)))

    def say_if_cut_short(self) -> None:
        """Print a line if a preflight ends before its steps are done."""
        if self._preflight is not None and not self.ended:
            steps = self._preflight
            self.session.channel.say(f"presum: training ended before {steps} preflight steps")


def watched_parameters() -> Iterator[nn.Parameter]:
    """The parameters of the models that this process records."""
    for session in open_sessions():
        for recording in session.recordings:
            if isinstance(recording, Recording) and recording.recorder is not None:
                yield from (parameter for _, parameter in recording.recorder.setup.alive())


def _how_it_ended(before: BaseException | None) -> str:
    """The exception that ends the program, unless it existed ``before``; it explains why other
    ranks wait."""
    error = _cause_of_exit(sys.exc_info()[1]) or getattr(sys, "last_value", None)
    if error is None or error is before or isinstance(error, (StopIteration, GeneratorExit)):
        return ""
    text = printable(str(error))
    return f"ended by {type(error).__name__}{': ' if text else ''}{text}"


def _cause_of_exit(error: BaseException | None) -> BaseException | None:
    """The cause of an exception that is being handled as a multiprocessing child ends: a nonzero
    exit may replace another exception. Elsewhere, the program may continue after it."""
    if multiprocessing.parent_process() is None:
        return None
    if isinstance(error, SystemExit):
        return error.__context__ if error.code not in (None, 0) else None
    return error


def _model_goes(recording: Recording) -> None:
    """Any thread may call this at any point, so it only leaves a message."""
    recording.model_is_gone = True
    recorder = recording.recorder
    if recorder is not None:
        recorder.off = True
    recording.session.orphans.append((time.monotonic(), recording))


def unhook_ended() -> None:
    """Remove the hooks of recordings that ended with their models or inside a hook. For the
    training thread, outside of such a hook."""
    while _left:
        _left.popleft().unhook()
