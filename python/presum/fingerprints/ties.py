# SPDX-License-Identifier: Apache-2.0
"""Parameters that a model holds under several names (tied weights)."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from torch import nn

from presum._core import canonical_name
from presum.fingerprints.families import KIND, Values, hash_text

NAMES_MAX = 8  # in a fact


class TiedParameters:
    """The parameters that several modules inside a module hold."""

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)

    def __call__(self) -> tuple[Values, str]:
        """Their fingerprint, and their names; empty if the module is gone."""
        module = self._module()
        if module is None:
            return [], ""
        names: dict[int, list[str]] = {}
        for path, part in module.named_modules():
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    whole = canonical_name(f"{path}.{name}" if path else name)
                    names.setdefault(id(parameter), []).append(whole)
        ties = sorted(" = ".join(sorted(of)) for of in names.values() if len(of) > 1)
        return [(KIND["tied_parameters"], hash_text("; ".join(ties)))], listed(ties) or "none"


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = [f"{len(names) - NAMES_MAX} more"] if len(names) > NAMES_MAX else []
    return ", ".join([*names[:NAMES_MAX], *more])
