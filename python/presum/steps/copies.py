# SPDX-License-Identifier: Apache-2.0
"""Compares copies of parameters that a program keeps elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from presum._core import canonical_name
from presum.devices.readable import is_distributed, own_part
from presum.devices.torch_pass import INTEGERS

NAMES_TOLD = 8


def differing(
    parameters: Mapping[str, torch.Tensor], copies: Sequence[tuple[str, torch.Tensor]]
) -> list[str]:
    """The names of copies that differ from their parameter, cast to the copy's dtype, bit for bit.

    Raises:
        ValueError: there are no copies, a name is unknown, a shape differs, or only one of copy and
            parameter is a DTensor.
    """
    if not copies:
        raise ValueError("presum: compare needs at least one tensor")
    return [name for name, copy in copies if not _is_equal(name, copy, parameters)]


def told(name: str, different: Sequence[str], all_: int) -> str:
    """The result as text for people."""
    if not different:
        return f"{name}: none of {all_} differ"
    more = ", ..." if len(different) > NAMES_TOLD else ""
    return f"{name}: {len(different)} of {all_} differ: " + ", ".join(different[:NAMES_TOLD]) + more


def _is_equal(name: str, copy: object, parameters: Mapping[str, torch.Tensor]) -> bool:
    parameter = parameters.get(canonical_name(name))
    if not isinstance(copy, torch.Tensor) or parameter is None:
        what = "no parameter of the model" if parameter is None else type(copy).__name__
        raise ValueError(f"presum: compare: {name} is {what}")
    own: torch.Tensor = parameter.detach()
    if is_distributed(own) != is_distributed(copy):
        raise ValueError(f"presum: compare: of {name} only one is a DTensor: pass whole tensors")
    if own.shape != copy.shape:
        shapes = f"{tuple(copy.shape)}, the parameter {tuple(own.shape)}"
        raise ValueError(f"presum: compare: {name} has shape {shapes}")
    own, other = own_part(own), own_part(copy.detach())
    cast = own.to(other.dtype).to(other.device)
    return cast.shape == other.shape and _same_bits(cast, other)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Any NaN equals any other: a cast may change a NaN's bits."""
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    word = INTEGERS[a.element_size()]
    equal = a.contiguous().view(word) == b.contiguous().view(word)
    return bool((equal | (a.isnan() & b.isnan())).all())
