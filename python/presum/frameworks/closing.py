# SPDX-License-Identifier: Apache-2.0
"""The line that presum.run prints at the end besides the verdict: that nothing was recorded, or
which models were not, and why."""

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
    """What presum saw in this process under presum.run."""

    rank: int = 0
    world_size: int = 1
    watched: bool = False  # a model of this process is or was recorded
    unwatched: Mapping[str, str] = field(default_factory=dict)  # not recorded, why
    optimizer_steps: int = 0
    starts_ranks: bool = False  # it started processes that presum records
    recorded_elsewhere: bool = False  # by another rank, as far as known; it may still begin


def closing_line(seen: Seen) -> str | None:
    """The line to print if the verdict of the rank that records leaves something open, else
    None."""
    recorded = seen.watched or seen.recorded_elsewhere
    # Besides a recorded model, these can be copies of its parameters, as in mixed precision.
    named = {n: why for n, why in seen.unwatched.items() if why != ALONE or not recorded}
    if named:
        models = "; ".join(f"{name} ({why})" for name, why in named.items())
        if recorded:
            return f"presum: rank {seen.rank} also trained what is not recorded: {models}"
        if seen.world_size > 1 and all(why == ALONE for why in named.values()):
            return _apart(seen)
        return f"presum: nothing was recorded: {models}"
    if seen.watched or seen.starts_ranks or seen.recorded_elsewhere:
        return None
    if seen.world_size > 1 and seen.optimizer_steps:
        return _apart(seen)
    if seen.world_size > 1:
        return (
            f"presum: rank {seen.rank} trained no DistributedDataParallel or FSDP2 model; if "
            "another rank recorded one, that rank reports it"
        )
    return (
        "presum: nothing was recorded: no DistributedDataParallel or FSDP2 model was "
        "trained in this process (of the processes that it started, presum records only "
        "those that a launcher starts)"
    )


def _apart(seen: Seen) -> str:
    steps = f"{seen.optimizer_steps} optimizer step{'s' if seen.optimizer_steps != 1 else ''}"
    return (
        f"presum: {seen.world_size} ranks were started, and this one took {steps}, "
        "but no DistributedDataParallel or FSDP2 model was trained: each "
        'rank trains alone, or reduces by hand (then attach with mode="manual")'
    )


def why_unwatched(optimizer: Optimizer, wrapped: Iterable[nn.Module]) -> tuple[str, str]:
    """What an optimizer trains that presum does not record, and why. ``wrapped``: the FSDP1 models
    of the process."""
    parameters = [*parameters_of(optimizer)]
    held = {id(p) for p in parameters}
    for model in wrapped:
        if any(id(p) in held for p in model.parameters()):
            return type(model.module).__name__, FSDP1
    engine = _engine_of(optimizer)
    if engine is not None:
        return type(engine.module).__name__, DEEPSPEED
    of = f"the parameters of {type(optimizer).__name__}"
    return of, TENSOR_PARALLEL if any(isinstance(p, DTensor) for p in parameters) else ALONE


def why_refused(model: Any) -> str | None:
    """Why presum cannot record a model that a framework trains; None if the reason is unknown."""
    if isinstance(model, FullyShardedDataParallel):
        return FSDP1
    engine = _engine_kind()
    return DEEPSPEED if engine is not None and isinstance(model, engine) else None


def _engine_kind() -> Any:
    return getattr(sys.modules.get("deepspeed.runtime.engine"), "DeepSpeedEngine", None)


def _engine_of(optimizer: Optimizer) -> Any:
    """The DeepSpeed engine of an optimizer. Searches all objects, once per optimizer."""
    kind = _engine_kind()
    if kind is None:
        return None
    engines: Collection[Any] = [one for one in gc.get_objects() if isinstance(one, kind)]
    return next((one for one in engines if one.__dict__.get("basic_optimizer") is optimizer), None)
