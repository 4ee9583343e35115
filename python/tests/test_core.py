# SPDX-License-Identifier: Apache-2.0
"""The extension module: addresses that it is given."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from observers import make_observer
from presum import _core

pytestmark = pytest.mark.usefixtures("one_worker")


def calls() -> dict[str, Callable[[], object]]:
    observer = make_observer([("weight", 4, "")])
    observer.begin_step(0)
    out = torch.zeros(4)
    at = out.data_ptr()
    return {
        "gradient": lambda: observer.gradient(0, 0, 4, 0),
        "reduced_gradient": lambda: observer.reduced_gradient(0, 0, 4, 0),
        "state": lambda: observer.state(1, 0, 0, 4, 4),
        "hash_rows": lambda: _core.hash_rows(0, 2, 2, 8, 0, 8),
        "count_targets": lambda: _core.count_targets(0, 4, -100),
        "audit_compare": lambda: _core.audit_compare([at, 0], 0, 4, 1, at),
        "reduce_exact": lambda: _core.reduce_exact([at, 0], 0, 4, 1, at),
        "reduce_exact-out": lambda: _core.reduce_exact([at, at], 0, 4, 1, 0),
        "reduce_fixed": lambda: _core.reduce_fixed([0], 0, 4, 1, 32, at),
        "reduce_exponents": lambda: _core.reduce_exponents([at], 0, 4, 0),
        "reduce_encode": lambda: _core.reduce_encode([at], 0, 4, 0, 1, 32, at),
        "reduce_decode": lambda: _core.reduce_decode(0, at, 4, 1, 1, 32, 0, at),
        "binned_add": lambda: _core.binned_add(at, at, at, 4, 0, 0),
        "binned_decode": lambda: _core.binned_decode(0, at, at, 4, 1, 0, at),
        "binned_merge": lambda: _core.binned_merge(at, at, at, 0, at, at, 4),
        "binned_raise": lambda: _core.binned_raise(at, at, at, 4, 0),
    }


@pytest.mark.parametrize("name", calls())
def test_the_extension_refuses_address_0_with_elements(name: str) -> None:
    with pytest.raises(ValueError, match="address 0"):
        calls()[name]()


def test_no_elements_may_be_anywhere() -> None:
    assert _core.hash_rows(0, 0, 3, 8, 0, 8) == []
    assert _core.count_targets(0, 0, -100) == 0
