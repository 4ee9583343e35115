# SPDX-License-Identifier: Apache-2.0
"""The fingerprints of one step on one rank."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, compress
from typing import Any

import torch
from torch.optim import Optimizer

from presum._core import EndedStep, FingerprintKind, Observer, StateKind
from presum.fingerprints.clipping import norm_of, norm_values, share_of
from presum.fingerprints.facts import ChangingFacts
from presum.fingerprints.families import KIND, WORD, Families, LateValues, Values
from presum.fingerprints.inputs import InputForms
from presum.fingerprints.loaders import LOADER_EVENTS, Batch
from presum.fingerprints.loss_graph import LossGraph
from presum.fingerprints.outside import OutsideParameters
from presum.fingerprints.precision import ForwardPrecision
from presum.fingerprints.rest import RestingParameters
from presum.fingerprints.rng import RngStates, calls_dropout, forward_draws
from presum.fingerprints.rows import hash_others, hash_tensor, samples_among, tensors_among
from presum.fingerprints.samples import (
    BatchFinder,
    BatchGuess,
    ForwardState,
    SampleOrigin,
    UntrainedRows,
    describe,
    first_columns,
    rows_changed,
)
from presum.fingerprints.settings import (
    MODES_EVERY,
    REFRESHED_EVERY,
    Dtypes,
    FrozenLayers,
    Modes,
    NormBatches,
    OptimizerSettings,
    determinism,
)
from presum.fingerprints.states import (
    LateStates,
    NamedState,
    StateSchedule,
    queue_on_device,
    report_on_host,
    tensors_of,
)
from presum.fingerprints.ties import TiedParameters
from presum.text import printable
from presum.torch_events.collectives import IN_PLACE_REDUCTIONS
from presum.torch_events.hooks import Handle

MICRO_BATCHES_MAX = 2048
OF_PARAMETERS = (
    StateKind.PARAMETERS,
    StateKind.OPTIMIZER,
    StateKind.WATCHED,
    StateKind.OUTSIDE,
)  # hashed with the family "parameters"
DRAWS_FIRST = 8  # steps in which to check whether the forward pass draws; then only in some


@dataclass(slots=True)
class MicroBatchSamples:
    """The samples of one micro-batch."""

    hashes: Sequence[int] | torch.Tensor  # on a device a tensor
    others: int | torch.Tensor  # one hash of the tensors besides the samples
    guess: BatchGuess | None
    state: ForwardState
    unread: int = 0  # tensors that cannot be read
    reported: bool = False  # by a backward pass
    again: bool = False  # an earlier backward pass of the same forward has reported them
    values: LateValues = field(default_factory=list)  # of the samples

    def with_numbers(self, words: Iterator[Sequence[int]]) -> MicroBatchSamples:
        """The same, with the next numbers in place of tensors."""
        hashes = next(words) if isinstance(self.hashes, torch.Tensor) else self.hashes
        others = next(words)[0] if isinstance(self.others, torch.Tensor) else self.others
        return replace(self, hashes=hashes, others=others)


class StepSamples:
    """The samples of one step's micro-batches. Above MICRO_BATCHES_MAX micro-batches, samples are
    unknown."""

    def __init__(self) -> None:
        self._rows: list[MicroBatchSamples] = []

    def add(self, rows: MicroBatchSamples | None) -> None:
        if rows is None:
            return
        if len(self._rows) == MICRO_BATCHES_MAX:
            self._rows = [replace(self._rows[0], hashes=(), others=0)]
        self._rows.append(replace(rows, again=True) if rows.reported else rows)
        rows.reported = True

    def take(self) -> Sequence[MicroBatchSamples]:
        """Return the samples, and forget them."""
        rows, self._rows = self._rows, []
        return rows


@dataclass(slots=True)
class TakenFingerprints:
    """A step's fingerprints besides gradients and losses; some of them may still be on a device."""

    values: LateValues = field(default_factory=list)
    rows: list[MicroBatchSamples] = field(default_factory=list)
    states: list[LateStates] = field(default_factory=list)  # of tensors on a device

    def tensors(self) -> list[torch.Tensor]:
        """The values that are not numbers yet."""
        rows = [x for r in self.rows for x in (r.hashes, r.others)]
        others = [x for _, x in self.values] + [state.values for state in self.states]
        return [x for x in [*rows, *others] if isinstance(x, torch.Tensor)]

    def with_numbers(self, words: Sequence[Sequence[int]]) -> TakenFingerprints:
        """The same, with the numbers of each of ``tensors()``."""
        rest = iter(words)
        rows = [r.with_numbers(rest) for r in self.rows]
        values: LateValues = [
            (kind, next(rest)[0] if isinstance(x, torch.Tensor) else x) for kind, x in self.values
        ]
        states = [
            s._replace(values=next(rest)) if isinstance(s.values, torch.Tensor) else s
            for s in self.states
        ]
        return TakenFingerprints(values, rows, states)


class StepFingerprints:
    """Takes the fingerprints of one model's steps, and reports them to its observer.

    For the training thread; ``report`` is for the thread that makes packets. ``say`` gets a line
    when a family fails; ``found`` is called when there are new facts.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        observer: Observer,
        *,
        families: Families,
        parameters: Sequence[weakref.ref[torch.nn.Parameter]],
        buffers: Sequence[NamedState],
        device: torch.device,
        optimizers: Sequence[Optimizer],
        data: object,
        every: int,
        found: Callable[[], None],
    ) -> None:
        self._observer = observer
        self._families = families
        self._found = found
        self._device = device
        self._names = _argument_names(module)
        self._readers: list[tuple[str, Callable[[], Values]]] = [
            ("rng", RngStates(device)),
            ("environment", Dtypes(module, device)),
        ]
        self._modes = Modes(module)
        self._precision = ForwardPrecision(
            module, device, families, tell=self.tell, say=self._say_facts
        )
        self._settings = OptimizerSettings(optimizers, parameters) if optimizers else None
        self._frozen = FrozenLayers(parameters, optimizers, observer.group)
        self._rests: dict[str, str] = {}  # as last reported
        self._every = every
        self._others = "buffers" if "buffers" in families else "parameters"  # frozen ones
        held = [weakref.ref(optimizer) for optimizer in optimizers]
        self._states = StateSchedule(parameters, buffers, held, every=every)
        self._rest = RestingParameters(self._states, device, sees_steps=bool(optimizers))
        self._outside = OutsideParameters(module, optimizers)
        self._ties = TiedParameters(module)
        self._tied = "none"  # the names that were reported last
        self._not_reduced: dict[str, weakref.ref[torch.nn.Parameter]] = {}
        self._samples = BatchFinder(families, module, data)
        self._values: LateValues = []
        self._next: dict[FingerprintKind, int] = {}  # of the step that is to begin
        self._norm_batches = NormBatches(module)
        self._tells_draws = not calls_dropout(module)
        self._before_forward: LateValues | None = None
        self._before_broadcast: LateValues | None = None
        self._queued: list[LateStates] = []
        self._facts = ChangingFacts(observer.fact)
        self._inputs = InputForms(device, self._say_facts)
        self._loss_graph = LossGraph()
        self._reductions: Handle | None = None
        self._last: Batch | None = None  # of the previous step
        self._untrained = UntrainedRows()

    def note_once(self, text: str) -> None:
        """Add a line to the run log, the first time."""
        self._families.note_once(text)

    def listen(self, on: bool) -> None:
        """Start or stop observing batches of loaders and in-place reductions."""
        if not on:
            LOADER_EVENTS.remove(self._samples)
        elif "data" in self._families or "sampler" in self._families:
            LOADER_EVENTS.add(self._samples)
        if on and "mode" in self._families:
            self._reductions = IN_PLACE_REDUCTIONS.add(self)
        else:
            self._ignore_reductions()

    def _ignore_reductions(self) -> None:
        if self._reductions is not None:
            self._reductions.remove()
            self._reductions = None

    # ---- forward passes

    def rows(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, recorded: bool
    ) -> MicroBatchSamples | None:
        """The samples of a training forward through the wrapper."""
        guess = self._families.call("data", self._samples.guess)
        if not recorded or not ("data" in self._families or "sampler" in self._families):
            return None
        rows = MicroBatchSamples((), 0, guess, self._samples.now())
        self._families.call("data", self._hash, rows, args, kwargs)
        return rows

    def evaluates(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward through the wrapper without gradients begins."""
        self._families.call("data", self._samples.looks_at, args, kwargs)

    def _hash(self, rows: MicroBatchSamples, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = [*self._names, *[""] * len(args)]
        found = tensors_among([*zip(names, args, strict=False), *kwargs.items()])
        if found.unread:
            rows.unread = len(found.unread)
            self._families.note_once(f"inputs of class {found.unread[0]} are not read")
        at = samples_among(found.readable)
        if at is not None:
            rows.hashes = hash_tensor(found.readable, at)
            rows.others = hash_others(found.readable, at)
            rows.values = self._inputs(found.readable, at)

    def before_broadcast(self) -> None:
        """A training forward through the wrapper begins; DDP has not broadcast its buffers yet."""
        self._before_broadcast = self._families.call("mode", self._norm_batches)

    def before_step(self, step: int, *, on_host: bool) -> None:
        """The first training forward of a step is about to begin."""
        self._values, self._next = [*self._next.items()], {}
        for family, read in self._readers:
            self._values += self._families.call(family, read) or []
        if self._before_broadcast is None:
            self.before_broadcast()
        self._values += self._before_broadcast or []
        self._before_broadcast = None
        turn = step // self._every
        self._values += self._families.call("mode", self._modes, turn) or []
        if turn % MODES_EVERY == 0:
            self._values += self._families.call("environment", determinism) or []
        if self._settings is not None:
            self._values += self._families.call("optimizer", self._settings, turn) or []
            if turn % REFRESHED_EVERY == 0:
                self._families.call("optimizer", self._tell_rests)
        asks = turn < DRAWS_FIRST or turn % REFRESHED_EVERY == 0
        self._before_forward = [*self._values] if self._tells_draws and asks else None
        self._families.call("environment", self._precision.begin, turn)
        if turn % REFRESHED_EVERY == 0:
            self._families.call("parameters", self._look_outside)
            self._families.call("parameters", self._look_at_ties)
        stands = self._families.call("parameters", self._rest.stands, step)
        self._values += self._families.call("parameters", self._rest.values) or []
        if stands:
            return
        self._queued = []
        if on_host:
            self._observer.begin_states()
        for family, kinds in (("parameters", OF_PARAMETERS), (self._others, (StateKind.BUFFERS,))):
            self._families.call(family, self._take_states, kinds, step, on_host)

    def not_reduced(self, parameters: dict[str, weakref.ref[torch.nn.Parameter]]) -> None:
        """Set the parameters, by name, that no reduction of the model takes; they may be reduced by
        hand."""
        self._not_reduced = parameters

    def _look_outside(self) -> None:
        found = self._outside()
        for name, held in self._not_reduced.items():
            parameter = held()
            if parameter is not None and parameter.requires_grad:
                found[name] = held
        for name in found:
            self._observer.watch(name)
        if self._states.outside(found):
            self._found()

    def _look_at_ties(self) -> None:
        values, names = self._ties()
        self._values += values
        if names != self._tied:
            self._tied = names
            self._observer.fact("tied_parameters", printable(names))
            self._found()

    def _say_facts(self, facts: dict[str, str]) -> None:
        if self._facts.say(facts):
            self._found()

    def _tell_rests(self) -> None:
        rests = self._frozen()
        new = {key: text for key, text in rests.items() if text != self._rests.get(key, "")}
        for key, text in new.items():
            self._observer.fact(key, printable(text))
        self._rests = rests
        if new:
            self._found()

    def after_forward(self) -> None:
        """A training forward through the wrapper has ended."""
        self._precision.end()
        before, self._before_forward = self._before_forward, None
        if before is not None:
            self._values += self._families.call("rng", forward_draws, before, self._device) or []

    def gives(self, output: torch.Tensor, *, is_loss: bool) -> None:
        """An output of the model in a training forward."""
        if self._loss_graph.asks:
            self._families.call("mode", self._loss_graph.ends_at, output, is_loss=is_loss)

    def backward_begins(self, roots: Sequence[Any]) -> None:
        """A backward pass of this model or another begins at these roots."""
        if self._loss_graph.asks:
            self._say_facts(self._families.call("mode", self._loss_graph.look, roots) or {})
            if not self._loss_graph.asks:
                self._ignore_reductions()

    def tell_loss(self, hidden_by: str, *, several: bool) -> None:
        """Report the node that hides a loss function, if any, and whether some loss has several
        terms. Later losses without either change nothing."""
        facts = {"loss_hidden_by": hidden_by, "loss_terms": "several" if several else ""}
        self._say_facts({key: text for key, text in facts.items() if text})

    def _take_states(self, kinds: Sequence[StateKind], step: int, on_host: bool) -> None:
        due = chain.from_iterable(self._states.due(of, step) for of in kinds)
        if not on_host:
            self._queued += queue_on_device(due, self._device)
            return
        try:
            report_on_host(self._observer, due)
        except Exception:
            # a partial slice would differ from the whole slice of other ranks
            self._observer.begin_states()
            raise

    def norm(self, name: str, norm: object) -> None:
        """Add a norm of the step's gradient, if it is local to this rank."""
        call = self._families.call
        self._values += call("optimizer", norm_values, name, norm, self._device) or []

    def watch(self, name: str, watched: object) -> None:
        """Add other state that must be equal on all ranks. Raises ValueError if it contains no
        tensor."""
        self._states.watch(name, tensors_of(watched))
        self._observer.watch(name)
        self._found()

    def tell_next(self, name: str, count: int) -> None:
        """Add a count to the fingerprints of the next step."""
        self._next[KIND[name]] = self._next.get(KIND[name], 0) + count

    def tell(self, values: LateValues) -> None:
        """Add fingerprints to the current step."""
        self._values += values

    def tell_once(self, name: str, value: int) -> None:
        """Set a fingerprint of the current step."""
        self.forget(name)
        self._values.append((KIND[name], value))

    def forget(self, name: str) -> None:
        """Drop the current step's fingerprints of a kind."""
        self._values = [(kind, value) for kind, value in self._values if kind != KIND[name]]

    def norm_of(self, name: str, gradients: Sequence[torch.Tensor], kind: float) -> None:
        """Add the present norm of the gradients, of a type (2: L2)."""
        norm = self._families.call("optimizer", norm_of, gradients, kind)
        if norm is not None:
            self.norm(name, norm)

    def share_of(self, name: str, gradients: Sequence[torch.Tensor], ranks: int) -> None:
        """Add this rank's part of the squared L2 norm of sharded gradients."""
        share = self._families.call("optimizer", share_of, gradients, ranks)
        if share is not None:
            self.norm(name, share)

    # ---- the end of a step

    def take(self, rows: Sequence[MicroBatchSamples]) -> TakenFingerprints:
        """The fingerprints of the step that ends; ``rows`` are those of its micro-batches."""
        self._precision.end()
        self._rest.taken()
        if rows:
            self._families.call("data", self._inputs.step_ends)
        values = self._values + next((micro.values for micro in rows if micro.values), [])
        prints = TakenFingerprints(values, list(rows), self._queued)
        self._values, self._queued = [], []
        return prints

    def report(self, prints: TakenFingerprints, step: EndedStep) -> None:
        """Report everything to a step that has ended."""
        for kind, value in prints.values:
            step.fingerprint(kind, int(value))
        self.report_states(prints.states, step)
        rows = prints.rows
        sources = self._families.call("sampler", self._sources_of, rows) or [None] * len(rows)
        hashes = [list(micro.hashes) for micro in rows]
        drawn = first_columns(hashes, sources)
        if changed := rows_changed(hashes, sources):
            step.fingerprint(KIND["rows_changed"], changed)
        unread = sum(micro.unread for micro in rows)
        if unread and "data" in self._families:
            step.fingerprint(KIND["unread_inputs"], unread)
        self._families.call("data", self._report_rows, [*compress(rows, drawn)], step)
        looked_at = [micro.state.looked_at for micro in rows]
        self._families.call("sampler", self._report_untrained, sources, looked_at, step)
        self._families.call("sampler", self._report_sources, [*compress(sources, drawn)], step)

    def report_states(self, states: Sequence[LateStates], to: EndedStep | Observer) -> None:
        """Report hashes of tensors on a device, once they are numbers."""
        if states:
            to.begin_states()
        for state in states:
            state.tell(to)

    def _report_rows(self, rows: list[MicroBatchSamples], step: EndedStep) -> None:
        for micro in rows:
            step.rows(list(micro.hashes), int(micro.others) & WORD)

    def _sources_of(self, rows: list[MicroBatchSamples]) -> list[SampleOrigin | None]:
        found = [self._samples.find(list(r.hashes), r.guess, r.state) for r in rows]
        return [
            source._replace(again=True, indices=()) if source and of.again else source
            for source, of in zip(found, rows, strict=True)
        ]

    def _report_sources(self, sources: list[SampleOrigin | None], step: EndedStep) -> None:
        known = [source for source in sources if source is not None and not source.again]
        if not known and any(source is not None for source in sources):
            step.fingerprint(KIND["batch_again"], 1)
        for batch in (source.batch for source in known):
            if batch is not None:
                batch.of.trains(batch.number)
        if not known:
            return
        values, about = describe(known[-1])
        self._last = known[-1].batch
        about = {family: told for family, told in about.items() if family in self._families}
        for kind, value in [*values, *(pair for told in about.values() for pair in told.values)]:
            step.fingerprint(kind, value)
        batches = [source.batch for source in known if source.batch is not None]
        if len(batches) == len(sources):
            step.fingerprint(KIND["labels"], sum(batch.labels() for batch in batches) & WORD)
        if all(source is not None and source.indices for source in sources):
            step.indices([i for source in known for i in source.indices])
        self._say_facts({family: told.text for family, told in about.items()})

    def _report_untrained(
        self, sources: list[SampleOrigin | None], looked_at: list[int], step: EndedStep
    ) -> None:
        known = [(s, rows) for s, rows in zip(sources, looked_at, strict=True) if s is not None]
        for kind, value in self._untrained.step(known):
            step.fingerprint(kind, value)

    # ---- around the optimizer's step

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        self._families.call("optimizer", self._frozen.optimizer_begins, optimizer)

    def stepped(self) -> None:
        self._families.call("parameters", self._states.stepped)
        recorded = self._observer.next_is_recorded
        self._families.call(
            "parameters", self._rest.stepped, self._observer.turn, recorded=recorded
        )

    def as_stepped(self) -> bool:
        """Whether the parameters are what the last optimizer step left."""
        return bool(self._families.call("parameters", self._states.as_stepped))

    def final_states(self, *, on_host: bool) -> TakenFingerprints:
        """Hash all parameters after the last optimizer step: in host memory they go to the
        observer, on a device they are queued. Nothing if they have changed since: a rank may load
        or average parameters after training."""
        self._queued = []
        if on_host:
            self._observer.begin_states()
        if self.as_stepped():
            self._families.call(
                "parameters", self._take_states, (StateKind.PARAMETERS,), 0, on_host
            )
        return self.take([])

    def final_values(self) -> Values:
        """The position of the last step's batch, with the passes that have ended since."""
        return self._last.position(now=True) if self._last is not None else []


def _argument_names(module: torch.nn.Module) -> list[str]:
    try:
        return list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        return []
