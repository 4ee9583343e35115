# SPDX-License-Identifier: Apache-2.0
"""What a program under ``presum.run`` is told at its end beside the verdict: that nothing was
recorded, or which of its models was not, and why."""

from __future__ import annotations

import gc
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from presum.torch_events.optimizers import parameters_of

FSDP1 = "FSDP1 reduces flat shards; use FSDP2, torch.distributed.fsdp.fully_shard"
DEEPSPEED = "DeepSpeed's engine reduces its gradients"
TENSOR_PARALLEL = (
    "its parameters are DTensors that neither DistributedDataParallel nor fully_shard holds, as "
    "under tensor parallelism alone"
)
ALONE = "no DistributedDataParallel or FSDP2 model holds its parameters"


@dataclass(frozen=True)
class Seen:
    """What this process did under presum.run."""

    rank: int = 0
    world_size: int = 1
    watched: bool = False  # a model of this process is recorded, or was
    unwatched: Mapping[str, str] = field(default_factory=dict)  # what it trained besides, and why
    optimizer_steps: int = 0
    starts_ranks: bool = False  # processes of its own, which are watched
    recorded_elsewhere: bool = False  # by another rank, as far as is known: it may still begin


def closing_line(seen: Seen) -> str | None:
    """One line, where the verdict of the rank that records leaves something open."""
    recorded = seen.watched or seen.recorded_elsewhere
    # Beside a watched model these may be copies of its parameters, as of mixed precision.
    named = {n: why for n, why in seen.unwatched.items() if why != ALONE or not recorded}
    if named:
        models = "; ".join(f"{name} ({why})" for name, why in named.items())
        if recorded:
            return f"presum: rank {seen.rank} also trained what is not watched: {models}"
        if seen.world_size > 1 and all(why == ALONE for why in named.values()):
            return _apart(seen)
        return f"presum: nothing was recorded: {models}"
    if seen.watched or seen.starts_ranks or seen.recorded_elsewhere:
        return None
    if seen.world_size > 1 and seen.optimizer_steps:
        return _apart(seen)
    if seen.world_size > 1:
        return (
            f"presum: rank {seen.rank} trained no DistributedDataParallel or FSDP2 model; whether "
            "another rank recorded one, that rank says"
        )
    return (
        "presum: nothing was recorded: no DistributedDataParallel or FSDP2 model was "
        "trained in this process (of those that it may have started only those of a "
        "launcher are watched)"
    )


def _apart(seen: Seen) -> str:
    steps = f"{seen.optimizer_steps} optimizer step{'s' if seen.optimizer_steps != 1 else ''}"
    return (
        f"presum: {seen.world_size} ranks were started, and this one made {steps}, "
        "but no DistributedDataParallel or FSDP2 model was trained: each "
        'rank trains on its own, or reduces by hand (then attach with mode="manual")'
    )


def why_unwatched(optimizer: Optimizer, wrapped: Iterable[nn.Module]) -> tuple[str, str]:
    """What an optimizer trains that presum does not watch, and why not. ``wrapped``: FSDP1 models
    of the process."""
    parameters = [*parameters_of(optimizer)]
    held = {id(p) for p in parameters}
    for model in wrapped:
        if any(id(p) in held for p in model.parameters()):
            return type(model.module).__name__, FSDP1
    engine = _engine_of(optimizer)
    if engine is not None:
        return type(engine.module).__name__, DEEPSPEED
    of = f"what {type(optimizer).__name__} steps"
    return of, TENSOR_PARALLEL if any(isinstance(p, DTensor) for p in parameters) else ALONE


def why_refused(model: Any) -> str | None:
    """Of a model that a framework trains by other means than presum watches; None where it is not
    known."""
    if isinstance(model, FullyShardedDataParallel):
        return FSDP1
    engine = _engine_kind()
    return DEEPSPEED if engine is not None and isinstance(model, engine) else None


def _engine_kind() -> Any:
    return getattr(sys.modules.get("deepspeed.runtime.engine"), "DeepSpeedEngine", None)


def _engine_of(optimizer: Optimizer) -> Any:
    """DeepSpeed's engine that steps it: by a look at all objects, once an optimizer."""
    kind = _engine_kind()
    if kind is None:
        return None
    engines: Collection[Any] = [one for one in gc.get_objects() if isinstance(one, kind)]
    return next((one for one in engines if one.__dict__.get("basic_optimizer") is optimizer), None)
