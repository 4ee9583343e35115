# SPDX-License-Identifier: Apache-2.0
"""What datasets say of themselves."""

from __future__ import annotations

import time
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

from helpers.unread import Sized, Stream
from helpers.values import named
from presum.fingerprints.datasets import describe_data
from presum.fingerprints.samplers import Description


def data_of(dataset: Any) -> dict[str, int]:
    found: Description = describe_data(dataset)
    return {k.removeprefix("data_"): v for k, v in named(found.values).items()}


class Folder(Sized):
    def __init__(self, paths: list[Any], **more: Any) -> None:
        super().__init__(len(paths))
        self.samples = paths
        vars(self).update(more)


def test_a_manifest_is_what_a_data_set_lists_in_its_order() -> None:
    paths = [f"/data/train/{name}.png" for name in "abc"]
    plain = data_of(Folder(paths))
    assert plain["length"] == 3
    assert data_of(Folder([path.replace("/data", "/scratch/job7") for path in paths])) == plain
    assert data_of(Folder([PurePosixPath(path) for path in paths])) == plain
    assert data_of(Folder([(path, 1) for path in paths])) == plain
    assert data_of(Folder(paths[::-1]))["attributes"] != plain["attributes"]
    assert data_of(Folder(paths, split="test"))["attributes"] != plain["attributes"]
    assert data_of(Folder(paths[:2]))["length"] == 2


def test_what_is_no_manifest_is_left_out() -> None:
    for dataset in (Folder([torch.ones(1)]), Folder([["a"]]), Folder([()]), Sized(3), [1, 2, 3]):
        assert "attributes" not in data_of(dataset)
    assert "length" not in data_of(Stream())


def test_long_manifests_are_read_at_even_distances() -> None:
    paths = [f"{i}.png" for i in range(25_000)]
    plain = data_of(Folder(paths))["attributes"]
    paths[3], paths[6] = paths[6], paths[3]
    assert data_of(Folder(paths))["attributes"] != plain


def test_subsets_and_concatenations_are_looked_into() -> None:
    inner = Folder(["a/b.png", "a/c.png"])
    subset = Subset(inner, [0])
    both = torch.utils.data.ConcatDataset([inner, Folder(["a/d.png"])])
    assert data_of(subset)["attributes"] == data_of(inner)["attributes"]
    assert data_of(subset)["class"] != data_of(inner)["class"]
    assert data_of(both)["attributes"] != data_of(inner)["attributes"]
    assert data_of(TensorDataset(torch.ones(4, 2)))["length"] == 4


def test_which_positions_a_subset_holds() -> None:
    data = TensorDataset(torch.arange(20.0).reshape(10, 2))
    plain = data_of(Subset(data, [1, 2, 3]))["subset"]
    assert data_of(Subset(data, [1, 2, 3]))["subset"] == plain
    assert data_of(Subset(data, [1, 3, 2]))["subset"] != plain
    assert data_of(Subset(data, np.array([1, 2, 3])))["subset"] == plain  # type: ignore[arg-type]
    assert data_of(Subset(data, torch.tensor([1, 2, 3])))["subset"] == plain  # type: ignore[arg-type]
    assert "subset" not in data_of(data)
    seeded = [
        torch.utils.data.random_split(data, [7, 3], torch.Generator().manual_seed(seed))[0]
        for seed in (1, 1, 2)
    ]
    first, same, other = (data_of(part)["subset"] for part in seeded)
    assert first == same != other


class Holder(Sized):
    def __init__(self, **held: Any) -> None:
        super().__init__(4)
        vars(self).update(held)


def test_indices_are_a_subset_s_only_where_the_class_is_torch_s_or_one_of_its_kin() -> None:
    class Named(Subset[Any]):
        pass

    data = TensorDataset(torch.arange(20.0).reshape(10, 2))
    assert data_of(Named(data, [1, 2]))["subset"] == data_of(Subset(data, [1, 2]))["subset"]
    share = Holder(dataset=data, indices=[1, 2, 3, 4])
    assert "subset" not in data_of(share)
    other = Holder(dataset=data, indices=torch.tensor([5, 6, 7, 8]))
    assert data_of(share)["share"] != data_of(other)["share"]
    assert "share" not in data_of(data) and "share" not in data_of(Subset(data, [0]))
    assert data_of(Subset(share, [0]))["subset"] == data_of(Subset(data, [0]))["subset"]


def test_rows_of_what_a_data_set_keeps_in_memory() -> None:
    x, y = torch.randn(1000, 3), torch.arange(1000) % 10
    plain = data_of(TensorDataset(x, y))["contents"]
    assert data_of(TensorDataset(x.clone(), y.clone()))["contents"] == plain
    assert data_of(TensorDataset(x * 2, y))["contents"] != plain, "normalized otherwise"
    assert data_of(TensorDataset(x, y.roll(1)))["contents"] != plain, "other labels"
    assert data_of(TensorDataset(x[:-1], y[:-1]))["contents"] != plain
    assert data_of(Subset(TensorDataset(x, y), [3]))["contents"] == plain


def test_arrays_and_lists_of_labels_are_contents_too() -> None:
    labels = list(range(50))
    as_list = data_of(Holder(targets=labels))["contents"]
    assert data_of(Holder(targets=labels[::-1]))["contents"] != as_list
    pixels = np.arange(60, dtype=np.uint8).reshape(5, 3, 4)
    pixels.flags.writeable = False
    plain = data_of(Holder(data=pixels))["contents"]
    assert data_of(Holder(data=pixels + 1))["contents"] != plain
    assert data_of(Holder(data=torch.tensor(pixels)))["contents"] == plain


def test_of_long_rows_the_beginning_is_read(tmp_path: Path) -> None:
    rows = np.memmap(tmp_path / "rows", dtype="f4", mode="w+", shape=(300, 1 << 20))
    rows[:, :5000] = np.arange(5000)
    before = time.process_time()
    plain = data_of(Holder(data=rows))["contents"]
    assert time.process_time() - before < 2, "1.2 GB were read"
    rows[0, 5000] = 1
    assert data_of(Holder(data=rows))["contents"] == plain
    rows[0, 4000] = 1
    assert data_of(Holder(data=rows))["contents"] != plain


def test_what_cannot_be_read_is_left_out() -> None:
    for held in (
        None,
        [],
        {},
        "text",
        [["a"]],
        torch.empty(0, 3),
        torch.empty(3, 0),
        torch.tensor(1.0),
        np.ones(3, ">f4"),
        np.ones(3, np.longdouble),
        torch.empty(3, 2, device="meta"),
        torch.ones(3, dtype=torch.complex128),
        np.array(["a"]),
        np.array([object()]),
    ):
        assert "contents" not in data_of(Holder(data=held)), held
