# SPDX-License-Identifier: Apache-2.0
"""What :func:`presum.attach` returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType

import torch
from torch import nn

from presum.findings import Finding
from presum.parallel.by_hand import ManualSource, NamedGradients
from presum.steps.recording import Recording
from presum.steps.step_recorder import StepRecorder
from presum.torch_events.losses import kept_value

Tensors = Iterable[torch.Tensor]
NamedTensors = Iterable[tuple[str, torch.Tensor]]
NAME_MAX = 64


class Monitor:
    """Watches one model on this rank. A context manager. Nobody need keep it: the recording goes
    on without it, and ends with the model or the process.

    Methods are for the training thread.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._session = recording.session
        self._closed = False

    @property
    def run(self) -> Path:
        """The RUN folder; one rank writes it, usually global rank 0."""
        return self._session.channel.run

    @property
    def findings(self) -> list[Finding]:
        """What was found so far, worst first. Known on the rank that records only."""
        return list(self._session.listeners.findings)

    def loss(self, value: float | torch.Tensor, weight: float | None = None) -> None:
        """Report the loss of one micro-batch, before or after its ``backward()``.

        Needed only where the model's output does not hold the loss; it replaces what was found
        there. ``value`` is a number or a one-element tensor (NaN and Inf are recorded and named).
        A worker's loss is the mean over its micro-batches, weighted by ``weight`` (1 by default).
        """
        recorder = self._recorder
        if recorder is None or self._closed:
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
        recorder.loss(kept, weight)

    def grad_norm(self, value: float | torch.Tensor) -> None:
        """Report the norm of the reduced gradient that the program has computed itself, to clip by
        or to log, before the optimizer's step: it is compared between ranks and with the reduced
        gradient. What ``torch.nn.utils.clip_grad_norm_`` uses is seen without it.

        ``value`` is a number or a one-element tensor: the L2 norm over all of the model's
        parameters, after the reduction and before clipping. NaN and Inf are recorded.

        Raises:
            ValueError: what holds no number of this rank's own.
        """
        recorder = self._recorder
        if recorder is None or self._closed:
            return
        number = isinstance(value, (int, float, torch.Tensor))
        one = number and getattr(value, "shape", ()) in ((), (1,))
        kept = kept_value(value) if one else None
        if kept is None:
            kind, shape = type(value).__name__, tuple(getattr(value, "shape", ()))
            raise ValueError(
                f"presum: a norm must be one number of this rank's own, not {kind} of shape {shape}"
            )
        recorder.clip_norms.told(kept)

    def watch(self, name: str, watched: nn.Module | Mapping[str, torch.Tensor] | Tensors) -> None:
        """Have something else compared between ranks that must be equal on all of them: an average
        of the parameters, a table, a second model. Its tensors are hashed before a forward pass, a
        part at each recorded step and all within 25; call it on every rank, with the same name.

        Of a module, which is held weakly, parameters and buffers count as they are then. Tensors
        are held, in their order, and are to be changed in place. Ranks that watch different numbers
        of tensors differ.

        Raises:
            ValueError: an empty name, or what holds no tensor.
        """
        if not name or len(name) > NAME_MAX:
            raise ValueError(f"presum: watch needs a name of 1 to {NAME_MAX} characters")
        recorder = self._recorder
        if recorder is not None and not self._closed:
            recorder.setup.fingerprints.watch(name, watched)

    def compare(
        self, name: str, named_tensors: Mapping[str, torch.Tensor] | NamedTensors
    ) -> list[str]:
        """Hold copies of this rank's parameters against them, bit for bit: weights that were sent
        to an engine for rollouts, or to a checkpoint. A parameter is cast to its copy's dtype
        first.

        Names are those of ``named_parameters()`` of the attached module; not all need be there. It
        waits for the device. What differs is also a finding.

        Returns:
            The names that differ, in the order given; empty once the recording has ended.

        Raises:
            ValueError: no tensor, a name that is no parameter's, another shape, a part of a
                parameter.
        """
        recorder = self._recorder
        if recorder is None or self._closed:
            return []
        pairs = named_tensors.items() if isinstance(named_tensors, Mapping) else named_tensors
        if not isinstance(pairs, Iterable):
            what = type(named_tensors).__name__
            raise ValueError(f"presum: compare needs names with their tensors, not {what}")
        return recorder.compare(name, list(pairs))

    def before_reduction(self, named_gradients: NamedGradients) -> None:
        """With ``mode="manual"``: this worker's own gradients, before they are summed, as pairs of
        a parameter's name (as in ``named_parameters()`` of the attached module) and its gradient;
        None is skipped. The first call after a step's end begins the next one; in between, calls
        with further parameters (buckets) add to it. Reads them before it returns.

        Raises:
            ValueError: an unknown name, or a gradient of another size than its parameter.
        """
        source = self._by_hand()
        if source is not None:
            source.before_reduction(named_gradients)

    def after_reduction(self, named_gradients: NamedGradients) -> None:
        """With ``mode="manual"``: the same gradients as the reduction left them, divided by the
        number of workers, before clipping. Looked at as often as ``reduced_every`` says."""
        source = self._by_hand()
        if source is not None:
            source.after_reduction(named_gradients)

    def _by_hand(self) -> ManualSource | None:
        """None once the recording has ended."""
        recorder = self._recorder
        if recorder is None or self._closed:
            return None
        if not isinstance(recorder.source, ManualSource):
            raise ValueError('presum: this monitor was not attached with mode="manual"')
        return recorder.source

    def close(self) -> None:
        """End the recording: sends what is left, and on the rank that records waits for the others
        (at most 1.5 s), completes the run log and prints a summary on the terminal. Works after
        ``destroy_process_group``; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._recording.say_if_cut_short()
            self._recording.end()
            self._session.leave()

    @property
    def _recorder(self) -> StepRecorder | None:
        return self._recording.recorder

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()
