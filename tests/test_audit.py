# SPDX-License-Identifier: Apache-2.0
"""What presum.reduce.audit says of sums; tests/test_live_audit.py has what Gloo makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from presum import _core
from presum.reduce import audit

ELEMENTS = 50_000


def summed() -> tuple[torch.Tensor, torch.Tensor]:
    """Of four workers, and their sum."""
    leaves = torch.randn(4, ELEMENTS, generator=torch.Generator().manual_seed(1))
    return leaves, ((leaves[0] + leaves[1]) + leaves[2]) + leaves[3]


def test_elements_that_were_lost_are_found() -> None:
    leaves, result = summed()
    result[-50:] = 0
    found = audit(leaves, result)
    assert found["findings"] == ["50 of 50,000 elements are further off than rounding explains"]


def test_what_is_no_sum_and_no_mean() -> None:
    leaves, result = summed()
    other = torch.randn(ELEMENTS)
    for given, said in (
        (leaves[1], "the result is the gradient of rank 1 alone: nothing was reduced"),
        (other, "no sum or mean: "),
        (torch.full_like(result, torch.nan), "50,000 of 50,000 elements are NaN or infinite"),
    ):
        found = audit(leaves, given)
        assert found["findings"][0].startswith(said) and len(found["findings"]) == 1
        assert (found["operation"], found["order"], found["accumulation"]) == ("unknown",) * 3
    zeros = torch.zeros(100)
    found = audit([zeros, zeros], zeros)
    assert (found["operation"], found["findings"]) == ("unknown", [])


def test_a_wider_result_is_compared_in_its_own_format() -> None:
    leaves = torch.randn(4, 20_000).bfloat16()
    total = leaves[0].float() + leaves[1].float() + leaves[2].float() + leaves[3].float()
    found = audit(leaves, total)
    assert (found["operation"], found["accumulation"], found["findings"]) == ("sum", "fp32", [])
    with pytest.raises(ValueError, match="has dtype bfloat16, which cannot hold sums of float32"):
        audit(leaves.float(), total.bfloat16())


@pytest.mark.parametrize("dtype", ["<f4", ">f4"])
def test_chunks_of_any_layout_give_what_contiguous_tensors_do(dtype: str) -> None:
    values = np.random.default_rng(2).standard_normal((3, 150_000)).astype(np.float32)
    total = (values[0] + values[1]) + values[2]
    whole = audit(torch.from_numpy(values), torch.from_numpy(total))
    given = np.asfortranarray(values.reshape(3, 300, 500)).astype(dtype)
    found = audit(list(given), np.asfortranarray(total.reshape(300, 500)).astype(dtype))
    assert found == whole
    assert audit(list(given)) == audit(torch.from_numpy(values))


def test_a_view_of_negated_memory_has_the_values_it_shows() -> None:
    stored = torch.randn(4, 3000)
    leaves = [torch._neg_view(leaf) for leaf in stored]
    total = torch._neg_view(((stored[0] + stored[1]) + stored[2]) + stored[3])
    found = audit(leaves, total)
    assert (found["operation"], found["order"], found["findings"]) == ("sum", "sequential", [])
    assert audit(leaves) == audit(list(-stored))


def test_orders_differ_and_the_exact_sum_does_not() -> None:
    leaves = torch.randn(8, 20_000)
    found = audit(leaves)
    assert (found["workers"], found["elements"], found["dtype"]) == (8, 20_000, "float32")
    ways = {way.pop("way"): way for way in found["ways"]}
    assert ways["exact"]["differing"] == 0 < ways["ring"]["differing"]
    changes = {one["between"]: one["elements"] for one in found["changes"]}
    assert changes["exact, any of 20 orders"] == 0 < changes["any of 20 orders"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (([np.ones(3, np.float32)], np.ones(2, np.float32)), "the result has shape"),
        (([np.ones(3, np.float32)], torch.ones(3)), "must both be arrays or tensors"),
        (([np.ones(3, np.float32)], [1.0]), "the result is list, not a NumPy array"),
        (([np.ones(0, np.float32)],), "the arrays have no elements"),
        (([np.ones(1, np.float32)] * 1025,), "1025 leaves given; pass 1 to 1,024 arrays"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_line(given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        audit(*given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", [-1, "x", 1 << 64])
def test_the_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(ValueError, match=r"seed must be an integer from 0 to 2\^64 - 1, not"):
        audit([np.ones(3, np.float32)], seed=seed)


def test_bad_arguments_are_value_errors_in_one_line() -> None:
    x = np.ones(3, dtype=np.float32)
    with pytest.raises(ValueError, match="0 ranks"):
        _core.Auditor(0, _core.Dtype.FLOAT32, 1, 3)
    auditor = _core.Auditor(1, _core.Dtype.FLOAT32, 1, 3)
    with pytest.raises(ValueError, match="elements must be float32"):
        auditor.add([x], x.astype(np.int32))
    with pytest.raises(ValueError, match="leaves must be of one dtype"):
        auditor.add([x], x.astype(np.float16))
    with pytest.raises(ValueError, match="an array of 2 elements, where it must have 3"):
        auditor.add([x[:2]], x)
