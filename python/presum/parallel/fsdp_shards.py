# SPDX-License-Identifier: Apache-2.0
"""Reads each layer's input and output of FSDP2's reduction, in this rank's shard, at the steps
where that is due (docs/metrics.md, "Layer by layer")."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed.fsdp._fully_shard import _fsdp_collectives

from presum.steps.gradient_reader import GradientPart
from presum.steps.gradient_source import Recorder

_ARGUMENTS = inspect.signature(_fsdp_collectives.foreach_reduce)


class ShardReader:
    """Reads the shards of one model. ``.grad`` may contain the sums of earlier reductions: the
    output of a reduction is what it adds to ``.grad``."""

    def __init__(
        self, recorder: Recorder, places: dict[int, int], groups: Sequence[weakref.ref[Any]]
    ) -> None:
        self._recorder = recorder
        self._places = places
        self._groups = groups
        self._before: dict[int, torch.Tensor | None] = {}  # the contents of ``.grad``
        self._told = self._told_divisor = False

    def goes_in(self, held: list[Any], gradients: list[torch.Tensor]) -> None:
        """This rank's own whole gradients, about to be reduced."""
        self._before.clear()
        if not self._recorder.reads_sums or not self._recorder.layers_due:
            return
        for one, gradient in zip(held, gradients, strict=True):
            if id(one) in self._places:
                self._before[id(one)] = _copy(one.sharded_param.grad)
                self._tell(one, _own_part(one, gradient))

    def came_out(self, held: list[Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """The reduced gradients of the same parameters; ``arguments`` and ``named`` are those of
        ``foreach_reduce``."""
        if not self._before:
            return
        call = _call(held, arguments, named)
        scale = self._divisor() / call.ranks
        known = call.ranks == self._recorder.setup.replicas and not call.partial
        if call.ranks != self._recorder.setup.replicas and not self._told:
            self._told = True
            self._recorder.setup.note(
                f"some parameters are reduced over {call.ranks} ranks: what comes of them is not "
                "compared"
            )
        for one in held:
            if id(one) in self._before:
                before = self._before.pop(id(one))
                self._tell(one, _reduced_part(one, before, scale) if known else None)

    def _divisor(self) -> float:
        """The number by which most of the model's groups divide their sums. A program can set a
        number other than the world size for all groups; the division of a group that differs from
        the others is reported unchanged."""
        replicas = self._recorder.setup.replicas
        alive = [group for held in self._groups if (group := held()) is not None]
        divisors = [
            float(
                replicas if group.gradient_divide_factor is None else group.gradient_divide_factor
            )
            for group in alive
            if _ranks_of(group) == replicas
        ]
        divisor = max([float(replicas), *divisors], key=divisors.count)
        if divisor != replicas and not self._told_divisor:
            self._told_divisor = True
            self._recorder.observer.fact("gradient_divide_factor", f"{divisor:g}")
            self._recorder.setup.hello()
        return divisor

    def _tell(self, one: Any, part: GradientPart | None) -> None:
        self._recorder.read_part(self._places[id(one)], part)


class _Call(NamedTuple):
    ranks: int  # ranks of the reduction
    partial: bool  # replicas are summed in another call


def _call(held: list[Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> _Call:
    given = _ARGUMENTS.bind_partial(held, *arguments, **named).arguments
    shards, replicas = given.get("reduce_scatter_group"), given.get("all_reduce_group")
    ranks = (shards.size() if shards else 1) * (replicas.size() if replicas else 1)
    later = replicas is not None and not given.get("all_reduce_grads", True)
    return _Call(
        ranks=ranks,
        partial=later or given.get("partial_reduce_output") is not None,
    )


def _ranks_of(group: Any) -> int:
    mesh = group.mesh_info
    return int(getattr(mesh, "shard_mesh_size", 1) * getattr(mesh, "replicate_mesh_size", 1))


def _place(one: Any) -> tuple[int, int] | None:
    """The first element of this rank's shard, and its number of elements; None if they are not
    contiguous within the parameter."""
    if one.fsdp_placement.dim != 0 or one.is_dtensor:
        return None
    shard = getattr(one.mesh_info, "shard_mesh_rank", 0)
    return shard * one.padded_sharded_param_size.numel(), one.sharded_size.numel()


def _own_part(one: Any, gradient: torch.Tensor) -> GradientPart | None:
    place = _place(one)
    if place is None or not gradient.is_contiguous():
        return None
    first, count = place
    elements = gradient.detach().view(-1)[first : first + count]
    return GradientPart(elements, first, of=one.sharded_param, reduced=False)


def _reduced_part(one: Any, before: torch.Tensor | None, scale: float) -> GradientPart | None:
    place, gradient = _place(one), one.sharded_param.grad
    if place is None or gradient is None:
        return None
    elements = gradient._local_tensor.detach()
    added = before is not None and bool(before.count_nonzero())
    if before is not None:
        elements = elements - before
    of = one.sharded_param
    return GradientPart(elements, place[0], of=of, reduced=True, added=added, scale=scale)


def _copy(gradient: Any) -> torch.Tensor | None:
    return None if gradient is None else gradient._local_tensor.detach().clone()
