# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernel by itself; collected where presum was built with it."""

from __future__ import annotations

import pytest

from presum import _core


def test_the_kernel_takes_what_it_is_given_or_says_why_not() -> None:
    assert _core.cuda_workspace_bytes(0, 4096) == 0
    assert 0 < _core.cuda_workspace_bytes(1 << 40, 4096) < 17 << 20
    with pytest.raises(ValueError, match="sketch size"):
        _core.cuda_gradient_pass(
            **dict.fromkeys(("data", "count", "dtype", "sketch", "seed", "reals", "counts"), 0),
            sketch_size=63,
            workspace=0,
            stream=0,
        )
