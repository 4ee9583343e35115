# SPDX-License-Identifier: Apache-2.0
"""A batch's rows are hashed once: a loader's tensor that comes to the forward pass as it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from presum.fingerprints import rows
from presum.fingerprints.rows import NamedTensors, hash_tensor

KNOWN_ELEMENTS = 1 << 20


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each call has hashed."""
    counts: list[int] = []
    plain = rows.hash_rows

    def counting(words: torch.Tensor, mask: torch.Tensor | None) -> list[int]:
        counts.append(words.shape[0])
        return plain(words, mask)

    monkeypatch.setattr(rows, "hash_rows", counting)
    return counts


def batch(count: int = 100) -> NamedTensors:
    ids = torch.arange(count * 8).view(count, 8)
    return [("input_ids", ids), ("attention_mask", torch.ones_like(ids))]


def test_only_rows_that_the_loader_left_out_are_hashed_again(hashed: list[int]) -> None:
    tensors = batch()
    of_loader = hash_tensor(tensors, 0, elements_max=KNOWN_ELEMENTS)
    of_forward = hash_tensor(tensors, 0)
    assert hashed == [64, 36]
    assert of_forward[:64] == of_loader
    assert of_forward == hash_tensor([(name, x.clone()) for name, x in tensors], 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda ids, _mask: ids[3].add_(1),
        lambda _ids, mask: mask[3, 4:].zero_(),
    ],
    ids=["rows", "mask"],
)
def test_a_batch_that_changed_in_between_is_hashed_anew(
    hashed: list[int], change: Callable[[torch.Tensor, torch.Tensor], object]
) -> None:
    tensors = batch(8)
    before = hash_tensor(tensors, 0, elements_max=KNOWN_ELEMENTS)
    change(tensors[0][1], tensors[1][1])
    after = hash_tensor(tensors, 0)
    assert hashed == [8, 8]
    assert [i for i in range(8) if before[i] != after[i]] == [3]


def test_another_mask_or_none_is_another_batch(hashed: list[int]) -> None:
    tensors = batch(8)
    hash_tensor(tensors, 0, elements_max=KNOWN_ELEMENTS)
    hash_tensor(tensors[:1], 0)
    hash_tensor([tensors[0], ("attention_mask", tensors[1][1].clone())], 0)
    assert hashed == [8, 8, 8]


def test_tensors_of_inference_mode_have_no_version_and_are_hashed_each_time(
    hashed: list[int],
) -> None:
    with torch.inference_mode():
        tensors = batch(4)
    assert hash_tensor(tensors, 0, elements_max=KNOWN_ELEMENTS) == hash_tensor(tensors, 0)
    assert hashed == [4, 4]
