# SPDX-License-Identifier: Apache-2.0
"""``attach(audit=N)``: checks a reduction, in DDP's communication hook and around FSDP2's
reduce-scatter.

At every N-th backward pass, ranks gather a sample of the inputs of one bucket, the next bucket each
time, and compare the result with the exact sum (docs/audit.md). What is exchanged depends only on
what all ranks do alike, so it continues on a rank whose recording has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.futures import Future

from presum import _core
from presum.devices.blocks import DTYPES
from presum.parallel.collectives import all_gather
from presum.steps.gradient_source import AuditResult

MakeAudit = Callable[[], AuditResult | None]


class GatheredSample(NamedTuple):
    """A sample of every rank's input to a bucket or shard, in transit."""

    elements: int  # in the bucket or shard
    places: torch.Tensor | slice  # of the sample in it
    values: torch.Tensor  # of shape [ranks, sample]
    sent: torch.Tensor  # kept alive until it is sent
    done: Future[Any]
    divisor: int  # of the sum, in the result


class Audits:
    """Decides which bucket is audited, and gathers its sample."""

    def __init__(self, every: int, elements: int | None) -> None:
        """``elements``: how many elements of a bucket or shard to compare; None for all."""
        self._every = every
        self._elements = elements
        self.buckets = 1  # per backward pass, as far as known

    def due(self, passes: int, bucket: int) -> bool:
        """Whether to audit this bucket of the backward pass ``passes`` (0, 1, ...)."""
        return passes % self._every == 0 and bucket == passes // self._every % self.buckets

    def gather(
        self, local: torch.Tensor, group: dist.ProcessGroup | None, divisor: int | None = None
    ) -> GatheredSample:
        """Collective. ``local`` is this rank's bucket, before any division. The result of the
        reduction is the sum over ``divisor``, by default the world size."""
        places, world = self._places(local), dist.get_world_size(group)
        own = local[places].contiguous()
        values = own.new_empty(world, own.numel())
        work = all_gather(values.view(-1), own, group=group, async_op=True)
        return GatheredSample(
            local.numel(), places, values, own, work.get_future(), divisor or world
        )

    def exchange(
        self, local: torch.Tensor, group: dist.ProcessGroup, divisor: int
    ) -> GatheredSample:
        """Collective. ``local`` contains this rank's values of every rank's shard, in rank order.
        The result of the reduction is this rank's shard of the sum over ``divisor``."""
        shards = local.view(group.size(), -1)
        places = self._places(shards[0])
        sent = shards[:, places].contiguous()
        values = torch.empty_like(sent)
        work = dist.all_to_all_single(values.view(-1), sent.view(-1), group=group, async_op=True)
        return GatheredSample(shards.shape[1], places, values, sent, work.get_future(), divisor)

    def _places(self, values: torch.Tensor) -> torch.Tensor | slice:
        """Evenly spaced places, including both ends, where a wrong sum shows first."""
        if self._elements is None or self._elements >= values.numel():
            return slice(None)
        spread = torch.arange(self._elements, device=values.device)
        return spread * (values.numel() - 1) // max(1, self._elements - 1)

    def follow(
        self,
        gathering: GatheredSample,
        reduced: Future[torch.Tensor],
        again: Future[torch.Tensor] | None,
        tell: Callable[[MakeAudit], None],
    ) -> Future[torch.Tensor]:
        """A future of ``reduced`` that first passes ``tell`` a function that makes the audit.
        ``again`` is a second reduction of the same values."""
        waited: list[Future[Any]] = [reduced, gathering.done]

        def compare(_done: Future[Any]) -> torch.Tensor:
            mean = flat_value(reduced)
            second = None if again is None else flat_value(again)
            tell(lambda: audit_result(gathering, mean, second))
            return mean

        return torch.futures.collect_all(waited + ([again] if again else [])).then(compare)


def flat_value(reduced: Future[Any]) -> torch.Tensor:
    """The buffer in the result of a communication hook's future."""
    value = reduced.value()
    return (value[0] if isinstance(value, (list, tuple)) else value).view(-1)  # type: ignore[no-any-return]


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    return torch.equal(one.view(words), other.view(words))


def audit_result(
    found: GatheredSample, mean: torch.Tensor, again: torch.Tensor | None
) -> AuditResult | None:
    """The audit of the sample, given the reduced bucket or shard. Reads both on the host. None if a
    hook of the user's returned another dtype or size."""
    if mean.dtype != found.values.dtype or mean.numel() != found.elements:
        return None
    dtype = DTYPES.get(found.values.dtype)
    if dtype is None:
        raise ValueError("presum: elements must be float32, float64, bfloat16 or float16")
    values, result = found.values.cpu(), mean[found.places].contiguous().cpu()
    auditor = _core.Auditor(len(values), dtype, found.divisor, result.numel())
    auditor.add(list(values), result)
    same = None if again is None else _same_bits(mean, again)
    return AuditResult(auditor.result()["record"], same)
