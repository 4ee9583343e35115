# SPDX-License-Identifier: Apache-2.0
"""The extension module: addresses that it is given."""

from __future__ import annotations

import importlib.util
import math
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from observers import make_observer
from presum import _core

pytestmark = pytest.mark.usefixtures("one_worker")


def calls() -> dict[str, Callable[[], object]]:
    observer = make_observer([("weight", 4, "")])
    observer.begin_step(0)
    return {
        "gradient": lambda: observer.gradient(0, 0, 4, _core.Dtype.FLOAT32),
        "reduced_gradient": lambda: observer.reduced_gradient(0, 0, 4, _core.Dtype.FLOAT32),
        "state": lambda: observer.state(_core.StateKind.PARAMETERS, 0, 0, 4, 4),
        "hash_memory": lambda: _core.hash_memory(0, 4),
    }


@pytest.mark.parametrize("name", calls())
def test_the_extension_refuses_address_0_with_elements(name: str) -> None:
    with pytest.raises(ValueError, match="address 0"):
        calls()[name]()


def without_memory(dtype: torch.dtype = torch.float32, size: int = 4) -> torch.Tensor:
    tensor = torch.ones(size, dtype=dtype)
    tensor.untyped_storage().resize_(0)
    return tensor


X, GONE = torch.zeros(4), without_memory()
ARRAYS: dict[str, Callable[[], object]] = {
    "hash_rows": lambda: _core.hash_rows(GONE.view(2, 2)),
    "hash_rows-mask": lambda: _core.hash_rows(X.view(2, 2), GONE.view(2, 2)),
    "hash_array": lambda: _core.hash_array(GONE),
    "values": lambda: _core.HostValues([GONE], 4),
    "auditor": lambda: _core.Auditor(2, _core.Dtype.FLOAT32, 1, 4).add([X, GONE], X),
    "auditor-result": lambda: _core.Auditor(2, _core.Dtype.FLOAT32, 1, 4).add([X, X], GONE),
    "reduce_exact": lambda: _core.reduce_exact([X, GONE], 1, X),
    "reduce_exact-out": lambda: _core.reduce_exact([X, X], 1, GONE),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_the_extension_refuses_arrays_without_memory(name: str) -> None:
    with pytest.raises(ValueError, match="address 0"):
        ARRAYS[name]()


def test_no_elements_may_be_anywhere() -> None:
    assert _core.hash_rows(torch.zeros(0, 3)) == []
    assert _core.count_plain_targets(torch.zeros(0, dtype=torch.int64), -100) == 0
    assert _core.hash_array(torch.zeros(0)) == _core.hash_bytes(b"")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.1, -0.0, math.inf, math.nan, 1e-42])
def test_the_element_of_a_plain_tensor(dtype: torch.dtype, value: float) -> None:
    for tensor in (torch.tensor(value, dtype=dtype), torch.full((1, 1), value, dtype=dtype)):
        assert repr(_core.plain_number(tensor)) == repr(tensor.item())


class Wrapped(torch.Tensor):
    """A class of the program."""


NOT_PLAIN = {
    "class": torch.ones(()).as_subclass(Wrapped),
    "two": torch.ones(2),
    "none": torch.ones(0),
    "half": torch.ones((), dtype=torch.bfloat16),
    "integer": torch.tensor(1),
    "negative": torch.complex(torch.ones(()), torch.ones(())).conj().imag,
    "meta": torch.ones((), device="meta"),
    "gone": without_memory(size=1),
    "sparse": torch.ones(1).to_sparse(),
    "number": 1.0,
}


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_only_the_element_of_a_plain_tensor_is_read(name: str) -> None:
    assert _core.plain_number(NOT_PLAIN[name]) is None


def test_labels_that_take_part_are_counted() -> None:
    labels = torch.tensor([[3, -100, 2], [-100, -100, 0]])
    assert _core.count_plain_targets(labels, -100) == 3
    assert _core.count_plain_targets(labels, 2) == 5
    assert _core.count_plain_targets(labels[:, :2], -100) is None
    assert _core.count_plain_targets(labels.int(), -100) is None
    assert _core.count_plain_targets(without_memory(torch.int64), -100) is None


def test_what_is_no_code_is_refused() -> None:
    observer = make_observer([("weight", 4, "")])
    x = torch.zeros(4)
    with pytest.raises(TypeError):
        observer.gradient(0, x.data_ptr(), 4, 9)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        observer.state(7, 0, x.data_ptr(), 4, 4)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        observer.fingerprint(4096, 2)  # type: ignore[arg-type]


def test_a_second_copy_of_the_extension_is_refused(tmp_path: Path) -> None:
    copy = tmp_path / "_core.so"
    shutil.copy(_core.__file__, copy)
    spec = importlib.util.spec_from_file_location("_core", copy)
    assert spec is not None and spec.loader is not None
    with warnings.catch_warnings(), pytest.raises(ImportError):
        warnings.simplefilter("ignore")
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
