# SPDX-License-Identifier: Apache-2.0
"""Data parallelism by FSDP2 or by hand, instead of DDP."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

REPLICAS = {"fsdp2": 1, "hsdp": 2}
TIMEOUT = timedelta(minutes=2)  # for ranks that diverge, as some faults cause with FSDP2


def sharded(model: nn.Module, part: str, method: str) -> Any:
    """The model with rank 0's values, with one part as a separate parameter group."""
    mesh = _mesh(REPLICAS[method])
    as_on_rank_0(model)
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")  # of a view, unchanged
    fully_shard(model.get_submodule(part), mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _mesh(replicas: int) -> DeviceMesh:
    """A mesh of all ranks. Its groups time out as the default group does."""
    if replicas == 1:
        return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
    ranks = torch.arange(dist.get_world_size()).view(replicas, -1)
    groups = [
        dist.new_subgroups_by_enumeration(sets.tolist(), timeout=TIMEOUT)[0]  # type: ignore[no-untyped-call]
        for sets in (ranks.T, ranks)
    ]
    return DeviceMesh.from_group(groups, "cpu", ranks, mesh_dim_names=("replicate", "shard"))


@contextlib.contextmanager
def unsharded(model: nn.Module) -> Iterator[None]:
    """A context in which FSDP2's parameters are those that its backward passes give gradients
    to."""
    sharded = [part for part in model.modules() if isinstance(part, FSDPModule)]
    for part in sharded:
        part.unshard()
    yield
    for part in sharded:
        part.reshard()


def as_on_rank_0(model: nn.Module) -> nn.Module:
    """The model with rank 0's values, as DDP sets them."""
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), 0)
    return model


def reducing(wrapper: Any, reduces: bool) -> contextlib.AbstractContextManager[None]:
    """A context in which backward passes reduce, or accumulate."""
    if isinstance(wrapper, FSDPModule):
        wrapper.set_requires_gradient_sync(reduces)
        return contextlib.nullcontext()
    by_hand = not hasattr(wrapper, "no_sync")
    return contextlib.nullcontext() if reduces or by_hand else wrapper.no_sync()
