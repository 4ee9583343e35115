# SPDX-License-Identifier: Apache-2.0
"""Settings of optimizers and modules."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from helpers.values import named, real
from presum.fingerprints.settings import (
    Dtypes,
    FrozenLayers,
    Modes,
    OptimizerSettings,
    determinism,
    optimizer_facts,
)

CPU = torch.device("cpu")


def settings_of(optimizer: torch.optim.Optimizer) -> dict[str, int]:
    return named(OptimizerSettings([optimizer], [])(0))


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
    mine, other = (OptimizerSettings([optimizer], []) for optimizer in optimizers)
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
    fresh = OptimizerSettings([optimizers[1]], [])
    assert [fresh(turn) for turn in range(40)][-1] == other(40)


def test_a_group_that_is_added_is_seen_at_once() -> None:
    optimizer = one_group_each(3)
    look = OptimizerSettings([optimizer], [])
    before = look(0)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    assert look(1) != before


def test_names_of_parameters_are_no_hyper_parameter() -> None:
    model = nn.Sequential(*[nn.Linear(1, 1) for _ in range(1000)])
    optimizer = torch.optim.AdamW(model.named_parameters())
    assert "optimizer.param_names" not in optimizer_facts([optimizer])
    assert max(map(len, optimizer_facts([optimizer]).values())) < 100
    assert settings_of(optimizer) == settings_of(torch.optim.AdamW(model.parameters()))


def test_settings_are_told_of_each_group_and_optimizer() -> None:
    def of(*optimizers: torch.optim.Optimizer) -> dict[str, str]:
        facts = optimizer_facts(optimizers)
        return {name: value for name, value in facts.items() if name.startswith("optimizer.lr")}

    def parameter() -> list[nn.Parameter]:
        return [nn.Parameter(torch.zeros(1))]

    two_groups = [{"params": parameter()}, {"params": parameter(), "lr": 0.2}]
    sgd = torch.optim.SGD(two_groups, lr=0.1)
    adam, other = torch.optim.Adam(parameter(), lr=3.0), torch.optim.Adam(parameter(), lr=4.0)
    assert of(sgd) == {"optimizer.lr": "0.1", "optimizer.lr of param_groups[1]": "0.2"}
    assert of(sgd, adam) == {
        "optimizer.lr of SGD": "0.1",
        "optimizer.lr of SGD.param_groups[1]": "0.2",
        "optimizer.lr of Adam": "3.0",
    }
    assert of(adam, other) == {"optimizer.lr of Adam 1": "3.0", "optimizer.lr of Adam 2": "4.0"}
    assert of() == {}
    assert len(of(one_group_each(100))) == 8


def test_modes_tell_which_modules_train_and_which_dropout_is_active() -> None:
    model = nn.Sequential(
        nn.Linear(2, 2), nn.Dropout(0.25), nn.MultiheadAttention(2, 1, dropout=0.5)
    )
    modes = Modes(model)
    plain = named(modes(0))
    assert plain["mode"] == 1 and real(plain["dropout"]) == 0.5
    model[2].eval()
    partly = named(modes(0))
    assert partly["mode"] == 1 and real(partly["dropout"]) == 0.25
    assert partly["modes"] != plain["modes"] and partly["dropouts"] == plain["dropouts"]
    model.eval()
    assert named(modes(0))["mode"] == 0 and real(named(modes(0))["dropout"]) == 0
    model[1].p = 0.1
    assert named(modes(0))["dropouts"] != plain["dropouts"]
    assert {*named(modes(1))} == {"mode", "dropout"}
    alone = nn.Linear(1, 1)
    assert real(named(Modes(alone)(0))["dropout"]) == 0


def test_a_rate_that_rises_is_told_at_once_and_by_all_alike() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0), nn.Dropout(0.0))
    always, joins_late = Modes(model), Modes(model)
    always(0)
    for turn in range(1, 12):
        model[2].p = turn / 100
        told = always(turn)
        assert real(named(told)["dropout"]) == turn / 100
        if turn % 3:  # the other one misses some steps
            assert joins_late(turn) == told


def test_modules_that_are_added_are_noticed_after_a_while() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    modes = Modes(model)
    modes(0)
    model.append(nn.Dropout(0.5))
    for _ in range(25):
        found = named(modes(0))
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


def test_parameters_of_the_model_count_and_a_ranks_own_do_not() -> None:
    watched = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]
    references = [weakref.ref(p) for p in watched]

    def values(held: list[nn.Parameter]) -> dict[str, int]:
        optimizer = torch.optim.SGD(held)
        return named(OptimizerSettings([optimizer], references)(0))

    own_table = nn.Parameter(torch.ones(9))
    assert values(watched) == values([*watched, own_table]) != values(watched[:1])
    facts = optimizer_facts([torch.optim.SGD([watched[0], own_table])], watched)
    assert facts["optimizer.parameters held"] == "1"


def test_layers_whose_gradients_are_gone_when_the_optimizer_steps() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters())
    references = [weakref.ref(p) for p in model.parameters()]
    layers = FrozenLayers(references, [optimizer], lambda index: f"layer{index // 2}")
    for gone in (True, False):
        for _ in range(25):
            model(torch.ones(1, 2)).sum().backward()
            for p in model[1].parameters():
                p.grad = None if gone else p.grad
            layers.optimizer_begins(optimizer)
        assert layers()["layers_without_gradient"] == ("layer1" if gone else "")


def test_gradients_that_are_all_gone_were_hardly_taken_away() -> None:
    """`zero_grad` before the step of one of two optimizers."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    body, head = (torch.optim.SGD(part.parameters()) for part in model)
    references = [weakref.ref(p) for p in model.parameters()]
    layers = FrozenLayers(references, [body, head], lambda index: f"layer{index // 2}")
    for _ in range(5):
        model(torch.ones(1, 2)).sum().backward()
        head.zero_grad()
        layers.optimizer_begins(body)
        layers.optimizer_begins(head)
    assert layers()["layers_without_gradient"] == ""
