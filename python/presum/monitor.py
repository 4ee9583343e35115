# SPDX-License-Identifier: Apache-2.0
"""What :func:`presum.attach` returns."""

from __future__ import annotations

import atexit
import multiprocessing.util
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from presum._core import Observer
from presum.by_hand import ManualCollector, Named
from presum.findings import Finding
from presum.losses import kept_value
from presum.session import Session, one_line

if TYPE_CHECKING:
    import torch

    from presum.collector import Collector

_sessions: dict[Path | None, Session] = {}


def open_session(run: Path | None, default: Path, rank: int, world_size: int) -> Session:
    """The session of a run: monitors of several models in one process share it.

    ``run`` None is the default run, and ``default`` its folder.
    """
    session = _sessions.get(run)
    if session is None:
        session = Session(str(run or ""), run or default, rank, world_size)
        _sessions[run] = session
    return session


def next_module(run: Path | None) -> int:
    """The number that the next model of a run gets: 0, 1, ... in the order of attaching."""
    session = _sessions.get(run)
    return len(session.members) if session is not None else 0


class Monitor:
    """Watches one model on this rank. A context manager; closes itself at interpreter exit.

    Methods are for the training thread.
    """

    def __init__(
        self,
        session: Session,
        observer: Observer,
        *,
        on_finding: Callable[[Finding], None] | None = None,
        on_training_thread: bool = False,
        preflight: int | None = None,
        quiet: bool = False,
    ) -> None:
        self._session = session
        self._observer = observer
        self._collector: Collector | None = None
        self._closed = False
        self._preflight = preflight
        session.join(self)
        session.quiet = session.quiet or quiet
        if on_finding is not None:
            session.listen(on_finding, on_training_thread=on_training_thread)
        session.send(observer.hello())
        atexit.register(self.close)
        # Processes of multiprocessing end without atexit's functions.
        self._at_process_end = multiprocessing.util.Finalize(None, self.close, exitpriority=100)

    @property
    def run(self) -> Path:
        """The RUN folder; rank 0 writes it."""
        return self._session.run

    @property
    def findings(self) -> list[Finding]:
        """What was found so far, worst first. Known on rank 0 only; elsewhere empty."""
        return list(self._session.findings)

    def loss(self, value: float | torch.Tensor, weight: float | None = None) -> None:
        """Report the loss of one micro-batch, before or after its ``backward()``.

        Needed only where the model's output does not hold the loss; it replaces what was found
        there. ``value`` is a number or a one-element tensor (NaN and Inf are recorded and named).
        A worker's loss is the mean over its micro-batches, weighted by ``weight`` (1 by default).
        """
        if self._collector is None or self._closed:
            return
        weight = 1.0 if weight is None else float(weight)
        if not 0 <= weight < float("inf"):
            raise ValueError(
                f"presum: the weight of a loss must be finite and at least 0, not {weight}"
            )
        if getattr(value, "shape", ()) not in ((), (1,)):
            raise ValueError(f"presum: a loss must be one number, not of shape {value.shape}")  # type: ignore[union-attr]
        kept = kept_value(value)
        if kept is None:
            raise ValueError(
                f"presum: a loss of class {type(value).__name__} holds no value of this rank's "
                "own: give a number, or a plain tensor"
            )
        self._collector.loss(kept, weight)

    def before_reduction(self, named_gradients: Named) -> None:
        """With ``mode="manual"``: this worker's own gradients, before they are summed, as pairs of
        a parameter's name (as in ``named_parameters()`` of the attached module) and its gradient;
        None is skipped. The first call after a step's end begins the next one; in between, calls
        with further parameters (buckets) add to it. Reads them before it returns.

        Raises:
            ValueError: an unknown name, or a gradient of another size than its parameter.
        """
        if not self._closed:
            self._by_hand().before_reduction(named_gradients)

    def after_reduction(self, named_gradients: Named) -> None:
        """With ``mode="manual"``: the same gradients as the reduction left them, divided by the
        number of workers, before clipping. Looked at as often as ``reduced_every`` says."""
        if not self._closed:
            self._by_hand().after_reduction(named_gradients)

    def _by_hand(self) -> ManualCollector:
        if not isinstance(self._collector, ManualCollector):
            raise ValueError('presum: this monitor was not attached with mode="manual"')
        return self._collector

    def close(self) -> None:
        """End the recording: sends what is left, and on rank 0 waits a moment for the other ranks
        (at most 1.5 s), completes the run log and prints a summary on the terminal. Works after
        ``destroy_process_group``; a second call does nothing."""
        if not self._closed:
            if self._preflight is not None:
                self._session.say(
                    f"presum: training ended before {self._preflight} preflight steps"
                )
            self._end()
            if self._session.leave():
                _forget(self._session)

    def _end(self) -> None:
        """Stop collecting and say goodbye."""
        self._closed = True
        atexit.unregister(self.close)
        self._at_process_end.cancel()
        clock = 0
        if self._collector is not None:
            self._collector.close()
            clock = self._collector.optimizer_steps
            self._let_go()
        session = self._session
        session.send(self._observer.note(True, session.sent, session.dropped, "", clock))

    def _let_go(self) -> None:
        """Give up the collector, which holds the model.

        The last reference to DDP's process group must be Python's: where DDP's reducer has it,
        torch (2.13) waits for Gloo's threads with the GIL held, and these may wait for the GIL.
        """
        group = getattr(self._collector, "process_group", None)
        self._collector = None
        del group

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _watch(self, collector: Collector) -> None:
        self._collector = collector

    def _stepped(self, steps: int) -> None:
        """After an optimiser step, on the training thread, with the steps done so far."""
        self._session.tell_training_thread()
        if self._preflight is not None and steps >= self._preflight and not self._closed:
            self._end_preflight()

    def _end_preflight(self) -> None:
        """Wait for the verdict over all ranks and end the process with its exit code."""
        for monitor in self._session.members:
            if not monitor._closed:
                monitor._end()
        code = self._session.end_preflight()
        _forget(self._session)
        raise SystemExit(code)

    def _failed(self, error: Exception) -> None:
        what = f"collection failed ({type(error).__name__}: {one_line(error)})"
        session = self._session
        session.send(self._observer.note(False, session.sent, session.dropped, what))
        session.complain(what)


def _forget(session: Session) -> None:
    for run in [run for run, open_one in _sessions.items() if open_one is session]:
        del _sessions[run]
