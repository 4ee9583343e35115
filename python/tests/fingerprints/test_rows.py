# SPDX-License-Identifier: Apache-2.0
"""Hashes of the rows of a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from presum.devices.torch_pass import row_hashes
from presum.fingerprints.families import WORD
from presum.fingerprints.rows import hash_tensor, samples_among, tensors_among


def host_rows(x: torch.Tensor, mask: torch.Tensor | None) -> list[int]:
    hashes = hash_tensor([("", x), *([("attention_mask", mask)] if mask is not None else [])], 0)
    assert isinstance(hashes, list)
    return hashes


def device_rows(x: torch.Tensor, mask: torch.Tensor | None) -> list[int]:
    return [value & WORD for value in row_hashes(x, mask).tolist()]


DTYPES = [torch.bool, torch.uint8, torch.int16, torch.bfloat16, torch.int32, torch.float32]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64, torch.float64])
@pytest.mark.parametrize("columns", [1, 2, 3, 17, 4096, 4097])
@pytest.mark.parametrize("mask_dtype", [None, torch.bool, torch.int32, torch.int64])
def test_row_hashes_are_the_same_in_cpp_and_on_a_device(
    dtype: torch.dtype, columns: int, mask_dtype: torch.dtype | None
) -> None:
    generator = torch.Generator().manual_seed(columns)
    x = torch.randint(-3, 4, (5, columns), generator=generator).to(dtype)
    x[1, columns // 2 :] = x[1, -1]  # padding
    x[2] = x[2, 0]
    x[3, -1] = 1 if x[3, -1] == 0 else 0
    mask = None
    if mask_dtype is not None:
        mask = torch.randint(0, 2, x.shape, generator=generator).to(mask_dtype)
        mask[4] = 0
    assert device_rows(x, mask) == host_rows(x, mask)


def test_row_hashes_of_special_values_go_by_their_bits() -> None:
    x = torch.tensor([[0.0, 1.0, float("nan")], [-0.0, 1.0, float("nan")], [1.0, 0.0, 2.0]])
    assert host_rows(x, None) == device_rows(x, None)
    assert len(set(host_rows(x, None))) == 3


def test_many_rows_are_hashed_in_parts_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("presum.devices.torch_pass.CHUNK", 64)
    x = torch.randint(0, 9, (41, 30))
    mask = torch.randint(0, 2, x.shape)
    assert device_rows(x, None) == host_rows(x, None)
    assert device_rows(x, mask) == host_rows(x, mask)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([("labels", torch.ones(2, 3)), ("input_ids", torch.ones(2, 4))], (2, 4)),
        ([("", {"y": torch.ones(2), "x": torch.ones(2, 5)})], (2, 5)),
        ([("scale", torch.tensor(1.0)), ("", torch.ones(2, 6))], (2, 6)),
        ([("", [torch.ones(0, 3), torch.ones(2, 7)])], (2, 7)),
        ([("", "text"), ("flag", True), ("", torch.ones(2, 2).to_sparse())], None),
        ([], None),
    ],
)
def test_the_samples_are_found_among_a_forward_s_arguments(
    values: list[tuple[str, Any]], expected: tuple[int, ...] | None
) -> None:
    tensors = tensors_among(values).readable
    at = samples_among(tensors)
    assert (tuple(tensors[at][1].shape) if at is not None else None) == expected


def test_a_tensor_s_rows_are_those_of_its_first_dimension_in_their_order() -> None:
    images = torch.randn(3, 2, 4, 5)
    plain = hash_tensor([("x", images)], 0)
    assert plain == host_rows(images.reshape(3, -1), None)
    assert hash_tensor([("x", images.to(memory_format=torch.channels_last))], 0) == plain
    assert hash_tensor([("x", images[[2, 0, 1]])], 0) == [plain[2], plain[0], plain[1]]
    assert hash_tensor([("x", images)], 0, elements_max=80) == list(plain[:2])
    assert len(hash_tensor([("x", torch.arange(9))], 0)) == 1


def test_a_mask_counts_where_it_has_the_shape_of_the_samples() -> None:
    x, mask = torch.randint(1, 9, (2, 6)), torch.ones(2, 6, dtype=torch.int64)
    mask[:, 3:] = 0
    masked = hash_tensor([("input_ids", x), ("attention_mask", mask)], 0)
    assert masked == host_rows(x, mask) != host_rows(x, None)
    assert hash_tensor([("input_ids", x), ("attention_mask", mask[0])], 0) == host_rows(x, None)
