# SPDX-License-Identifier: Apache-2.0
"""What the function of the extension that sums arrays refuses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from presum import _core

ONE, WORD = np.zeros(1, np.float32), np.zeros(1, np.int64)
TWO = np.zeros(2, np.float32)
WRONG: dict[str, Callable[[], object]] = {
    "there is no leaf": lambda: _core.reduce_exact([], 1, ONE),
    "an array of 2 elements, where it must have 1": lambda: _core.reduce_exact([TWO], 1, ONE),
    "elements must be float32": lambda: _core.reduce_exact([WORD], 1, WORD),
    "leaves must be of one dtype": lambda: _core.reduce_exact([np.zeros(1)], 1, ONE),
    "an array of 1 elements, where it must have 4": lambda: _core.reduce_exact(
        [ONE, ONE], 1, ONE, np.zeros(1)
    ),
}


@pytest.mark.parametrize("said", WRONG)
def test_wrong_arguments_are_value_errors(said: str) -> None:
    with pytest.raises(ValueError, match=said):
        WRONG[said]()


@pytest.mark.parametrize("out", [np.zeros(4, np.float32)[::2], np.zeros((2, 3), np.float32).T])
def test_what_is_written_must_be_the_caller_s_own(out: np.ndarray) -> None:
    """No copy that nobody sees."""
    with pytest.raises(TypeError):
        _core.reduce_exact([np.zeros(out.shape, np.float32)], 1, out)
    fixed = np.zeros(3, np.float32)
    fixed.setflags(write=False)
    with pytest.raises(TypeError):
        _core.reduce_exact([np.zeros(3, np.float32)], 1, fixed)
