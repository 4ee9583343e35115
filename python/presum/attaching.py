# SPDX-License-Identifier: Apache-2.0
"""presum.attach: start watching a data-parallel model."""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from presum._core import Observer, __version__
from presum.devices.gradient_pass import poll_host_copies
from presum.devices.readable import in_host_memory
from presum.findings import Finding
from presum.fingerprints import Families, StepFingerprints, chosen
from presum.fingerprints.environment import environment_facts
from presum.fingerprints.moments import Moments
from presum.fingerprints.settings import optimizer_facts
from presum.fingerprints.states import NamedState, named_states
from presum.monitor import Monitor
from presum.parallel.plan import plan_of
from presum.parallel.targets import Target, WatchOptions, target_of
from presum.steps.recording import Recording, unhook_ended
from presum.steps.setup import RecorderSetup
from presum.steps.step_recorder import StepRecorder
from presum.text import printable
from presum.transport.session import end_recordings_of, next_module_number, open_session

AUDIT_ELEMENTS = 65536


def attach(
    model: nn.Module,
    *,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    run: str | os.PathLike[str] | None = None,
    process_group: dist.ProcessGroup | None = None,
    mode: str = "passive",
    gram_every: int | None = None,
    reduction: str | None = None,
    microbatch_mean: bool = False,
    audit_every: int | None = None,
    audit_elements: int | None = AUDIT_ELEMENTS,
    every: int = 1,
    reduced_every: int = 25,
    verify_every: int | None = None,
    sketch: int | str = "auto",
    groups: Sequence[str] | bool | None = None,
    scaler: torch.amp.GradScaler | None = None,
    data: object = None,
    fingerprints: bool | Collection[str] = True,
    local_buffers: Sequence[str] = (),
    on_finding: Callable[[Finding], None] | None = None,
    on_training_thread: bool = False,
    preflight: int | None = None,
    require: Literal["facts", "statistics"] = "facts",
    quiet: bool = False,
) -> Monitor:
    """Watch a data-parallel model on this rank; call it on every rank, once a model.

    Training gives the same bits with and without it. A failure of presum itself (a folder
    that cannot be written, a store that is gone) is said once, and training goes on. The model is
    held weakly: the recording ends with it, also where nobody keeps or closes the monitor.

    Args:
        model: the DistributedDataParallel wrapper (not the module inside), the outermost module
            that ``fully_shard`` was applied to, or, with ``mode="manual"``, any module.
        optimizer: ends a step at its ``step()``; without it a step ends at the next forward. A
            list where several train this model.
        run: the RUN folder, written by global rank 0 (where it does not attach, by another rank).
            Default: ``runs/<script>-<UTC time>``.
        process_group: the data-parallel group; default: the model's own, or all workers.
        mode: "passive" watches; "hook" (DDP only) puts presum into the communication hook, for
            exact products of each worker's gradient with the reduced one at every step, and runs a
            hook that is registered later inside its own; "manual" is for loops that reduce by hand
            and call :meth:`Monitor.before_reduction` and :meth:`Monitor.after_reduction`.
        gram_every: with ``mode="hook"``: at every n-th recorded step workers exchange gradients, so
            that all cosines are exact; it costs half the traffic of an all-reduce more.
        reduction: sum gradients by presum instead, so that their mean has the same bits for any
            order, topology and number of workers (docs/reduction.md): "exact", "fixed32",
            "fixed64" or "binned". Micro-batches under ``no_sync()`` (FSDP2: without
            ``requires_gradient_sync``) are summed apart, each its own leaf: ``.grad`` holds none of
            them until the step is reduced. It stays when the monitor is closed.
        microbatch_mean: with ``reduction``: divide the sum by all micro-batches of all workers, in
            one rounding, instead of by the workers; for losses that are not divided.
        audit_every: at every n-th recorded step compare what the reduction made of one bucket, the
            next one each time, with the exact sum of what went in (docs/audit.md): by how much they
            differ, in which precision and order was added, and whether the same reduction gives the
            same bits again. It exchanges gradients. On DDP it implies ``mode="hook"``; on FSDP2
            each worker audits its shard of a parameter group.
        audit_elements: of that bucket, evenly spread; None for all.
        every: record every n-th step.
        reduced_every: also read the reduced gradient (one more pass) at the first step and every
            n-th; it gives the exact consistency and corrects the cosines.
        verify_every: at every n-th recorded step compute one micro-batch of this worker once more,
            and compare the gradients bit for bit: memory and arithmetic that are wrong now and then
            show (docs/findings.md, recompute-mismatch). It costs that forward and backward pass.
            Needs ``optimizer``; not for FSDP2.
        sketch: floats that stand for a gradient's direction: a power of two, 0 for off, or "auto"
            (4096 up to 64 workers, 1024 above). A pair's cosine has a standard error of about
            ``1.2 / sqrt(sketch)``.
        groups: what per-group norms are of. None: layers (the parameter's path up to its first
            number). A list of regular expressions: the text that the first matching one matches,
            "other" where none does. False: no groups.
        scaler: the GradScaler, so that norms are those of the unscaled gradient. Default: the one
            that scaled a loss last.
        data: the training's DataLoader or sampler, or a list of them, where it is not found by
            itself: loaders that are not torch's, batches that change before the forward pass.
        fingerprints: what workers are compared by besides gradients. True, False, or some of
            "data" (hashes of the samples), "rng", "sampler", "parameters", "buffers", "optimizer",
            "mode", "environment".
        local_buffers: regular expressions of buffer names that may differ between workers.
        on_finding: called with each new :class:`Finding` on the rank that records, on a background
            thread.
        on_training_thread: call it after the optimiser's step instead, where it may end this rank's
            process by SystemExit (a launcher then ends the others). Other exceptions are logged.
        preflight: watch that many steps, print the verdict, and end the process by SystemExit
            after the optimiser's step, on every rank with the same code. Needs ``optimizer``.
            A program that ends before keeps its own exit code, but under ``presum.run``.
        require: what a preflight's exit code 0 covers. "facts": everything that a few steps decide;
            "statistics": exit with 2 where the steps were too few for a lasting difference in
            losses or gradients to be established (26 with 2 workers, 10 with 8).
        quiet: print nothing on the terminal.

    Returns:
        The :class:`Monitor`. With one worker the dispersions are 0 and the cosine is undefined.

    Raises:
        ValueError: a model that cannot be watched or is attached already, or a bad argument.
    """
    unhook_ended()
    _check_kind("process_group", process_group, dist.ProcessGroup)
    plan = plan_of(reduction, mode, gram_every, microbatch_mean=microbatch_mean)
    options = WatchOptions(mode, gram_every, plan, audit_every, audit_elements)
    target = target_of(model, process_group, options)
    _check_cadence(options, every, reduced_every)
    _check_use(on_finding, data, scaler, run)
    optimizers = _optimizers(optimizer)
    _check_verify(verify_every, optimizers)
    _check_preflight(preflight, optimizers, every)
    _check_required(require)
    size, on_host = _sketch_size(sketch, len(target.ranks)), in_host_memory(target.device)
    numbers = _Numbers(every, reduced_every, verify_every, size, _layers(groups), on_host)
    on = chosen(fingerprints)
    training = _Training(target, optimizers, scaler, data, on, _buffers(target, local_buffers, on))
    key = Path(run).absolute() if run is not None else None
    facts = _facts(training, numbers, options)
    observer = _observer(training, numbers, facts, next_module_number(key, tuple(target.ranks)))
    end_recordings_of(target.module)
    session = open_session(key, _default_run(), dist.get_rank(), dist.get_world_size())
    session.channel.poll_devices = poll_host_copies
    session.channel.quiet = session.channel.quiet or quiet
    session.channel.require_statistics |= require == "statistics"
    if on_finding is not None:
        session.listeners.listen(on_finding, on_training_thread=on_training_thread)
    recording = Recording(session, observer, tuple(target.ranks), preflight=preflight)
    monitor = Monitor(recording)
    try:
        _start(recording, training, _setup(recording, observer, training, numbers))
    except Exception:
        monitor.close()
        raise
    return monitor


class _Numbers(NamedTuple):
    """What of a step is measured, and when."""

    every: int
    reduced_every: int
    verify_every: int | None
    sketch_size: int
    groups: Sequence[str] | bool | None
    on_host: bool  # gradients lie in host memory


class _Training(NamedTuple):
    """A model, and what else of its training is watched."""

    target: Target
    optimizers: Sequence[Optimizer]
    scaler: torch.amp.GradScaler | None
    data: object
    families: frozenset[str]  # of fingerprints
    buffers: Sequence[NamedState]


def _facts(training: _Training, numbers: _Numbers, options: WatchOptions) -> dict[str, object]:
    """What the run log is told of the training at its beginning."""
    target, families = training.target, training.families
    facts = _target_facts(target, training.optimizers, training.scaler) | {
        "sketch": numbers.sketch_size,
        "every": numbers.every,
        "reduced_every": numbers.reduced_every,
        "verify_every": numbers.verify_every or "never",
        "mode": options.mode,
        "reduction": options.plan or "the framework's",
        "fingerprints": ",".join(sorted(families)) or "none",
    }
    if "environment" in families:
        facts |= environment_facts(target.device)
    if "optimizer" in families:
        for optimizer in training.optimizers[:1]:
            facts |= optimizer_facts(optimizer)
    return facts


def _observer(
    training: _Training, numbers: _Numbers, facts: dict[str, object], module: int
) -> Observer:
    target, groups = training.target, numbers.groups
    rank, ranks = dist.get_rank(), target.ranks
    return Observer(
        module=module,
        replica=ranks.index(rank),
        shard=min(ranks),
        rank=rank,
        replicas=len(ranks),
        sketch_size=numbers.sketch_size,
        host=socket.gethostname(),
        facts=[(name, printable(str(value))) for name, value in facts.items()],
        parameters=[(n, p.numel(), _group_of(n, groups)) for n, p in target.parameters.items()],
        buffers=_listed(training.buffers, groups),
        every=numbers.every,
        reduced_every=numbers.reduced_every,
        knows_optimizer=bool(training.optimizers),
        one_optimizer=_steps_all(training.optimizers, target.parameters.values()),
        on_host=numbers.on_host,
    )


def _setup(
    recording: Recording, observer: Observer, training: _Training, numbers: _Numbers
) -> RecorderSetup:
    target, session = training.target, recording.session
    parameters = [weakref.ref(parameter) for parameter in target.parameters.values()]

    def hello() -> None:
        session.send(observer.hello())

    return RecorderSetup(
        observer=observer,
        parameters=parameters,
        names=list(target.parameters),
        device=target.device,
        on_host=numbers.on_host,
        replicas=len(target.ranks),
        optimizers=[weakref.ref(optimizer) for optimizer in training.optimizers],
        scaler=training.scaler,
        every=numbers.every,
        verify_every=numbers.verify_every,
        sketch_size=numbers.sketch_size,
        fingerprints=StepFingerprints(
            target.module,
            observer,
            families=Families(training.families, recording.note),
            parameters=parameters,
            buffers=training.buffers,
            device=target.device,
            optimizers=training.optimizers,
            data=training.data,
            every=numbers.every,
            found=hello,
        ),
        moments=_moments(observer, training, parameters),
        send=session.send,
        dropped=lambda: session.channel.outbox.dropped,
        failed=recording.failed,
        hello=hello,
        note=recording.note,
        stepped=recording.stepped,
    )


def _moments(
    observer: Observer, training: _Training, parameters: Sequence[weakref.ref[nn.Parameter]]
) -> Moments | None:
    """Of all parameters on the first rank, of sharded ones on each."""
    if "parameters" not in training.families:
        return None
    target = training.target
    optimizers = [weakref.ref(optimizer) for optimizer in training.optimizers]
    first = dist.get_rank() == target.ranks[0]
    return Moments(observer, parameters, optimizers, target.device, tells_whole=first)


def _start(recording: Recording, training: _Training, setup: RecorderSetup) -> None:
    target, optimizers = training.target, training.optimizers
    recorder = StepRecorder(target.source(setup.every), setup)
    recording.watch(target.wrapper, target.module, recorder)
    say = recording.session.channel.say
    if any(_has_stepped(optimizer) for optimizer in optimizers):
        say("presum: the optimiser has stepped before; the recording starts here")
    if optimizers and not _hold_some(optimizers, target.parameters.values()):
        say("presum: the optimizer given to attach holds none of the model's parameters")
    recorder.hook()


def _optimizers(given: object) -> list[Optimizer]:
    """Those that train the model, each once. Raises ValueError for what is none."""
    listed = given if isinstance(given, (list, tuple)) else [given]
    found = [_innermost(one) for one in listed if one is not None]
    for one in found:
        _check_kind("optimizer", one, Optimizer)
    return list(dict.fromkeys(found))


def _innermost(optimizer: Any) -> Any:
    """The optimiser inside Accelerate's and Lightning's wrappers."""
    while isinstance(inside := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inside
    return optimizer


def _has_stepped(optimizer: Optimizer) -> bool:
    """LBFGS runs its first forward passes within its first step, and has begun to count then."""
    return any(
        not isinstance(state, dict) or state.get("n_iter") != 0
        for state in optimizer.state.values()
    )


def _hold_some(optimizers: Sequence[Optimizer], parameters: Collection[nn.Parameter]) -> bool:
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    held = {id(p) for group in groups for p in group["params"]}
    return not parameters or any(id(parameter) in held for parameter in parameters)


def _check_kind(name: str, value: object, kind: type) -> None:
    if value is not None and not isinstance(value, kind):
        raise ValueError(
            f"presum.attach: {name} must be of type {kind.__name__}, not {type(value).__name__}"
        )


def _listed(
    buffers: Sequence[NamedState], groups: Sequence[str] | bool | None
) -> list[tuple[str, int, str]]:
    tensors = [(held.name, held.tensor()) for held in buffers]
    return [(n, x.numel() if x is not None else 0, _group_of(n, groups)) for n, x in tensors]


def _buffers(
    target: Target, local_buffers: Sequence[str], families: frozenset[str]
) -> Sequence[NamedState]:
    patterns = _patterns("local_buffers", local_buffers)
    return named_states(target.module, target.parameters, target.ignored, patterns, families)


def _patterns(name: str, given: Sequence[str]) -> Sequence[str]:
    patterns = [given] if isinstance(given, str) else list(given)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ValueError(f"presum.attach: {name}: {pattern!r}: {error}") from None
    return patterns


def _check_positive(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"presum.attach: {name} must be a whole number of at least 1, not {value}")


def _check_verify(every: int | None, optimizers: Sequence[Optimizer]) -> None:
    if every is None:
        return
    _check_positive("verify_every", every)
    if not optimizers:
        raise ValueError("presum.attach: verify_every needs the optimiser: give optimizer=")


def _check_cadence(options: WatchOptions, every: int, reduced_every: int) -> None:
    _check_positive("every", every)
    _check_positive("reduced_every", reduced_every)
    for name in ("gram_every", "audit_every", "audit_elements"):
        value = getattr(options, name)
        if value is not None:
            _check_positive(name, value)
    if options.audit_every is None and options.audit_elements != AUDIT_ELEMENTS:
        raise ValueError("presum.attach: audit_elements needs audit_every")


def _check_use(on_finding: Any, data: object, scaler: object, run: object) -> None:
    _check_callback(on_finding)
    _check_data(data)
    _check_scaler(scaler)
    _check_run(run)
    _check_moment()


def _layers(groups: Sequence[str] | bool | None) -> Sequence[str] | bool | None:
    return groups if groups is None or isinstance(groups, bool) else _patterns("groups", groups)


def _check_scaler(scaler: object) -> None:
    if scaler is not None and not hasattr(scaler, "get_scale"):
        raise ValueError(
            f"presum.attach: scaler must be a torch.amp.GradScaler, not {type(scaler).__name__}"
        )


def _check_run(run: object) -> None:
    if run is not None and not isinstance(run, (str, os.PathLike)):
        raise ValueError(f"presum.attach: run must be a folder's path, not {type(run).__name__}")


def _check_callback(on_finding: object) -> None:
    if on_finding is not None and not callable(on_finding):
        raise ValueError(
            "presum.attach: on_finding must be a function of one Finding, "
            f"not {type(on_finding).__name__}"
        )


def _check_preflight(preflight: int | None, optimizers: Sequence[Optimizer], every: int) -> None:
    if preflight is None:
        return
    _check_positive("preflight", preflight)
    if preflight < every:
        raise ValueError(
            f"presum.attach: {preflight} preflight steps with every={every} would record one step"
        )
    if not optimizers:
        raise ValueError("presum.attach: preflight ends after an optimiser step: give optimizer=")


def _check_required(require: str) -> None:
    if require not in ("facts", "statistics"):
        raise ValueError(f'presum.attach: require is "facts" or "statistics", not {require!r}')


def _check_moment() -> None:
    if torch._C._current_graph_task_id() != -1:
        raise ValueError("presum.attach: not inside a backward pass")


def _check_data(data: object) -> None:
    parts = data if isinstance(data, (list, tuple)) else [data]
    if not parts:
        raise ValueError("presum.attach: data is an empty list; leave it out to have it found")
    for part in parts:
        if part is not None and not hasattr(type(part), "__iter__"):
            raise ValueError(
                "presum.attach: data must be a DataLoader, a sampler or a list of them, "
                f"not {type(part).__name__}"
            )


def _sketch_size(sketch: int | str, replicas: int) -> int:
    if sketch == "auto":
        return 4096 if replicas <= 64 else 1024
    if isinstance(sketch, bool) or not isinstance(sketch, int) or sketch < 0:
        raise ValueError(f'presum.attach: sketch must be "auto" or a number, not {sketch!r}')
    return sketch


def _group_of(name: str, groups: Sequence[str] | bool | None) -> str:
    """The group's name; "" lets the library choose the layer."""
    if groups is None or groups is True:
        return ""
    if groups is False:
        return "all"
    matches = (re.search(pattern, name) for pattern in groups)
    return next((found.group(0) for found in matches if found), "other")


def _default_run() -> Path:
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c") else "python"
    return Path("runs") / f"{script}-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"


def _steps_all(optimizers: Sequence[Optimizer], parameters: Iterable[torch.Tensor]) -> bool:
    """Whether there is one, and it holds all parameters."""
    if len(optimizers) != 1:
        return False
    held = {id(p) for group in optimizers[0].param_groups for p in group["params"]}
    return all(id(parameter) in held for parameter in parameters)


def _target_facts(
    target: Target, optimizers: Sequence[Optimizer], scaler: torch.amp.GradScaler | None
) -> dict[str, object]:
    parameters = list(target.parameters.values())
    facts: dict[str, object] = {
        "presum": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "pid": os.getpid(),
        "device": target.device if parameters else "none",
        "world_size": dist.get_world_size(),
        "backend": dist.get_backend(),
        "model": _plain_name(type(target.module)),
        "wrapper": target.kind,
        "parameters": len(parameters),
        "elements": sum(p.numel() for p in parameters),
        "dtypes": ",".join(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
        "optimizer": ", ".join(type(one).__name__ for one in optimizers) or "unknown",
    }
    if scaler is not None and scaler.is_enabled():
        facts["grad_scaler"] = type(scaler).__name__
    return facts


def _plain_name(kind: type) -> str:
    """fully_shard makes a class of its own out of a module's."""
    return kind.__name__.removeprefix("FSDP") if FSDPModule in kind.__mro__ else kind.__name__
