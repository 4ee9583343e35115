# SPDX-License-Identifier: Apache-2.0
"""``presum.attach``: starts to record a data-parallel model."""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from presum._core import Observer, __version__, canonical_name
from presum.devices.gradient_pass import poll_host_copies
from presum.devices.readable import in_host_memory
from presum.findings import Finding
from presum.fingerprints import Families, StepFingerprints, chosen
from presum.fingerprints.environment import environment_facts
from presum.fingerprints.settings import optimizer_facts
from presum.fingerprints.snapshots import Snapshots, steps_of
from presum.fingerprints.states import NamedState, named_states
from presum.monitor import Monitor
from presum.options import PROCESS, Audit, Record, Reduction, unknown_check
from presum.parallel.targets import MODES, Target, WatchOptions, target_of
from presum.steps.gradient_source import in_backward
from presum.steps.recording import Recording, unhook_ended
from presum.steps.setup import RecorderSetup
from presum.steps.step_recorder import StepRecorder
from presum.text import printable
from presum.torch_events.optimizers import parameters_of
from presum.trackers.kinds import KINDS
from presum.transport.channel import Channel
from presum.transport.heartbeat import Heartbeat
from presum.transport.processes import start_of
from presum.transport.session import (
    Session,
    end_recordings_of,
    next_module_number,
    open_session,
)

STALL_SECONDS_MAX = 1e8
LAYERS_MAX = 256  # above this number, layer classes are not recorded
SKETCH_SIZES = (0, *(1 << bits for bits in range(6, 17)))


def attach(
    model: nn.Module,
    *,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    run: str | os.PathLike[str] | None = None,
    process_group: dist.ProcessGroup | None = None,
    mode: str = "passive",
    reduction: Reduction | str | None = None,
    audit: Audit | int | None = None,
    record: Record | None = None,
    on_finding: Callable[[Finding], None] | None = None,
    preflight: int | None = None,
    log_to: Sequence[str] = (),
    webhook: str | None = None,
) -> Monitor:
    """Record a data-parallel model. Call it on every rank, once per model, on the training thread.

    Training computes the same bits with presum attached, except with ``reduction=``. If presum
    itself fails (the RUN folder cannot be written, the store is gone), it prints one message and
    training continues. presum holds the model weakly: the recording ends when the model is freed,
    even if the :class:`Monitor` was not kept or closed.

    Args:
        model: the ``DistributedDataParallel`` wrapper (not the module inside it), the outermost
            module that ``fully_shard`` was applied to, a module that the composable ``replicate``
            was applied to, after its first forward pass, or, with ``mode="manual"``, any module.
        optimizer: the optimizer whose ``step()`` ends a step, or a list if several optimizers train
            the model. Without it, a step ends at the next forward pass.
        run: the RUN folder. Global rank 0 writes it, or another rank if rank 0 does not attach.
            Default: ``runs/<script>-<UTC time>``.
        process_group: the data-parallel process group. Default: the model's own group, or all
            ranks.
        mode: ``"passive"`` observes the reduction of DDP or FSDP2. ``"manual"`` is for loops that
            reduce gradients themselves and call :meth:`Monitor.before_reduction` and
            :meth:`Monitor.after_reduction`.
        reduction: ``"exact"`` or a :class:`presum.Reduction`: presum sums the gradients instead of
            the framework. Default: the framework does.
        audit: an :class:`presum.Audit`, or ``n`` for one audit at every n-th recorded step:
            compares the result of the reduction with the exact sum. Default: no audits.
        record: a :class:`presum.Record`: what to record, and when. Default: ``presum.Record()``.
        on_finding: called with each new :class:`presum.Finding`, and again if its severity rises,
            on the rank that records only, on a background thread (see
            ``Record.on_training_thread``).
        preflight: the number of steps after which presum prints the verdict and ends the process
            with ``SystemExit`` after the optimizer step, with the same exit code on every rank.
            Needs ``optimizer``. If the program ends earlier, it keeps its own exit code, except
            under ``presum.run``, where a program that ends successfully exits with the verdict's
            code.
        log_to: experiment trackers that also get the metrics and findings: any of "tensorboard",
            "wandb", "mlflow", "trackio" and "otlp" (docs/start.md). The first model of a run
            decides.
        webhook: the environment variable, or file, that holds the https address to which presum
            posts each finding of severity "warning" and "critical", as JSON (docs/start.md). The
            first model of a run decides.

    Returns:
        The :class:`Monitor` of this model on this rank. With one rank, dispersions are 0 and
        cosines are NaN.

    Raises:
        ValueError: an argument is invalid, the model cannot be recorded, it is already attached, or
            ``torch.distributed`` is not initialized.
    """
    unhook_ended()
    _check_kind("process_group", process_group, dist.ProcessGroup)
    options = check_options(
        run=run,
        mode=mode,
        reduction=reduction,
        audit=audit,
        record=record,
        preflight=preflight,
        log_to=log_to,
        webhook=webhook,
    )
    record = record or Record()
    target = target_of(model, process_group, options)
    _check_use(on_finding, record.data, record.scaler)
    optimizers = _optimizers(optimizer)
    _check_optimizers(optimizers, record.verify_every, preflight)
    size, on_host = _sketch_size(record.sketch, len(target.ranks)), in_host_memory(target.device)
    every = record.every, record.reduced_every, record.verify_every
    numbers = _Numbers(*every, size, _layers(record.groups), on_host)
    on = chosen(record.fingerprints)
    buffers = _buffers(target, record.local_buffers, on)
    training = _Training(target, optimizers, record.scaler, record.data, on, buffers)
    key = Path(run).absolute() if run is not None else PROCESS.run
    facts = _facts(training, numbers, options)
    facts |= {f"allow.{check}": reason for check, reason in record.allow.items()}
    observer = _observer(training, numbers, facts, next_module_number(key, tuple(target.ranks)))
    end_recordings_of(target.module)
    session = _session(key, record, on_finding, log_to, webhook)
    recording = Recording(session, observer, tuple(target.ranks), preflight=preflight)
    monitor = Monitor(recording)
    try:
        _start(recording, training, _setup(recording, observer, training, numbers))
    except Exception:
        monitor.close()
        raise
    PROCESS.attached = True
    return monitor


def check_options(
    *,
    run: str | os.PathLike[str] | None = None,
    mode: str = "passive",
    reduction: Reduction | str | None = None,
    audit: Audit | int | None = None,
    record: Record | None = None,
    preflight: int | None = None,
    log_to: Sequence[str] = (),
    webhook: str | None = None,
) -> WatchOptions:
    """Validate the arguments of ``attach`` that do not depend on a model.

    Raises:
        ValueError: an argument is invalid.
    """
    _check_kind("record", record, Record)
    record = record or Record()
    _check_run(run)
    options = _watch_options(mode, reduction, audit)
    _check_cadence(options, record, preflight)
    _check_flag("quiet", record.quiet)
    _check_flag("on_training_thread", record.on_training_thread)
    if record.require not in ("facts", "statistics"):
        raise _wrong(f'require must be "facts" or "statistics", not {record.require!r}')
    _check_stalls(record.stall_seconds, record.on_stall)
    _sketch_size(record.sketch, 1)
    _layers(record.groups)
    _patterns("local_buffers", record.local_buffers)
    chosen(record.fingerprints)
    _check_allowed(record.allow)
    _check_trackers(log_to)
    _check_webhook(webhook)
    return options


def _watch_options(
    mode: str, reduction: Reduction | str | None, audit: Audit | int | None
) -> WatchOptions:
    given = _reduction(reduction, mode)
    audited = Audit(audit) if isinstance(audit, int) else audit
    _check_kind("audit", audited, Audit)
    if mode not in MODES:
        raise _wrong(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    if not isinstance(audited, Audit):
        return WatchOptions(mode, given)
    return WatchOptions(mode, given, audited.every, audited.elements)


def _reduction(given: Reduction | str | None, mode: str) -> Reduction | None:
    if given == "exact":
        given = Reduction()
    if isinstance(given, str):
        raise _wrong(f'reduction must be "exact" or a presum.Reduction, not {given!r}')
    _check_kind("reduction", given, Reduction)
    if given is None:
        return None
    _check_flag("microbatch_mean", given.microbatch_mean)
    if mode == "manual":
        raise _wrong('with mode="manual" your code does the reduction: call presum.reduce there')
    return given


def _session(
    key: Path | None,
    record: Record,
    on_finding: Callable[[Finding], None] | None,
    log_to: Sequence[str],
    webhook: str | None,
) -> Session:
    rank, host = dist.get_rank(), socket.gethostname()

    def opened() -> Channel:
        heartbeat = Heartbeat(rank, host, record.stall_seconds, quiet=record.quiet)
        run = key or _default_run()
        size = dist.get_world_size()
        return Channel(run, rank, size, heartbeat, record.on_stall, log_to, webhook)

    session = open_session(key, opened)
    session.channel.poll_devices = poll_host_copies
    session.channel.quiet = session.channel.quiet or record.quiet
    session.channel.require_statistics |= record.require == "statistics"
    if on_finding is not None:
        session.listeners.listen(on_finding, on_training_thread=record.on_training_thread)
    return session


class _Numbers(NamedTuple):
    """What is measured in a step, and how often."""

    every: int
    reduced_every: int
    verify_every: int | None
    sketch_size: int
    groups: Sequence[str] | None
    on_host: bool  # gradients are in host memory


class _Training(NamedTuple):
    """A model and the other objects of its training that presum observes."""

    target: Target
    optimizers: Sequence[Optimizer]
    scaler: torch.amp.GradScaler | None
    data: object
    families: frozenset[str]  # of fingerprints
    buffers: Sequence[NamedState]


def _facts(training: _Training, numbers: _Numbers, options: WatchOptions) -> dict[str, object]:
    """The facts that the run log stores when the recording starts."""
    target, families = training.target, training.families
    facts = _target_facts(target, training.optimizers, training.scaler) | {
        "sketch": numbers.sketch_size,
        "every": numbers.every,
        "reduced_every": numbers.reduced_every,
        "verify_every": numbers.verify_every or "never",
        "mode": options.mode,
        "reduction": options.reduction or "the framework's",
        "fingerprints": ",".join(sorted(families)) or "none",
    }
    if "environment" in families:
        facts |= environment_facts(target.device)
    if "optimizer" in families and training.optimizers:
        facts |= optimizer_facts(training.optimizers, target.parameters.values())
    return facts


def _observer(
    training: _Training, numbers: _Numbers, facts: dict[str, object], model_index: int
) -> Observer:
    target, groups = training.target, numbers.groups
    rank, ranks = dist.get_rank(), target.ranks
    held, parameters = _held_by(training.optimizers), map(id, target.parameters.values())
    return Observer(
        model_index=model_index,
        replica=ranks.index(rank),
        dp_group=min(ranks),
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
        one_optimizer=len(training.optimizers) == 1 and held.issuperset(parameters),
        on_host=numbers.on_host,
    )


def _setup(
    recording: Recording, observer: Observer, training: _Training, numbers: _Numbers
) -> RecorderSetup:
    target, session = training.target, recording.session
    parameters = [weakref.ref(parameter) for parameter in target.parameters.values()]
    for layer, kind in _numbered_layers(target.module, map(observer.group, range(len(parameters)))):
        observer.fact(f"layer.{layer}", kind)

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
        snapshots=_snapshots(observer, training, parameters),
        send=session.send,
        failed=recording.failed,
        hello=hello,
        note=recording.note,
        stepped=recording.stepped,
    )


def _numbered_layers(module: nn.Module, layers: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (layer, class name) for layers whose names end in a number, if the class is torch's
    own: such a name alone says nothing about the layer."""
    modules = {canonical_name(name): part for name, part in module.named_modules()}
    for name in list(dict.fromkeys(layers))[:LAYERS_MAX]:
        kind = type(modules.get(name))
        if name.rpartition(".")[2].isdigit() and kind.__module__.startswith("torch.nn.modules"):
            yield name, kind.__name__


def _snapshots(
    observer: Observer, training: _Training, parameters: Sequence[weakref.ref[nn.Parameter]]
) -> Snapshots | None:
    """Snapshots of all parameters on the group's first rank, and of sharded parameters on every
    rank. None if parameters are not compared."""
    if "parameters" not in training.families:
        return None
    target = training.target
    optimizers = [weakref.ref(optimizer) for optimizer in training.optimizers]
    first = dist.get_rank() == target.ranks[0]
    return Snapshots(observer, parameters, optimizers, target.device, tells_whole=first)


def _start(recording: Recording, training: _Training, setup: RecorderSetup) -> None:
    target, optimizers = training.target, training.optimizers
    recorder = StepRecorder(target.source(setup.every), setup)
    recording.watch(target.wrapper, target.module, recorder)
    say = recording.session.channel.say
    if any(_has_stepped(optimizer) for optimizer in optimizers):
        say("presum: the optimizer has already taken steps; the recording starts here")
    parameters, held = target.parameters.values(), _held_by(optimizers)
    if optimizers and parameters and not any(id(parameter) in held for parameter in parameters):
        say("presum: the optimizer given to attach holds none of the model's parameters")
    recorder.hook()


def _optimizers(given: object) -> list[Optimizer]:
    """The innermost optimizers, without duplicates. Raises ValueError for an object of another
    type."""
    listed = given if isinstance(given, (list, tuple)) else [given]
    found = [_innermost(one) for one in listed if one is not None]
    for one in found:
        _check_kind("optimizer", one, Optimizer)
    return list(dict.fromkeys(found))


def _innermost(optimizer: Any) -> Any:
    """The optimizer inside the wrappers of Accelerate and Lightning."""
    while isinstance(inside := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inside
    return optimizer


def _has_stepped(optimizer: Optimizer) -> bool:
    """Whether the optimizer has taken a step. LBFGS counts its first step while it runs; Adagrad
    has state before its first step."""
    return steps_of([optimizer]) != 0 and any(
        not isinstance(state, dict) or state.get("n_iter") != 0
        for state in optimizer.state.values()
    )


def _held_by(optimizers: Sequence[Optimizer]) -> set[int]:
    return {id(p) for optimizer in optimizers for p in parameters_of(optimizer)}


def _wrong(what: str) -> ValueError:
    return ValueError(f"presum.attach: {what}")


def _check_kind(name: str, value: object, kind: type) -> None:
    if value is not None and not isinstance(value, kind):
        raise _wrong(f"{name} must be of type {kind.__name__}, not {type(value).__name__}")


def _listed(
    buffers: Sequence[NamedState], groups: Sequence[str] | None
) -> list[tuple[str, int, str]]:
    tensors = [(held.name, held.tensor()) for held in buffers]
    return [(n, x.numel() if x is not None else 0, _group_of(n, groups)) for n, x in tensors]


def _buffers(
    target: Target, local_buffers: Sequence[str], families: frozenset[str]
) -> Sequence[NamedState]:
    patterns = _patterns("local_buffers", local_buffers)
    return named_states(target.module, target.parameters, target.ignored, patterns, families)


def _patterns(name: str, given: Sequence[str]) -> Sequence[str]:
    if not isinstance(given, Collection):
        raise _wrong(f"{name} must be a list of regular expressions, not {type(given).__name__}")
    patterns = [given] if isinstance(given, str) else list(given)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise _wrong(f"{name}: invalid regular expression {pattern!r}: {error}") from None
    return patterns


def _check_positive(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _wrong(f"{name} must be an integer of at least 1, not {value}")


def _check_cadence(options: WatchOptions, record: Record, preflight: int | None) -> None:
    _check_positive("every", record.every)
    _check_positive("reduced_every", record.reduced_every)
    optional = {
        "verify_every": record.verify_every,
        "audit": options.audit_every,
        "audit's elements": options.audit_elements,
        "preflight": preflight,
    }
    for name, value in optional.items():
        if value is not None:
            _check_positive(name, value)
    if preflight is not None and preflight < record.every:
        raise _wrong(f"preflight={preflight} with every={record.every} records only one step")


def _check_optimizers(
    optimizers: Sequence[Optimizer], verify_every: int | None, preflight: int | None
) -> None:
    if optimizers:
        return
    if verify_every is not None:
        raise _wrong("verify_every needs the optimizer: pass optimizer=")
    if preflight is not None:
        raise _wrong("preflight needs the optimizer: pass optimizer=")


def _check_use(on_finding: object, data: object, scaler: object) -> None:
    if on_finding is not None and not callable(on_finding):
        kind = type(on_finding).__name__
        raise _wrong(f"on_finding must be a function of one Finding, not {kind}")
    _check_data(data)
    if scaler is not None and not hasattr(scaler, "get_scale"):
        raise _wrong(f"scaler must be a torch.amp.GradScaler, not {type(scaler).__name__}")
    if in_backward():
        raise _wrong("call it outside the backward pass")


def _layers(groups: Sequence[str] | None) -> Sequence[str] | None:
    return groups if groups is None else _patterns("groups", groups)


def _check_run(run: object) -> None:
    if run is not None and not isinstance(run, (str, os.PathLike)):
        raise _wrong(f"run must be a folder's path, not {type(run).__name__}")
    if run == "":
        raise _wrong("run must be a folder's path, not an empty string")


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise _wrong(f"{name} must be True or False, not {value!r}")


def _check_stalls(seconds: Any, on_stall: object) -> None:
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not 1 <= seconds <= STALL_SECONDS_MAX:
        raise _wrong(f"stall_seconds must be a number from 1 to 1e8, not {seconds!r}")
    if on_stall not in ("report", "raise", "exit"):
        raise _wrong(f'on_stall must be "report", "raise" or "exit", not {on_stall!r}')


def _check_allowed(allow: object) -> None:
    if not isinstance(allow, Mapping) or not all(isinstance(x, str) for x in allow.values()):
        raise _wrong(f"allow must be a mapping {{check: reason}}, not {allow!r}")
    for check, reason in allow.items():
        if unknown := unknown_check(check):
            raise _wrong(f"allow: {unknown}")
        if not reason.strip():
            raise _wrong(f"allow: give a reason for {check}")


def _check_trackers(log_to: object) -> None:
    if not isinstance(log_to, (list, tuple)) or any(name not in [*KINDS] for name in log_to):
        raise _wrong(f"log_to must be a list of {', '.join(KINDS)}, not {log_to!r}")


def _check_webhook(webhook: object) -> None:
    if webhook is None:
        return
    if not isinstance(webhook, str) or not webhook or "://" in webhook:
        raise _wrong(
            "webhook must name an environment variable, or a file, that holds the address: whoever "
            "knows the address can post"
        )


def _check_data(data: object) -> None:
    parts = data if isinstance(data, (list, tuple)) else [data]
    if not parts:
        raise _wrong("data is an empty list; omit it, and presum finds the data loaders")
    for part in parts:
        if part is not None and not hasattr(type(part), "__iter__"):
            raise _wrong(
                f"data must be a DataLoader, a sampler or a list of them, not {type(part).__name__}"
            )


def _sketch_size(sketch: int | None, replicas: int) -> int:
    if sketch is None:
        return 4096 if replicas <= 64 else 1024
    if isinstance(sketch, bool) or not isinstance(sketch, int) or sketch not in SKETCH_SIZES:
        raise _wrong(f"sketch must be 0 or a power of two from 64 to 65536, not {sketch!r}")
    return sketch


def _group_of(name: str, groups: Sequence[str] | None) -> str:
    """The group's name; "" lets the library derive the layer from the parameter's name."""
    if groups is None:
        return ""
    if not groups:
        return "all"
    matches = (re.search(pattern, name) for pattern in groups)
    return next((found.group(0) for found in matches if found), "other")


def _default_run() -> Path:
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c") else "python"
    return Path("runs") / f"{script}-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"


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
        "process_start": start_of(os.getpid()) or "unknown",
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
    """The class name. ``fully_shard`` replaces a module's class with a subclass whose name starts
    with "FSDP"."""
    return kind.__name__.removeprefix("FSDP") if FSDPModule in kind.__mro__ else kind.__name__
