# SPDX-License-Identifier: Apache-2.0
"""The object that :func:`presum.attach` returns."""

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
    """The recording of one model on one rank, as :func:`presum.attach` returns it.

    Use it as a context manager, or call :meth:`close`. The recording does not depend on a reference
    to this object: it lasts until :meth:`close`, or until the model or the process ends. Call all
    methods on the training thread. Once the recording has ended, they do nothing.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._session = recording.session
        self._closed = False

    @property
    def run(self) -> Path:
        """The path of the RUN folder. One rank writes it, usually global rank 0."""
        return self._session.channel.run

    @property
    def findings(self) -> list[Finding]:
        """The findings so far, worst first. Empty on every rank except the one that records."""
        return list(self._session.listeners.findings)

    def loss(self, value: float | torch.Tensor, weight: float | None = None) -> None:
        """Report the loss of one micro-batch, before or after its ``backward()``.

        Call it only if presum cannot find the loss in the model's output. The reported value
        replaces a loss that presum found. The loss of a rank in a step is the weighted mean over
        its micro-batches.

        Args:
            value: a number or a one-element tensor, on any device. NaN and Inf are recorded and
                reported.
            weight: the weight of this micro-batch in the mean, finite and at least 0. Default: 1.

        Raises:
            ValueError: ``value`` is not a single value local to this rank, or ``weight`` is
                invalid.
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
                f"presum: a loss of class {type(value).__name__} holds no value local to this "
                "rank: pass a number or a plain tensor"
            )
        recorder.loss(kept, weight)

    def token_weight(self, tokens: float | torch.Tensor, weight: float | torch.Tensor) -> None:
        """Report what one target token of a micro-batch weighs in its loss, before its
        ``backward()``.

        Call it only if presum cannot see the loss function: a loss inside a compiled function or a
        custom autograd Function. It replaces what presum measures for this backward pass.

        Args:
            tokens: the number of target tokens, at least 0.
            weight: the weight of one of them in the tensor that is differentiated, without a loss
                scaler's factor and before the reduction: ``1 / tokens`` for a mean, divided by the
                number of micro-batches if the program divides.

        Raises:
            ValueError: an argument is not a single number local to this rank, finite and at least
                0. Numbers on a device are not checked.
        """
        recorder = self._recorder
        if recorder is None or self._closed:
            return
        values = []
        for value in (tokens, weight):
            kept = kept_value(value) if _is_number(value) else None
            if kept is None or (isinstance(kept, float) and not 0 <= kept < float("inf")):
                raise ValueError(
                    f"presum: token_weight needs finite numbers of at least 0, not {value!r:.64}"
                )
            values.append(kept)
        recorder.token_weight(*values)

    def grad_norm(self, value: float | torch.Tensor) -> None:
        """Report the gradient norm that the program computed itself, for clipping or logging.

        Call it before the optimizer step. presum compares the norm between ranks and with the
        reduced gradient. It sees the norm that ``torch.nn.utils.clip_grad_norm_`` uses without this
        call.

        Args:
            value: a number or a one-element tensor: the L2 norm over all parameters of the model,
                after the reduction and before clipping. NaN and Inf are recorded.

        Raises:
            ValueError: ``value`` is not a single number local to this rank.
        """
        recorder = self._recorder
        if recorder is None or self._closed:
            return
        kept = kept_value(value) if _is_number(value) else None
        if kept is None:
            kind, shape = type(value).__name__, tuple(getattr(value, "shape", ()))
            raise ValueError(
                f"presum: a norm must be one number local to this rank, not {kind} of shape {shape}"
            )
        recorder.clip_norms.told(kept)

    def watch(self, name: str, watched: nn.Module | Mapping[str, torch.Tensor] | Tensors) -> None:
        """Compare more state that must be equal on all ranks: an average of the parameters, a
        lookup table, a second model.

        presum hashes the tensors before a forward pass: a part of them at each recorded step, and
        all of them within 25 recorded steps. Call it on every rank, with the same name. Ranks that
        watch different numbers of tensors count as different.

        Args:
            name: 1 to 64 characters; it identifies the state in findings.
            watched: a module, a mapping of names to tensors, or an iterable of tensors. A module is
                held weakly; its parameters and buffers are looked up at each hash. Tensors are held
                strongly, in their order: change them in place.

        Raises:
            ValueError: the name is empty or too long, or ``watched`` contains no tensor.
        """
        if not name or len(name) > NAME_MAX:
            raise ValueError(f"presum: watch needs a name of 1 to {NAME_MAX} characters")
        recorder = self._recorder
        if recorder is not None and not self._closed:
            recorder.setup.fingerprints.watch(name, watched)

    def compare(
        self, name: str, named_tensors: Mapping[str, torch.Tensor] | NamedTensors
    ) -> list[str]:
        """Compare copies of this rank's parameters with the parameters, bit for bit: for example
        weights sent to a rollout engine or written to a checkpoint.

        Each parameter is cast to the dtype of its copy first. The call synchronizes with the
        device. Differences are also reported as a finding.

        Args:
            name: identifies the copy in findings.
            named_tensors: a mapping, or an iterable of (name, tensor) pairs, with names from
                ``named_parameters()`` of the attached module. It may omit parameters.

        Returns:
            The names of the copies that differ, in the order given. Empty if none differs or the
            recording has ended.

        Raises:
            ValueError: there is no tensor, a name is not a parameter's, a shape differs from the
                parameter's, or a tensor is only a part of a parameter.
        """
        recorder = self._recorder
        if recorder is None or self._closed:
            return []
        pairs = named_tensors.items() if isinstance(named_tensors, Mapping) else named_tensors
        if not isinstance(pairs, Iterable):
            what = type(named_tensors).__name__
            raise ValueError(f"presum: compare needs pairs of a name and a tensor, not {what}")
        return recorder.compare(name, list(pairs))

    def before_reduction(self, named_gradients: NamedGradients) -> None:
        """With ``mode="manual"``: read this rank's own gradients, before they are reduced.

        The first call after the end of a step begins the next step. Further calls in the same step
        add more parameters (buckets). The gradients are read before the call returns.

        Args:
            named_gradients: pairs of a parameter's name, as in ``named_parameters()`` of the
                attached module, and its gradient. Pairs with None are skipped.

        Raises:
            ValueError: a name is unknown, a gradient's size differs from its parameter's, or the
                monitor was attached in another mode.
        """
        source = self._by_hand()
        if source is not None:
            source.before_reduction(named_gradients)

    def after_reduction(self, named_gradients: NamedGradients) -> None:
        """With ``mode="manual"``: read the gradients after the reduction, averaged over the ranks
        (divided by the world size) and before clipping.

        They are read at the steps that ``Record.reduced_every`` selects. Arguments and errors are
        those of :meth:`before_reduction`.
        """
        source = self._by_hand()
        if source is not None:
            source.after_reduction(named_gradients)

    def _by_hand(self) -> ManualSource | None:
        """The source of a manual recording; None once the recording has ended."""
        recorder = self._recorder
        if recorder is None or self._closed:
            return None
        if not isinstance(recorder.source, ManualSource):
            raise ValueError('presum: this monitor was not attached with mode="manual"')
        return recorder.source

    def close(self) -> None:
        """End the recording.

        It sends the remaining packets. On the rank that records it also waits for the other ranks
        (at most 1.5 s), completes the run log and prints a summary. It works after
        ``destroy_process_group``. A second call does nothing.
        """
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


def _is_number(value: object) -> bool:
    """Whether it is a number, or a tensor of one element."""
    number = isinstance(value, (int, float, torch.Tensor))
    return number and getattr(value, "shape", ()) in ((), (1,))
