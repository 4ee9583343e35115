# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from presum.fingerprints.loss_graph import LOOKS_MAX, PASSES, LossGraph
from presum.torch_events.collectives import REDUCED, InPlaceReduction

WEIGHT = torch.linspace(0.1, 1.0, 5)


def facts_of(loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> dict[str, str]:
    """Of a loss that is made of a model's output and labels; batches differ."""
    graph, model, told = LossGraph(), nn.Linear(3, 5), {}
    for passes in range(PASSES):
        assert graph.asks and not told
        output = model(torch.randn(4 + passes, 3))
        graph.ends_at(output, is_loss=False)
        told = graph.look([loss(output, torch.randint(0, 5, (4 + passes,)))])
    assert not graph.asks
    return told


def test_functions_and_settings_are_told() -> None:
    plain = facts_of(functional.cross_entropy)
    assert plain["loss.functions"] == "NllLoss, LogSoftmax"
    assert plain["loss.NllLoss.reduction"] == "mean" and plain["loss.NllLoss.weight"] == "none"
    assert plain["loss.NllLoss.ignore_index"] == "-100"
    others = {
        "functions": lambda x, y: functional.cross_entropy(x, y, label_smoothing=0.1),
        "NllLoss.weight": lambda x, y: functional.cross_entropy(x, y, weight=WEIGHT),
        "NllLoss.ignore_index": lambda x, y: functional.cross_entropy(x, y, ignore_index=0),
        "NllLoss.reduction": lambda x, y: functional.cross_entropy(x, y, reduction="sum"),
        "LogSoftmax.dim": lambda x, y: functional.nll_loss(x.log_softmax(0), y),
    }
    for key, loss in others.items():
        told = facts_of(loss)
        assert told[f"loss.{key}"] != plain[f"loss.{key}"], key


def test_factors_are_told_and_what_depends_on_the_batch_is_not() -> None:
    told = facts_of(lambda x, y: functional.cross_entropy(x, y) * 0.5)
    assert told["loss.Mul.other"] == "0.5"
    told = facts_of(lambda x, y: functional.cross_entropy(x, y) / len(y))
    assert "loss.Div.other" not in told
    assert not any("size" in key for key in told)


@pytest.mark.parametrize(
    ("then", "sums", "how"),
    [
        (lambda total: total, True, "unknown"),
        (lambda total: total / 4, True, "divided"),
        (lambda total: total.clone()[None].mean() * 0.25 + 1, True, "divided"),
        (lambda total: total / torch.tensor(4), True, "divided"),
        (lambda total: total / 8, True, "unknown"),
        (lambda total: total / 4, False, "unknown"),
        (lambda total: total.log(), False, "function"),
        (lambda total: 1 / total, True, "function"),
        (lambda total: total * total, True, "unknown"),
        (lambda total: total * (1 + 1j), True, "unknown"),
    ],
)
def test_what_a_collective_changes_in_place_is_told(
    then: Callable[[torch.Tensor], torch.Tensor], sums: bool, how: str
) -> None:
    graph, model = LossGraph(), nn.Linear(3, 5)
    output = model(torch.randn(4, 3))
    graph.ends_at(output, is_loss=False)
    loss: Any = output.square().mean()
    loss.grad_fn.metadata[REDUCED] = InPlaceReduction("train.py:7", sums, 4)
    told = graph.look([then(loss)])
    assert graph.asks
    assert told == {"loss_reduced_at": "all_reduce at train.py:7", "loss_reduced_how": how}


def test_of_losses_that_take_turns_nothing_is_told() -> None:
    kinds = [functional.mse_loss, functional.l1_loss, functional.mse_loss]
    told = facts_of(lambda x, y: kinds.pop()(x, functional.one_hot(y, 5).float()))
    assert told == {}


def test_a_loss_that_never_settles_is_given_up() -> None:
    graph, other = LossGraph(), nn.Linear(3, 5)
    for _ in range(LOOKS_MAX):
        assert graph.asks
        assert graph.look([other(torch.randn(2, 3)).sum()]) == {}
    assert not graph.asks


def test_a_pass_that_does_not_get_to_the_model_tells_nothing() -> None:
    graph, other = LossGraph(), nn.Linear(3, 5)
    for _ in range(2 * PASSES):
        assert graph.look([other(torch.randn(2, 3)).sum()]) == {}
    assert graph.asks


def test_a_loss_of_the_models_own_is_walked_through() -> None:
    graph, model, told = LossGraph(), nn.Linear(3, 5), {}
    for _ in range(PASSES):
        loss = functional.cross_entropy(model(torch.randn(4, 3)), torch.randint(0, 5, (4,)))
        graph.ends_at(loss, is_loss=True)
        told = graph.look([loss / 2])
    assert told["loss.functions"] == "Div, NllLoss, LogSoftmax, Addmm, T"


def test_what_was_saved_elsewhere_is_not_fetched() -> None:
    fetched = []

    def unpack(x: torch.Tensor) -> torch.Tensor:
        fetched.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
        told = facts_of(lambda x, y: functional.cross_entropy(x, y, weight=WEIGHT))
    assert not fetched
    assert told["loss.functions"] == "NllLoss, LogSoftmax" and "loss.NllLoss.weight" not in told
