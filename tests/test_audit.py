# SPDX-License-Identifier: Apache-2.0
"""What presum.reduce.audit says of sums that Gloo really made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from observers import audit_of, make_observer
from presum import _core
from presum.reduce import audit

ELEMENTS = 50_000
DTYPES = ("fp32", "bf16", "fp16")
BITS: dict[str, list[int]] = {"fp32": [], "bf16": [8], "fp16": [11]}


@pytest.fixture(scope="module", params=[2, 4, 8])
def reduced(request: Any, launch: Any, tmp_path_factory: Any) -> tuple[int, Path]:
    """The number of workers and the folder of their files."""
    folder: Path = tmp_path_factory.mktemp("audit")
    done = launch("audit", request.param, folder)
    assert done.returncode == 0, done.stderr[-4000:]
    return request.param, folder


def arrays(reduced: tuple[int, Path], case: str) -> tuple[list[torch.Tensor], torch.Tensor]:
    workers, folder = reduced
    leaves = [torch.load(folder / f"{case}.{rank}.pt") for rank in range(workers)]
    return leaves, torch.load(folder / f"{case}.result.pt")


@pytest.mark.parametrize("dtype", DTYPES)
def test_gloo_adds_in_a_ring_in_the_dtype_of_its_buffer(
    reduced: tuple[int, Path], dtype: str
) -> None:
    workers, _ = reduced
    found = audit(*arrays(reduced, dtype))
    assert (found["operation"], found["division"], found["wrong"]) == ("sum", "none", 0)
    best = found["hypotheses"][0]
    assert best["reproduced"] == best["examined"] == ELEMENTS
    if workers == 2:  # one addition: nothing to tell apart
        assert (found["findings"], found["order"]) == ([], "any")
        return
    assert (found["order"], found["accumulation"]) == ("ring-down", dtype)
    assert sorted({start for _, _, start in found["pieces"]}) == list(range(workers))
    narrow = [f"sums were accumulated in {dtype}: {bits} significant bits" for bits in BITS[dtype]]
    assert found["findings"] == narrow


def test_ddp_divides_first_and_adds_in_fp32(reduced: tuple[int, Path]) -> None:
    workers, _ = reduced
    found = audit(*arrays(reduced, "ddp"))
    assert (found["findings"], found["operation"], found["wrong"]) == ([], "mean", 0)
    assert found["hypotheses"][0]["reproduced"] == found["elements"]
    assert found["order"] == ("any" if workers == 2 else "ring-down")


def test_elements_that_were_lost_are_found(reduced: tuple[int, Path]) -> None:
    leaves, result = arrays(reduced, "fp32")
    result[-50:] = 0
    found = audit(leaves, result)
    assert found["findings"] == ["50 of 50,000 elements are further off than rounding explains"]


def test_what_is_no_sum_and_no_mean(reduced: tuple[int, Path]) -> None:
    leaves, result = arrays(reduced, "fp32")
    other = torch.randn(ELEMENTS)
    for given, said in (
        (leaves[1], "the gradients of worker 1 alone: nothing was reduced"),
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
    with pytest.raises(ValueError, match="holds bfloat16, which does not hold sums of float32"):
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
        (([np.ones(3, np.float32)], torch.ones(3)), "use one of them"),
        (([np.ones(3, np.float32)], [1.0]), "the result is list, not a NumPy array"),
        (([np.ones(0, np.float32)],), "no elements to judge"),
        (([np.ones(1, np.float32)] * 1025,), "1025 leaves; give from 1 to 1,024 arrays"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_line(given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        audit(*given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", [-1, "x", 1 << 64])
def test_the_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(ValueError, match=r"seed is a whole number from 0 to 2\^64 - 1, not"):
        audit([np.ones(3, np.float32)], seed=seed)


@pytest.mark.parametrize("workers", [3, 4])
def test_no_order_is_named_by_a_handful_of_elements(workers: int) -> None:
    """bf16 gradients whose sums are nearly always exact in fp32."""
    rows = np.random.default_rng(workers).normal(size=(workers, 50_000)).astype(np.float32)
    rows = (rows.view(np.uint32) & 0xFFFF0000).view(np.float32)
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    found = audit(rows, total)
    assert found["differing"] < 24 and found["order"] == "any"


def test_bad_arguments_are_value_errors_in_one_line() -> None:
    x = np.ones(3, dtype=np.float32)
    with pytest.raises(ValueError, match="0 workers"):
        _core.Auditor(0, _core.Dtype.FLOAT32, 1, 3)
    auditor = _core.Auditor(1, _core.Dtype.FLOAT32, 1, 3)
    with pytest.raises(ValueError, match="elements must be float32"):
        auditor.add([x], x.astype(np.int32))
    with pytest.raises(ValueError, match="leaves must be of one dtype"):
        auditor.add([x], x.astype(np.float16))
    with pytest.raises(ValueError, match="an array of 2 elements, where it must have 3"):
        auditor.add([x[:2]], x)


def test_an_audit_reaches_the_run_log(tmp_path: Path) -> None:
    leaves = [np.linspace(1, 2 + w, 4000, dtype=np.float32) for w in range(4)]
    result = leaves[0] + leaves[1] + leaves[2] + leaves[3]
    result[:5] += 1
    record = audit_of(leaves, result)["record"]
    aggregator = _core.Aggregator(str(tmp_path / "run"))
    for rank in range(2):
        observer = make_observer([("w", 3, "")], rank=rank, ranks=2)
        aggregator.ingest(_core.stamp(observer.hello(), aggregator.run, aggregator.segment))
        observer.begin_step(0)
        gradient = np.full(3, 1.0 + rank, dtype=np.float32)
        observer.gradient(0, gradient.ctypes.data, 3, _core.Dtype.FLOAT32)
        if rank == 0:
            observer.audit(record, repeat=False)
        packet = observer.end_step(1, 1, 0, 1.0)
        aggregator.ingest(_core.stamp(packet, aggregator.run, aggregator.segment))
    aggregator.close()
    import presum

    found = {f.check: f for f in presum.load(tmp_path / "run").findings}
    assert {"reduction-error", "reduction-nondeterministic"} <= found.keys()
    assert found["reduction-error"].evidence["elements_wrong"] == 5
