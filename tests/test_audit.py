# SPDX-License-Identifier: Apache-2.0
"""What `presum audit` says of sums that Gloo really made."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from observers import make_observer
from presum import _core
from programs_started import presum_command

ELEMENTS = 50_000
DTYPES = {"fp32": 0, "bf16": 2, "fp16": 3}


@pytest.fixture(scope="module", params=[2, 4, 8])
def reduced(request: Any, launch: Any, tmp_path_factory: Any) -> tuple[int, Path]:
    """The number of workers and the folder of their files."""
    folder: Path = tmp_path_factory.mktemp("audit")
    done = launch("audit", request.param, folder)
    assert done.returncode == 0, done.stderr[-4000:]
    return request.param, folder


audit = partial(presum_command, "audit")


def verdict(reduced: tuple[int, Path], case: str, dtype: str) -> tuple[int, dict[str, Any]]:
    workers, folder = reduced
    files = [folder / f"{case}.{rank}.npy" for rank in range(workers)]
    result = folder / f"{case}.result.npy"
    done = audit(*files, "--result", result, "--dtype", dtype, "--format", "json")
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["result"]
    return done.returncode, found


@pytest.mark.parametrize("dtype", DTYPES)
def test_gloo_adds_in_a_ring_in_the_dtype_of_its_buffer(
    reduced: tuple[int, Path], dtype: str
) -> None:
    workers, _ = reduced
    code, found = verdict(reduced, dtype, dtype)
    assert (found["operation"], found["division"], found["wrong"]) == ("sum", "none", 0)
    best = found["hypotheses"][0]
    assert best["reproduced"] == best["examined"] == ELEMENTS
    if workers == 2:  # one addition: nothing to tell apart
        assert (code, found["order"]) == (0, "any")
        return
    assert (found["order"], found["accumulation"]) == ("ring-down", dtype)
    assert sorted({piece["start"] for piece in found["pieces"]}) == list(range(workers))
    assert code == (0 if dtype == "fp32" else 1)


def test_ddp_divides_first_and_adds_in_fp32(reduced: tuple[int, Path]) -> None:
    workers, _ = reduced
    code, found = verdict(reduced, "ddp", "fp32")
    assert (code, found["operation"], found["wrong"]) == (0, "mean", 0)
    assert found["hypotheses"][0]["reproduced"] == found["elements"]
    assert found["order"] == ("any" if workers == 2 else "ring-down")


def test_elements_that_were_lost_are_found(reduced: tuple[int, Path], tmp_path: Path) -> None:
    workers, folder = reduced
    result = np.load(folder / "fp32.result.npy")
    result[-50:] = 0
    np.save(tmp_path / "broken.npy", result)
    files = [folder / f"fp32.{rank}.npy" for rank in range(workers)]
    done = audit(*files, "--result", tmp_path / "broken.npy")
    assert done.returncode == 1
    assert "FINDING: 50 of 50,000 elements are further off than rounding explains" in done.stdout


def test_the_default_shows_orders_that_differ_and_an_exact_sum_that_does_not(
    tmp_path: Path,
) -> None:
    page = tmp_path / "audit.html"
    done = audit("--elements", "20000", "-o", page)
    assert done.returncode == 0, done.stderr
    assert "of the elements change; of the exact sum none." in done.stdout
    assert "<svg" in page.read_text(encoding="utf-8")


def test_a_result_is_not_a_worker_and_is_saved_as_they_are(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    gradient = np.ones(8, np.float32)
    files = [tmp_path / f"g{name}.npy" for name in ("0", "1", "sum")]
    for file in files:
        np.save(file, gradient)
    save_file({"g": gradient}, tmp_path / "sum.safetensors")
    itself = audit(*files, "--result", files[2])
    assert itself.returncode == 2 and "among the workers' gradients" in itself.stderr
    other = audit(*files[:2], "--result", tmp_path / "sum.safetensors")
    assert other.returncode == 2 and "by position" in other.stderr


@pytest.mark.parametrize("workers", [3, 4])
def test_no_order_is_named_by_a_handful_of_elements(tmp_path: Path, workers: int) -> None:
    """bf16 gradients whose sums are nearly always exact in fp32."""
    rows = np.random.default_rng(workers).normal(size=(workers, 50_000)).astype(np.float32)
    rows = (rows.view(np.uint32) & 0xFFFF0000).view(np.float32)
    files = [tmp_path / f"g{rank}.npy" for rank in range(workers)]
    for file, row in zip(files, rows, strict=True):
        np.save(file, row)
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    np.save(tmp_path / "sum.npy", total)
    done = audit(*files, "--result", tmp_path / "sum.npy", "--format", "json")
    found = json.loads(done.stdout)["result"]
    assert done.returncode == 0
    assert found["differing"] < 24 and found["order"] == "any"


def test_the_extension_compares_arrays() -> None:
    generator = np.random.default_rng(1)
    leaves = [generator.standard_normal(5000).astype(np.float32) for _ in range(4)]
    result = ((leaves[0] + leaves[1]) + leaves[2]) + leaves[3]
    whole = _core.audit_compare(leaves, 1, result)
    assert (whole["order"], whole["accumulation"]) == ("sequential", "fp32")
    assert whole["elements"] == whole["record"].elements == 5000
    assert 0 < whole["differing"] < 5000


def test_bad_arguments_are_value_errors_in_one_line() -> None:
    x = np.ones(3, dtype=np.float32)
    with pytest.raises(ValueError, match="0 workers"):
        _core.audit_compare([], 1, x)
    with pytest.raises(ValueError, match="elements must be float32"):
        _core.audit_compare([x], 1, x.astype(np.int32))
    with pytest.raises(ValueError, match="an array of 2 elements, where it must have 3"):
        _core.audit_compare([x[:2]], 1, x)


def test_an_audit_reaches_the_run_log(tmp_path: Path) -> None:
    leaves = [np.linspace(1, 2 + w, 4000, dtype=np.float32) for w in range(4)]
    result = leaves[0] + leaves[1] + leaves[2] + leaves[3]
    result[:5] += 1
    record = _core.audit_compare(leaves, 1, result)["record"]
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
