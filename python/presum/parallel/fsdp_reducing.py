# SPDX-License-Identifier: Apache-2.0
"""A reproducible reduction that replaces FSDP2's own reduce-scatter.

FSDP2 lays out the gradients of a parameter group shard by shard and passes them to a function that
can be replaced. FSDP2 would add up the gradients of passes without ``requires_gradient_sync``; here
they are separate leaves, and the newest stays where FSDP2 looks for accumulated gradients.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group
from torch.distributed.fsdp._fully_shard._fsdp_common import DDPMeshInfo

from presum.options import Reduction
from presum.parallel.auditing import Audits
from presum.parallel.collectives import used_here
from presum.parallel.fsdp import FsdpSource, ReduceScatterStandIn, parameter_groups
from presum.parallel.fsdp_auditing import FsdpAuditor
from presum.parallel.leaves import Leaves
from presum.parallel.reductions import (
    LOST,
    Contribution,
    ExactSum,
    Participants,
    SumsOfSums,
    agree,
    check_dtypes,
    divisor_of,
)
from presum.torch_events.taps import TAPS, ReplacedFunction


def check_groups(groups: Sequence[Any]) -> None:
    """Raises ValueError for parameter groups that cannot be reduced reproducibly."""
    if any(REDUCERS.of(one) for group in groups for one in group.fsdp_params):
        raise ValueError(
            "presum.attach: presum already sums this model's gradients, since an earlier attach, "
            "and does so for as long as the model lives"
        )
    if any(isinstance(group.mesh_info, DDPMeshInfo) for group in groups):
        raise ValueError(
            "presum.attach: reduction is for FSDP2 on a mesh of one dimension; HSDP and "
            "replicate() add an all-reduce that cannot be replaced"
        )
    if len({tuple(group.mesh_info.mesh.mesh.flatten().tolist()) for group in groups}) > 1:
        raise ValueError("presum.attach: reduction is for FSDP2 on one mesh, not on several")
    if any(_divides_otherwise(group) for group in groups):
        raise ValueError(f"presum.attach: reduction {DIVIDES}")
    dtypes = {_reduced_as(one) for group in groups for one in group.fsdp_params}
    check_dtypes(dtypes)
    if not dtypes <= {torch.float32, torch.bfloat16}:
        raise ValueError(
            "presum.attach: FSDP2 divides fp16 and fp64 gradients before the reduction; reduce in "
            "fp32 or bf16"
        )


Version = tuple[float, int]
DIVIDES = "does not support set_gradient_divide_factor and set_force_sum_reduction_for_comms"


def _divides_otherwise(group: Any) -> bool:
    return group.gradient_divide_factor is not None or group.force_sum_reduction_for_comms


def _reduced_as(one: Any) -> torch.dtype:
    policy = one.mp_policy
    return policy.reduce_dtype or policy.param_dtype or one.sharded_param.dtype  # type: ignore[no-any-return]


class FsdpReducingSource(FsdpSource):
    """A :class:`FsdpSource` for a model whose gradients presum sums."""

    def __init__(
        self,
        model: nn.Module,
        reduction: Reduction,
        audits: Audits | None = None,
    ) -> None:
        super().__init__(model)
        self._reduction = reduction
        self._audits = audits
        self._reducer: FsdpReducer | None = None

    def hook(self) -> list[Any]:
        if self._reducer is None:
            groups = list(parameter_groups(self.model()))
            reducer = self._reducer = FsdpReducer(groups, self._reduction)
            if self._audits is not None:
                FsdpAuditor(groups, self._audits, self, reducer.has_one_leaf_each)
        return super().hook()

    def reducing(self, held: list[Any], gradients: list[torch.Tensor]) -> None:
        """This rank's own gradient is the sum of its leaves."""
        assert self._reducer is not None
        super().reducing(held, self._reducer.whole(held, gradients))


class FsdpReducer:
    """Replaces the reduce-scatter of a model's parameter groups, for as long as they live."""

    def __init__(self, groups: Sequence[Any], reduction: Reduction) -> None:
        self._reduction = reduction
        self._leaves = Leaves()
        held = [(one, group) for group in groups for one in group.fsdp_params]
        self.places = weakref.WeakKeyDictionary({one: at for at, (one, _) in enumerate(held)})
        self._groups = weakref.WeakKeyDictionary(held)
        self._pass = TAPS.backward_passes
        self._reduces: bool | None = True  # the current pass; None: not known yet
        self._kept: set[int] = set()  # places whose gradient of this pass was kept
        self._done: set[int] = set()  # places that were reduced in this pass
        self._summed: set[int] = set()  # places whose gradient already contains all leaves
        self._agreed = -1  # the pass in which all ranks exchanged their numbers of leaves
        self._counts: list[int] = []
        self._versions: weakref.WeakKeyDictionary[Any, Version] = weakref.WeakKeyDictionary()
        self._sums_of_sums = SumsOfSums(reduction)
        self._earlier: list[torch.Tensor] = []  # of the current group
        for group in groups:
            group._reduce_scatter_comm = ReducingReduceScatter(group._reduce_scatter_comm, self)
        TAPS.add()  # permanent
        REDUCERS.add(self)

    def has_one_leaf_each(self) -> bool:
        """Whether no rank contributes earlier leaves to the current reduction."""
        return max(self._counts) == 1

    def _enter(self) -> None:
        """Enter a backward pass, if it is a new one."""
        if self._pass == TAPS.backward_passes:
            return
        self._pass = TAPS.backward_passes
        for seen in (self._kept, self._done, self._summed):
            seen.clear()
        if self._reduces is False:
            self._leaves.passes += 1
        elif self._reduces:
            self._leaves.clear()
        self._reduces = None

    def _is_of_a_kind(self, *, reduces: bool) -> None:
        self._enter()
        if self._reduces is not None and self._reduces != reduces:
            raise RuntimeError(
                "presum: in one backward pass some modules reduce and others do not "
                "(set_requires_gradient_sync with recurse=False): their leaves would be lost"
            )
        self._reduces = reduces

    # ---- passes that do not reduce

    def keep(self, one: Any) -> None:
        """Keep a parameter's gradient of a pass that does not reduce."""
        self._is_of_a_kind(reduces=False)
        if getattr(one, "_unsharded_param", None) is None:
            return  # never used
        gradient, one._unsharded_param.grad = one._unsharded_param.grad, None
        if gradient is not None:
            one.unsharded_accumulated_grad = gradient.to(one.reduce_dtype or gradient.dtype)
            self._kept.add(self.places[one])

    def push(self, original: Any, one: Any) -> None:
        """A parameter may have a new gradient. The previous one becomes a leaf, unless it is from
        the same pass, as when a module runs twice."""
        self._enter()
        place = self.places[one]
        if place in self._kept:
            original(one)
        elif one.unsharded_accumulated_grad is not None and one.unsharded_param.grad is not None:
            leaf = one.unsharded_accumulated_grad_data
            one.unsharded_accumulated_grad = None
            self._leaves.add(place, leaf.contiguous().view(-1))

    # ---- the pass that reduces

    def whole(self, held: Sequence[Any], gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The sums of this rank's leaves, of which ``gradients`` are the last; with
        ``microbatch_mean`` their means."""
        self._enter()
        return [self._whole(one, g) for one, g in zip(held, gradients, strict=True)]

    def _whole(self, one: Any, gradient: torch.Tensor) -> torch.Tensor:
        if self._leaves.passes == 0 or self.places[one] in self._summed:
            return gradient
        last = _last_leaf(one, gradient)
        divisor = divisor_of(self._reduction, 1, self._leaves.passes + 1)
        return self._leaves.with_last(self.places[one], last, divisor).view(gradient.shape)

    def prepare(
        self, held: Sequence[Any], gradients: list[torch.Tensor], group: dist.ProcessGroup | None
    ) -> None:
        """A parameter group is about to be reduced. With one rank, the sums are computed here."""
        self._is_of_a_kind(reduces=True)
        self._check(held)
        alone = group is None or group.size() == 1
        if self._agreed != self._pass:
            self._agree(None if alone else group, gradients[0].device)
        if alone:
            gradients[:] = [self._whole(one, g) for one, g in zip(held, gradients, strict=True)]
            self._summed.update(self.places[one] for one in held)
            return
        assert group is not None
        self._earlier = self._of_passes(held, gradients, group.size())

    def _agree(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        self._agreed, leaves = self._pass, self._leaves.passes + 1
        # Whether sums of an earlier pass are still there, unchanged.
        flags = LOST * any(_version_of(one) == v for one, v in self._versions.items())
        contribution = Contribution(leaves, leaves, flags, self._reduction.microbatch_mean)
        contributions = [contribution] if group is None else agree(group, contribution, device)
        self._sums_of_sums.check(contributions)
        self._counts = [one.leaves for one in contributions]

    def _check(self, held: Sequence[Any]) -> None:
        if any(_divides_otherwise(self._groups[one]) for one in held):
            raise RuntimeError(f"presum: reduction {DIVIDES}")
        places = {self.places[one] for one in held}
        if places & self._done:
            raise RuntimeError(
                "presum: a module of fully_shard ran twice in one forward pass, so its gradients "
                "are reduced in two parts, which cannot be summed reproducibly"
            )
        self._done |= places

    def _of_passes(
        self, held: Sequence[Any], gradients: Sequence[torch.Tensor], world: int
    ) -> list[torch.Tensor]:
        """The leaves of earlier passes, in the layout that FSDP2 uses for the last pass."""
        of_each = [self._leaves.of(self.places[one]) for one in held]
        return [
            in_shards(
                held, [_leaf(of, slot, g) for of, g in zip(of_each, gradients, strict=True)], world
            )
            for slot in range(self._leaves.passes)
        ]

    def done(self, held: Sequence[Any]) -> None:
        """A parameter group has been reduced."""
        self._earlier = []
        for one in held:
            self._leaves.discard(self.places[one])
            self._versions[one] = _version_of(one)

    def scatter(self, out: torch.Tensor, last: torch.Tensor, group: dist.ProcessGroup) -> None:
        """Compute this rank's shard."""
        divisor = divisor_of(self._reduction, len(self._counts), sum(self._counts))
        earlier = [used_here(leaf).to(last.dtype) for leaf in self._earlier]
        exact = ExactSum(Participants(group, self._counts, divisor), [*earlier, last])
        exact.begin()
        exact.scatter(out)


def _version_of(one: Any) -> Version:
    """Changes if a parameter's sum is written to or replaced. Never equal to itself if there is
    none."""
    grad = one.sharded_param.grad
    if grad is None:
        return (math.nan, 0)
    local = grad.to_local()
    return local.data_ptr(), grad._version + local._version


def _last_leaf(one: Any, gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to(one.reduce_dtype or gradient.dtype).contiguous().view(-1)


def _leaf(of: Sequence[torch.Tensor], slot: int, like: torch.Tensor) -> torch.Tensor:
    return of[slot].view(like.shape) if slot < len(of) else torch.zeros_like(like)


def in_shards(held: Sequence[Any], tensors: Sequence[torch.Tensor], world: int) -> torch.Tensor:
    """Tensors in FSDP2's gradient layout: flat, (rank, its part of each tensor, padded with
    zeros)."""
    parts = []
    for one, tensor in zip(held, tensors, strict=True):
        dim = one.fsdp_placement.dim
        whole = torch.cat(tensor.chunk(world, dim), 0) if dim != 0 else tensor
        rows = -(-whole.shape[0] // world) * world
        padded = whole.new_zeros(rows, *whole.shape[1:])
        padded[: whole.shape[0]] = whole
        parts.append(padded.view(world, -1))
    return torch.cat(parts, 1).view(-1)


class ReducingReduceScatter(ReduceScatterStandIn):
    """Lets presum sum, and never calls the reduce-scatter inside."""

    def __init__(self, inside: Any, reducer: FsdpReducer) -> None:
        super().__init__(inside)
        self._reducer = reducer

    def __call__(
        self, output_tensor: Any, input_tensor: Any, group: Any, *_: Any, **__: Any
    ) -> None:
        self._reducer.scatter(output_tensor, input_tensor, group)


class ReducerRegistry:
    """The FSDP2 parameters whose gradients presum sums."""

    def __init__(self) -> None:
        self._reducers: weakref.WeakSet[FsdpReducer] = weakref.WeakSet()
        param = _fsdp_param.FSDPParam
        self._replacements = [
            ReplacedFunction(param, "to_accumulated_grad_if_needed", self._keep),
            ReplacedFunction(param, "accumulate_unsharded_grad_if_needed", self._push),
            ReplacedFunction(_fsdp_param_group, "foreach_reduce", self._reduce),
        ]

    def add(self, reducer: FsdpReducer) -> None:
        """Register ``reducer`` for as long as it lives."""
        self._reducers.add(reducer)
        for replacement in self._replacements:
            replacement.apply()

    def of(self, one: Any) -> FsdpReducer | None:
        return next((reducer for reducer in self._reducers if one in reducer.places), None)

    def _keep(self, original: Any, one: Any) -> None:
        reducer = self.of(one)
        original(one) if reducer is None else reducer.keep(one)

    def _push(self, original: Any, one: Any) -> None:
        reducer = self.of(one)
        original(one) if reducer is None else reducer.push(original, one)

    def _reduce(
        self,
        original: Any,
        held: list[Any],
        gradients: list[torch.Tensor],
        group: dist.ProcessGroup | None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        reducer = self.of(held[0]) if held else None
        if reducer is None:
            return original(held, gradients, group, *args, **kwargs)
        reducer.prepare(held, gradients, group)
        try:
            return original(held, gradients, group, *args, **kwargs)
        finally:
            reducer.done(held)


REDUCERS = ReducerRegistry()
