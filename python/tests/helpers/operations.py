# SPDX-License-Identifier: Apache-2.0
"""What is queued on a device in torch operations."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Nothing runs on the device for these.
FREE = {"as_strided", "view", "slice", "select", "unsqueeze", "detach", "expand", "split", "alias"}
FREE |= {"t", "squeeze", "empty", "empty_like", "new_empty", "split_with_sizes", "_unsafe_view"}


class CountedOperations(TorchDispatchMode):
    """How often each is called, and the bytes of what it takes and returns: what it reads and
    writes, in place once."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self.bytes = 0

    @property
    def total(self) -> int:
        return self.count.total()

    def __torch_dispatch__(
        self, function: Any, _types: Any, args: Any = (), named: Any = None
    ) -> Any:
        found = function(*args, **(named or {}))
        name = function.overloadpacket.__name__
        if name not in FREE:
            self.count[name] += 1
            self.bytes += _bytes(args) + (0 if name.endswith("_") else _bytes(found))
        return found


def _bytes(x: Any) -> int:
    if isinstance(x, torch.Tensor):
        return x.nbytes
    return sum(map(_bytes, x)) if isinstance(x, list | tuple) else 0
