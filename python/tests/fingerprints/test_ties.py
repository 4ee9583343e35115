# SPDX-License-Identifier: Apache-2.0
"""Parameters with several names."""

from __future__ import annotations

from torch import nn

from presum.fingerprints.ties import TiedParameters


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(3, 4), nn.Linear(4, 3, bias=False)


def told(model: nn.Module) -> str:
    return TiedParameters(model)()[1]


def test_names_of_a_parameter_are_listed_together() -> None:
    model = Tied()
    ((_, before),) = TiedParameters(model)()[0]
    assert told(model) == "none"
    model.head.weight = model.embed.weight  # type: ignore[assignment]
    assert told(model) == "embed.weight = head.weight"
    ((_, after),) = TiedParameters(model)()[0]
    assert before != after


def test_after_eight_the_rest_is_counted() -> None:
    parts = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(20))
    for one, other in zip(parts[:10], parts[10:], strict=True):
        one.weight = other.weight  # type: ignore[union-attr]
    names = told(nn.Sequential(*parts)).split(", ")
    assert names[0] == "0.weight = 10.weight" and len(names) == 9 and names[-1] == "2 more"


def test_modules_in_a_circle_are_walked_once() -> None:
    model = Tied()
    model.head.register_module("owner", model)
    model.head.weight = model.embed.weight  # type: ignore[assignment]
    assert told(model) == "embed.weight = head.weight"


def test_memory_that_two_parameters_share_is_no_tie() -> None:
    model = Tied()
    model.head.weight.data = model.embed.weight.data
    assert told(model) == "none"


def test_a_model_that_is_gone_has_no_names() -> None:
    ties = TiedParameters(nn.Linear(1, 1))
    assert ties() == ([], "")
