# SPDX-License-Identifier: Apache-2.0
"""Hashes of the rows of a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from presum.devices.torch_pass import row_hashes
from presum.fingerprints.families import WORD
from presum.fingerprints.rows import hash_tensor, samples_among, tensors_among


def reference_rows(x: torch.Tensor, mask: torch.Tensor | None) -> list[int]:
    """docs/packet_format.md, "Row hash", taken literally."""

    def mix(word: int) -> int:
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD
        return word ^ (word >> 31)

    width = x.element_size()
    raw = x.contiguous().view(torch.uint8).reshape(x.shape[0], -1).tolist()
    found = []
    for row, octets in enumerate(raw):
        columns = len(octets) // width
        stride = max(1, -(-columns // 4096))
        places = list(range(0, columns, stride))
        bits = {
            i: int.from_bytes(bytes(octets[width * i : width * i + width]), "little")
            for i in places
        }
        if mask is not None:
            kept = [i for i in places if mask[row].reshape(-1)[i] != 0]
        else:
            kept = list(places)
            run = next(
                (n for n, i in enumerate(kept[::-1]) if bits[i] != bits[kept[-1]]), len(kept)
            )
            kept = kept[: max(1, len(kept) - run)] if run >= 2 else kept
        sums = sum(mix(bits[i] ^ mix((i + 0x9E3779B97F4A7C15) & WORD)) for i in kept) & WORD
        found.append(mix(sums ^ mix(len(kept))))
    return found


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
    found = host_rows(x, mask)
    assert device_rows(x, mask) == found
    if columns < 100 or dtype == torch.int64:  # the reference is slow
        assert reference_rows(x, mask) == found


def test_row_hashes_of_special_values_go_by_their_bits() -> None:
    x = torch.tensor([[0.0, 1.0, float("nan")], [-0.0, 1.0, float("nan")], [1.0, 0.0, 2.0]])
    assert host_rows(x, None) == device_rows(x, None) == reference_rows(x, None)
    assert len(set(host_rows(x, None))) == 3


def test_padding_does_not_show_in_a_row_s_hash() -> None:
    short = torch.tensor([[5, 6, 7, 0, 0]])
    long = torch.tensor([[5, 6, 7, 0, 0, 0, 0, 0]])
    assert host_rows(short, None) == host_rows(long, None)
    masks = [torch.tensor([[1, 1, 1, 0, 0]]), torch.tensor([[1, 1, 1, 0, 0, 0, 0, 0]])]
    assert host_rows(short, masks[0]) == host_rows(long, masks[1]) == host_rows(short, None)


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
