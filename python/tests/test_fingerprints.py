# SPDX-License-Identifier: Apache-2.0
"""What workers are compared by: each family of fingerprints by itself."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
)

from observers import make_observer
from presum._core import hash_rows
from presum.devices.gradient_pass import dense, fingerprint, row_hashes
from presum.fingerprints.environment import environment_facts
from presum.fingerprints.families import KIND, WORD, Families, Values, chosen
from presum.fingerprints.rng import RngStates
from presum.fingerprints.rows import hash_tensor, samples_among, tensors_among
from presum.fingerprints.samplers import Description, describe_data, describe_sampler
from presum.fingerprints.settings import (
    Dtypes,
    Modes,
    OptimizerSettings,
    determinism,
    optimizer_facts,
)
from presum.fingerprints.states import elements
from presum.parallel.sampler import MicroBatchSampler

CPU = torch.device("cpu")
NAMES = {number: name for name, number in KIND.items()}


def named(values: Values) -> dict[str, int]:
    return {NAMES[kind]: value for kind, value in values}


def real(word: int) -> float:
    return float(struct.unpack("<d", word.to_bytes(8, "little"))[0])


# ---- families


def test_families_are_chosen_by_name() -> None:
    assert "rng" in chosen(True) and not chosen(False)
    assert chosen(["rng", "data"]) == {"rng", "data"}
    for wrong in ("rng", ["rgn"], 3):
        with pytest.raises(ValueError, match="fingerprints must be True, False or names among"):
            chosen(wrong)  # type: ignore[arg-type]


def test_a_family_that_fails_is_switched_off_alone_and_said_once() -> None:
    said: list[str] = []
    families = Families({"rng", "mode"}, said.append)
    for _ in range(2):
        assert families.run("rng", lambda: 1 // 0) is None
    assert families.run("mode", lambda: 7) == 7
    assert families.run("data", lambda: 7) is None
    assert "rng" not in families and "mode" in families
    assert len(said) == 1 and "rng" in said[0] and "ZeroDivisionError" in said[0]


# ---- random generators


def test_reading_the_generators_draws_nothing() -> None:
    before = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
    RngStates(CPU)()
    after = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
    assert torch.equal(before[0], after[0])
    assert np.array_equal(before[1], after[1])
    assert before[2] == after[2]


@pytest.mark.parametrize(
    ("name", "seed", "draw"),
    [
        ("rng_torch", torch.manual_seed, lambda: torch.rand(1)),
        ("rng_numpy", np.random.seed, lambda: np.random.rand()),
        ("rng_python", random.seed, random.random),
    ],
)
def test_a_generator_s_hash_follows_its_state(name: str, seed: Any, draw: Any) -> None:
    states = RngStates(CPU)
    seed(5)
    first = named(states())
    draw()
    drawn = named(states())
    seed(5)
    again = named(RngStates(CPU)())
    assert again[name] == first[name] != drawn[name]
    assert {k for k in first if first[k] != drawn[k]} == {name}


def test_another_numpy_generator_is_left_out() -> None:
    states = RngStates(CPU)
    own = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(1))
        assert "rng_numpy" not in named(states())
    finally:
        np.random.set_bit_generator(own)
    assert "rng_numpy" in named(states())


# ---- rows


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
    masked = (mask.data_ptr(), mask.element_size()) if mask is not None else (0, 8)
    return hash_rows(x.data_ptr(), x.shape[0], x.shape[1], x.element_size(), *masked)


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
    monkeypatch.setattr("presum.devices.gradient_pass.CHUNK", 64)
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


# ---- settings


def settings_of(optimizer: torch.optim.Optimizer) -> dict[str, int]:
    return named(OptimizerSettings(optimizer)(0))


def test_optimizer_settings_change_with_every_hyper_parameter() -> None:
    weights = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]

    def values(**options: Any) -> dict[str, int]:
        groups = [{"params": weights[:1]}, {"params": weights[1:], "weight_decay": 0.5}]
        return settings_of(torch.optim.AdamW(groups, **options))

    plain = values(lr=1e-3)
    assert real(plain["learning_rate"]) == 1e-3
    assert real(plain["weight_decay"]) == 1e-2
    assert plain == values(lr=1e-3) == values(lr=torch.tensor(1e-3, dtype=torch.float64))
    others = [values(lr=2e-3), values(betas=(0.9, 0.9)), values(amsgrad=True), values(eps=1e-7)]
    assert len({o["optimizer_settings"] for o in [plain, *others]}) == 5
    sgd = settings_of(torch.optim.SGD(weights, lr=1e-3))
    assert sgd["optimizer_class"] != plain["optimizer_class"]


def test_an_optimizer_with_no_rates_has_none() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    del optimizer.param_groups[0]["lr"]
    assert "learning_rate" not in settings_of(optimizer)


def one_group_each(count: int, lr: float = 1e-3) -> torch.optim.Optimizer:
    weights = (nn.Parameter(torch.zeros(1)) for _ in range(count))
    return torch.optim.AdamW([{"params": [weight], "lr": lr} for weight in weights])


class Counted(list):  # type: ignore[type-arg]
    """Knows which of its entries were asked for."""

    def __init__(self, entries: Any) -> None:
        super().__init__(entries)
        self.asked: set[int] = set()

    def __getitem__(self, index: Any) -> Any:
        self.asked.add(index)
        return super().__getitem__(index)


def test_many_parameter_groups_are_looked_at_in_turn() -> None:
    optimizers = [one_group_each(1000) for _ in range(2)]
    mine, other = (OptimizerSettings(optimizer) for optimizer in optimizers)
    optimizers[0].param_groups = looked = Counted(optimizers[0].param_groups)
    changed_at, seen_at = 5, None
    for turn in range(40):
        if turn == changed_at:
            optimizers[1].param_groups[700]["weight_decay"] = 0.5
        looked.asked.clear()
        same = mine(turn) == other(turn)
        assert len(looked.asked - {0}) in (63, 64)  # the first one's rates are told at every step
        if not same and seen_at is None:
            seen_at = turn
    assert seen_at is not None and changed_at <= seen_at <= changed_at + 16
    # As if it had always been so: what is told depends on the settings alone.
    fresh = OptimizerSettings(optimizers[1])
    assert [fresh(turn) for turn in range(40)][-1] == other(40)


def test_a_group_that_is_added_is_seen_at_once() -> None:
    optimizer = one_group_each(3)
    look = OptimizerSettings(optimizer)
    before = look(0)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    assert look(1) != before


def test_names_of_parameters_are_no_hyper_parameter() -> None:
    model = nn.Sequential(*[nn.Linear(1, 1) for _ in range(1000)])
    optimizer = torch.optim.AdamW(model.named_parameters())
    assert "optimizer.param_names" not in optimizer_facts(optimizer)
    assert max(map(len, optimizer_facts(optimizer).values())) < 100
    assert settings_of(optimizer) == settings_of(torch.optim.AdamW(model.parameters()))


def test_modes_tell_which_modules_train_and_which_dropout_is_active() -> None:
    model = nn.Sequential(
        nn.Linear(2, 2), nn.Dropout(0.25), nn.MultiheadAttention(2, 1, dropout=0.5)
    )
    modes = Modes(model)
    plain = named(modes())
    assert plain["mode"] == 1 and real(plain["dropout"]) == 0.5
    model[2].eval()
    partly = named(modes())
    assert partly["mode"] == 1 and real(partly["dropout"]) == 0.25
    assert partly["modes"] != plain["modes"] and partly["dropouts"] == plain["dropouts"]
    model.eval()
    assert named(modes())["mode"] == 0 and real(named(modes())["dropout"]) == 0
    model[1].p = 0.1
    assert named(modes())["dropouts"] != plain["dropouts"]
    alone = nn.Linear(1, 1)
    assert real(named(Modes(alone)())["dropout"]) == 0


def test_modules_that_are_added_are_noticed_after_a_while() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    modes = Modes(model)
    modes()
    model.append(nn.Dropout(0.5))
    for _ in range(25):
        found = named(modes())
    assert real(found["dropout"]) == 0.5


def test_dtypes_know_of_autocast() -> None:
    model = nn.Linear(2, 2)
    plain = Dtypes(model, CPU)()
    with torch.autocast("cpu", torch.bfloat16):
        assert Dtypes(model, CPU)() != plain
    assert Dtypes(model.to(torch.bfloat16), CPU)() != plain


def test_determinism_flags_show() -> None:
    plain = determinism()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert determinism() != plain
    finally:
        torch.use_deterministic_algorithms(False)
    assert determinism() == plain


def test_environment_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("OMP_NUM_THREADS", "3" * 1000)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "no")
    facts = environment_facts(CPU)
    assert facts["env.NCCL_ALGO"] == "Ring"
    assert len(facts["env.OMP_NUM_THREADS"]) == 200
    assert facts["numpy"] == np.__version__
    assert all(facts.values()) and "no" not in facts.values()


# ---- samplers


class Sized:
    """A data set that must not be read."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        raise AssertionError("the data set was called")


def sampler_of(source: Any) -> tuple[dict[str, int], str]:
    found = describe_sampler(source)
    assert found is not None
    return {k.removeprefix("sampler_"): v for k, v in named(found.values).items()}, found.text


def test_a_distributed_sampler_tells_everything() -> None:
    sampler = DistributedSampler(Sized(10), num_replicas=4, rank=3, seed=7, drop_last=True)
    sampler.set_epoch(5)
    found, text = sampler_of(DataLoader(Sized(10), sampler=sampler, batch_size=2))
    class_ = found.pop("class")
    assert found == {
        "seed": 7,
        "epoch": 5,
        "rank": 3,
        "replicas": 4,
        "length": 2,
        "shuffle": 1,
        "drop_last": 0b10,  # the batch sampler's is 0
        "sets_epoch": 1,
    }
    assert text.startswith("BatchSampler(DistributedSampler): seed=7")
    alone, _ = sampler_of(sampler)
    assert alone["seed"] == 7 and alone["class"] != class_


def test_presum_s_own_sampler_says_how_it_shares_the_data() -> None:
    data = range(64)
    sampler = MicroBatchSampler(data, size=2, micro_batches=4, workers=2, rank=1, shuffle=True)
    found = describe_sampler(DataLoader(data, batch_sampler=sampler))  # type: ignore[arg-type]
    assert found is not None
    values = dict(found.values)
    assert values[KIND["sampler_replicas"]] == 2 and values[KIND["sampler_rank"]] == 1
    assert values[KIND["sampler_seed"]] == 0 and values[KIND["sampler_epoch"]] == 0
    assert values[KIND["sampler_sets_epoch"]] == values[KIND["sampler_shuffle"]] == 1


def test_seeds_of_samplers_that_do_not_share_the_data_are_not_compared() -> None:
    generator = torch.Generator().manual_seed(3)
    found, text = sampler_of(DataLoader(Sized(10), shuffle=True, generator=generator))
    assert "seed" not in found and "replicas" not in found
    assert found["shuffle"] == 1 and "seed=3" in text
    found, _ = sampler_of(DataLoader(Sized(10)))
    assert found["shuffle"] == 0 and found["sets_epoch"] == 0
    drawn = RandomSampler(Sized(10), replacement=True)
    assert "replacement=True" in sampler_of(drawn)[1]


def test_nothing_of_a_user_s_sampler_is_called() -> None:
    class Own(Sampler[int]):
        num_samples = 99  # of the class: only what the object keeps is read

        def __init__(self) -> None:
            self.total_size = 12

        def __len__(self) -> int:
            raise AssertionError("called")

        def __iter__(self) -> Iterator[int]:
            raise AssertionError("called")

    found, _ = sampler_of(Own())
    assert found["length"] == 12


def test_accelerate_s_wrappers_are_looked_through() -> None:
    accelerate = pytest.importorskip("accelerate.data_loader")
    random_sampler = accelerate.SeedableRandomSampler(Sized(12), data_seed=9)
    random_sampler.set_epoch(2)
    shard = accelerate.BatchSamplerShard(
        BatchSampler(random_sampler, 3, False), num_processes=2, process_index=1
    )
    loader = accelerate.DataLoaderShard(Sized(12), batch_sampler=shard)
    found, text = sampler_of(loader)
    known = {k: found[k] for k in ("seed", "epoch", "rank", "replicas", "shuffle")}
    assert known == {
        "seed": 9,
        "epoch": 2,
        "rank": 1,
        "replicas": 2,
        "shuffle": 1,
    }
    assert text.startswith("BatchSamplerShard(BatchSampler(SeedableRandomSampler))")


class Wrapped(DistributedSampler):  # type: ignore[type-arg]
    """As Lightning's DistributedSamplerWrapper."""

    def __init__(self, sampler: Any, **options: Any) -> None:
        super().__init__(Sized(len(sampler)), **options)
        self._sampler = sampler


def test_lightning_s_wrapper_is_looked_through() -> None:
    sampler = Wrapped(SequentialSampler(Sized(9)), num_replicas=3, rank=1, shuffle=False, seed=4)
    found, text = sampler_of(DataLoader(Sized(9), sampler=sampler))
    assert (found["rank"], found["replicas"], found["seed"], found["shuffle"]) == (1, 3, 4, 0)
    assert "Wrapped(SequentialSampler)" in text


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        raise AssertionError("the data set was called")


def test_iterable_data_sets_have_no_sampler_but_may_divide_themselves() -> None:
    found, _ = sampler_of(DataLoader(Stream()))
    assert "rank" not in found and "length" not in found
    stream = Stream()
    stream.process_index, stream.num_processes = 1, 2  # as Accelerate's IterableDatasetShard
    found, _ = sampler_of(DataLoader(stream))
    assert (found["rank"], found["replicas"]) == (1, 2)


def test_samplers_that_refuse_to_answer_are_no_failure() -> None:
    class Odd:
        seed = "text"

        def __len__(self) -> int:
            raise RuntimeError("no length")

        def __iter__(self) -> Any:
            raise AssertionError("the sampler was called")

    found, _ = sampler_of(DataLoader(Sized(3), sampler=Odd()))
    assert "length" not in found and "seed" not in found
    loop = Odd()
    loop.sampler = loop  # type: ignore[attr-defined]
    assert describe_sampler(loop) is not None


# ---- data


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
    subset = torch.utils.data.Subset(inner, [0])
    both = torch.utils.data.ConcatDataset([inner, Folder(["a/d.png"])])
    assert data_of(subset)["attributes"] == data_of(inner)["attributes"]
    assert data_of(subset)["class"] != data_of(inner)["class"]
    assert data_of(both)["attributes"] != data_of(inner)["attributes"]
    assert data_of(TensorDataset(torch.ones(4, 2)))["length"] == 4


# ---- states


def state_bytes(tensor: torch.Tensor, *, on_host: bool) -> bytes:
    observer = make_observer([("a.weight", tensor.numel(), "")])
    block = elements(tensor)
    assert block is not None
    observer.begin_states()
    if on_host:
        observer.state(1, 0, block.data_ptr(), block.numel(), block.element_size())
    else:
        observer.state_sum(1, 0, int(fingerprint(block)) & WORD)
    return observer.note(True, 0, 0, "", 0)


@pytest.mark.parametrize(
    "dtype",
    [*DTYPES, torch.int8, torch.int64, torch.float64, torch.complex64, torch.complex128],
)
@pytest.mark.parametrize("count", [0, 1, 5, 1024, 1025, 3001])
def test_states_are_hashed_alike_on_the_host_and_on_a_device(
    dtype: torch.dtype, count: int
) -> None:
    tensor = torch.randint(0, 90, (count,)).to(dtype)
    assert state_bytes(tensor, on_host=True) == state_bytes(tensor, on_host=False)


def test_a_single_changed_bit_changes_a_state() -> None:
    tensor = torch.randn(5000)
    plain = state_bytes(tensor, on_host=True)
    tensor.view(torch.int32)[4321] ^= 1
    assert state_bytes(tensor, on_host=True) != plain


def test_tensors_without_one_block_of_values_have_no_state() -> None:
    assert elements(torch.eye(3).to_sparse()) is None
    assert elements(torch.ones(3, device="meta")) is None
    turned = torch.randn(4, 6).t()
    found = elements(turned)
    assert found is not None and torch.equal(found, turned) and found.is_contiguous()
    last = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert dense(last) is last
    assert state_bytes(last, on_host=True) == state_bytes(last, on_host=False)
