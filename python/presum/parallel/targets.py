# SPDX-License-Identifier: Apache-2.0
"""Determines the kind of a model, its ranks, and how its gradients are read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from presum.options import Reduction
from presum.parallel.by_hand import ManualSource
from presum.parallel.replicated import ddp_of, is_replicated
from presum.steps.gradient_source import GradientSource
from presum.torch_events.hooks import Hook

if TYPE_CHECKING:
    from presum.parallel.auditing import Audits

# Sources use names that are private to torch. If a release lacks one, attaching that kind of model
# fails with a one-line message.

MODES = ("passive", "manual")


@dataclass(frozen=True)
class Target:
    """A model, as presum observes it."""

    wrapper: nn.Module  # whose forward pass takes a micro-batch
    module: nn.Module  # the model inside the wrapper; the same if there is no wrapper
    kind: str
    ranks: Sequence[int]  # global ranks of the data-parallel group
    parameters: Mapping[str, nn.Parameter]  # those whose gradients are reduced
    device: torch.device
    source: Callable[[int], GradientSource]  # takes the cadence of recorded steps
    ignored: Collection[str] = field(default=())  # by the wrapper


class WatchOptions(NamedTuple):
    """How to observe a model and to sum its gradients."""

    mode: str = "passive"
    reduction: Reduction | None = None
    audit_every: int | None = None
    audit_elements: int | None = None


def target_of(model: object, group: dist.ProcessGroup | None, options: WatchOptions) -> Target:
    """Raises ValueError for a model that cannot be recorded or summed as requested."""
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    if not isinstance(model, nn.Module):
        raise ValueError(f"presum.attach needs a module, not {type(model).__name__}")
    target = _target(model, group, options)
    if is_watched(target.wrapper):
        raise ValueError("presum.attach: this model is attached already; close its monitor first")
    devices = {str(parameter.device) for parameter in target.parameters.values()}
    if len(devices) > 1:
        raise ValueError(
            f"presum.attach: the model is spread over {', '.join(sorted(devices))}; "
            "only models on one device can be watched"
        )
    return target


def is_watched(model: nn.Module) -> bool:
    """Whether the model is being recorded."""
    hooks = model._forward_pre_hooks.values()
    return any(isinstance(hook, Hook) and hook.is_of_a_recording() for hook in hooks)


def _target(model: nn.Module, group: dist.ProcessGroup | None, options: WatchOptions) -> Target:
    if isinstance(model, DistributedDataParallel) and options.mode != "manual":
        return _ddp(model, group, options)
    if options.mode == "passive" and is_fsdp(model):
        return _fsdp(model, group, options)
    if options.mode == "passive" and is_replicated(model):
        return _replicated(model, group, options)
    if options.audit_every is not None:
        raise ValueError(
            "presum.attach: audit is for DistributedDataParallel and FSDP2, not for "
            f'{type(model).__name__} with mode="{options.mode}"; presum.reduce.audit takes arrays'
        )
    if options.mode == "manual":
        return _by_hand(model, group)
    raise ValueError(_why_not(model))


def is_fsdp(model: nn.Module) -> bool:
    """Whether ``fully_shard`` was applied to the module itself."""
    return isinstance(model, FSDPModule)


def outermost_fsdp(model: nn.Module) -> list[nn.Module]:
    """The modules that ``fully_shard`` was applied to and that are inside no other such module."""
    if is_fsdp(model):
        return [model]
    return [found for child in model.children() for found in outermost_fsdp(child)]


def _why_not(model: nn.Module) -> str:
    name = type(model).__name__
    if any(base.__name__ == "FullyShardedDataParallel" for base in type(model).__mro__):
        return (
            "presum.attach: FSDP1 (FullyShardedDataParallel) reduces flat shards, which presum "
            "does not support; use FSDP2, torch.distributed.fsdp.fully_shard"
        )
    return (
        f"presum.attach needs a DistributedDataParallel or fully_shard model, not {name}: attach "
        "after wrapping, and give the wrapper itself; if your code reduces gradients by hand, "
        'use mode="manual"'
    )


def _ddp(
    model: DistributedDataParallel, group: dist.ProcessGroup | None, options: WatchOptions
) -> Target:
    ignored = model.parameters_to_ignore
    parameters = {n: p for n, p in _trainable(model.module).items() if n not in ignored}
    if options.reduction is not None:
        from presum.parallel.reductions import check_dtypes

        _check_unhooked(model)
        if model._delay_all_reduce_params:
            raise ValueError(
                "presum.attach: reduction does not support delay_all_reduce_named_params, whose "
                "parameters DDP reduces separately"
            )
        check_dtypes({p.dtype for p in parameters.values()})
    elif options.audit_every is not None:
        _check_hookable(model)
    return Target(
        wrapper=model,
        module=model.module,
        kind="DDP",
        ranks=_ranks_of(group or model.process_group),
        parameters=parameters,
        device=_device(parameters),
        source=lambda every: _ddp_source(model, options, every),
        ignored=ignored,
    )


def _replicated(model: nn.Module, group: dist.ProcessGroup | None, options: WatchOptions) -> Target:
    from presum.parallel.ddp import DdpSource

    ddp = ddp_of(model)
    if ddp is None:
        raise ValueError(
            "presum.attach: replicate() prepares the reduction in the model's first forward pass: "
            "attach after it"
        )
    if options.reduction is not None or options.audit_every is not None:
        raise ValueError(
            "presum.attach: reduction and audit are not supported with replicate(); use "
            "DistributedDataParallel"
        )
    reduced = {id(parameter) for parameter in ddp.parameters()}
    parameters = {n: p for n, p in _trainable(model).items() if id(p) in reduced}
    return Target(
        wrapper=model,
        module=model,
        kind="DDP",
        ranks=_ranks_of(group or ddp.process_group),
        parameters=parameters,
        device=_device(parameters),
        source=lambda _every: DdpSource(ddp, model),
    )


def _ddp_source(
    model: DistributedDataParallel, options: WatchOptions, every: int
) -> GradientSource:
    from presum.parallel.ddp import DdpSource
    from presum.parallel.ddp_hook import DdpAuditingSource
    from presum.parallel.ddp_reducing import DdpReducingSource

    audits = _audits(options, every)
    if options.reduction is not None:
        return DdpReducingSource(model, options.reduction, audits)
    if audits is not None:
        return DdpAuditingSource(model, model.process_group, audits)
    return DdpSource(model)


def _audits(options: WatchOptions, every: int) -> Audits | None:
    from presum.parallel.auditing import Audits

    if options.audit_every is None:
        return None
    return Audits(options.audit_every * every, options.audit_elements)


def _check_hookable(model: DistributedDataParallel) -> None:
    world = dist.get_world_size(model.process_group)
    if model.gradient_as_bucket_view and world & (world - 1):
        raise ValueError(
            "presum.attach: with audit and gradient_as_bucket_view the number of ranks must "
            f"be a power of two, not {world}, or bits of the mean could change"
        )
    _check_unhooked(model)


def _check_unhooked(model: DistributedDataParallel) -> None:
    from presum.parallel.ddp_hook import HookState, installed

    if installed(model) is not None:
        raise ValueError(
            "presum.attach: this model already has presum's communication hook, from an earlier "
            "attach; it stays for as long as the model lives"
        )
    states = [state for _, state in model._comm_hooks]
    if states and not any(isinstance(one, HookState) and one.group is None for one in states):
        raise ValueError(
            "presum.attach: the model has a communication hook already; attach first, and register "
            "it afterwards: it will run inside (with reduction=, drop it: presum replaces hooks)"
        )


def _fsdp(model: nn.Module, group: dist.ProcessGroup | None, options: WatchOptions) -> Target:
    from presum.parallel.fsdp import CAN_STAND_IN, parameter_groups
    from presum.parallel.fsdp_reducing import check_groups

    if not CAN_STAND_IN and (options.reduction is not None or options.audit_every is not None):
        raise ValueError(
            "presum.attach: reduction and audit on FSDP2 need torch 2.9 or newer, whose "
            "reduce-scatter can be replaced"
        )
    groups = list(parameter_groups(model))
    if not groups:
        raise ValueError("presum.attach: fully_shard has found no parameter in this module")
    mesh: Any = groups[0].mesh_info.mesh
    if options.reduction is not None:
        check_groups(groups)
    if options.audit_every is not None:
        _check_audited(groups)

    return Target(
        wrapper=model,
        module=model,
        kind="FSDP2",
        ranks=_ranks_of(group) if group else mesh.mesh.flatten().tolist(),
        parameters=_trainable(model),
        device=groups[0].device,
        source=lambda every: _fsdp_source(model, options, every),
    )


def _check_audited(groups: Sequence[Any]) -> None:
    from presum.parallel.fsdp_auditing import AuditedReduceScatter

    if any(isinstance(group._reduce_scatter_comm, AuditedReduceScatter) for group in groups):
        raise ValueError(
            "presum.attach: this model's reduction is already audited, since an earlier attach, "
            "for as long as the model lives"
        )
    if not any(hasattr(group.mesh_info, "shard_process_group") for group in groups):
        raise ValueError("presum.attach: audit on FSDP2 needs shards; replicate() has none")


def _fsdp_source(model: nn.Module, options: WatchOptions, every: int) -> GradientSource:
    from presum.parallel.fsdp import FsdpSource
    from presum.parallel.fsdp_auditing import FsdpAuditingSource
    from presum.parallel.fsdp_reducing import FsdpReducingSource

    audits = _audits(options, every)
    if options.reduction is not None:
        return FsdpReducingSource(model, options.reduction, audits)
    if audits is not None:
        return FsdpAuditingSource(model, audits)
    return FsdpSource(model)


def _by_hand(model: nn.Module, group: dist.ProcessGroup | None) -> Target:
    if isinstance(model, DistributedDataParallel) or is_fsdp(model):
        raise ValueError('presum.attach: mode="manual" is for a module without DDP or FSDP2')
    if not dist.is_initialized():
        raise ValueError("presum.attach: call torch.distributed.init_process_group first")
    # A GAN may freeze all of a network while another one trains.
    parameters = _trainable(model) or dict(model.named_parameters())
    return Target(
        wrapper=model,
        module=model,
        kind="by hand",
        ranks=_ranks_of(group),
        parameters=parameters,
        device=_device(parameters),
        source=lambda _every: ManualSource(model, parameters),
    )


def _ranks_of(group: dist.ProcessGroup | None) -> list[int]:
    try:
        return dist.get_process_group_ranks(group)
    except KeyError:
        raise ValueError(
            f"presum.attach: torch.distributed does not know the ranks of {type(group).__name__}, "
            "the model's process group (its ranks may change, as under torchft): not recorded"
        ) from None


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def _device(parameters: Mapping[str, nn.Parameter]) -> torch.device:
    return next((p.device for p in parameters.values()), torch.device("cpu"))
