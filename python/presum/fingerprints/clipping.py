# SPDX-License-Identifier: Apache-2.0
"""Norms of the gradient that the program computed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.distributed.tensor import DTensor

from presum.devices.readable import own_part, readable
from presum.fingerprints.families import KIND, LateValues, real_bits


def norm_values(name: str, norm: object, device: torch.device) -> LateValues:
    """A fingerprint of the norm. Empty if it is not a number local to this rank, or is on a device
    other than the step's gradients."""
    if isinstance(norm, DTensor) and all(p.is_replicate() for p in norm.placements):
        norm = norm.to_local()
    if isinstance(norm, (int, float)):
        return [(KIND[name], real_bits(float(norm)))]
    if not isinstance(norm, torch.Tensor) or isinstance(norm, DTensor) or norm.numel() != 1:
        return []
    plain = readable(norm.detach())
    if plain is None:
        return []
    if plain.is_cpu:
        return [(KIND[name], real_bits(float(plain)))]
    if plain.device != device or device.type == "mps":
        return []
    return [(KIND[name], plain.reshape(1).to(torch.float64).view(torch.int64))]


def share_of(gradients: Sequence[torch.Tensor], ranks: int) -> torch.Tensor | None:
    """This rank's part of the squared L2 norm of sharded gradients. Each shard is divided by the
    number of ranks that hold it, and an unsharded gradient by the number of all ranks, so the parts
    of all ranks add up to the squared norm. None if no gradient is sharded, or some are sharded
    over other ranks."""
    if not any(isinstance(gradient, DTensor) for gradient in gradients):
        return None
    shares = []
    for gradient in gradients:
        holders = ranks
        if isinstance(gradient, DTensor):
            mesh = gradient.device_mesh
            if mesh.size() != ranks or any(p.is_partial() for p in gradient.placements):
                return None
            copies = (mesh.size(d) for d, p in enumerate(gradient.placements) if p.is_replicate())
            holders = math.prod(copies)
        plain = readable(own_part(gradient.detach()))
        if plain is None or plain.device != gradients[0].device:
            return None
        shares.append(torch.linalg.vector_norm(plain, dtype=torch.float64).square() / holders)
    return torch.stack(shares).sum()


def norm_of(gradients: Sequence[torch.Tensor], kind: float = 2.0) -> torch.Tensor | None:
    """The norm over all gradients, of a type from 1 to infinity. None for other types, and if some
    gradients are sharded, sparse or on different devices."""
    if not kind >= 1 or any(isinstance(gradient, DTensor) for gradient in gradients):
        return None
    plain = [readable(gradient.detach()) for gradient in gradients]
    found = [x for x in plain if x is not None]
    if not plain or len(found) < len(plain) or any(x.device != found[0].device for x in found):
        return None
    wide = torch.float64 if any(x.dtype == torch.float64 for x in found) else torch.float32
    norms = torch.stack(torch._foreach_norm(found, kind, dtype=wide))
    return torch.linalg.vector_norm(norms, kind, dtype=torch.float64)  # type: ignore[no-any-return]
