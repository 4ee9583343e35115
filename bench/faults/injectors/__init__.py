# SPDX-License-Identifier: Apache-2.0
"""One class per fault: a clean run with one method changed. The modules group faults by what is
broken.

catalog.ini describes each class under the same name; docstrings add what it does not say.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faults.training import Training


def injector(name: str) -> type[Training]:
    """The class with this name. Raises LookupError if there is none."""
    for module in iter_modules(__path__, f"{__name__}."):
        found = vars(import_module(module.name)).get(name)
        if found is not None:
            return found  # type: ignore[no-any-return]
    raise LookupError(name)
