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
    return TiedParameters(model)()[1]["tied_parameters"]


def test_names_of_a_parameter_are_listed_together() -> None:
    model = Tied()
    ((_, before),) = TiedParameters(model)()[0]
    assert told(model) == "none"
    model.head.weight = model.embed.weight  # type: ignore[assignment]
    assert told(model) == "embed.weight = head.weight"
    ((_, after),) = TiedParameters(model)()[0]
    assert before != after


def test_a_module_with_two_names_is_tied_and_the_rest_is_counted() -> None:
    part = nn.Sequential(*(nn.Linear(1, 1) for _ in range(3)))
    assert told(nn.Sequential(part, part)) == (
        "0.0.bias = 1.0.bias, 0.0.weight = 1.0.weight, 0.1.bias = 1.1.bias, "
        "0.1.weight = 1.1.weight, 2 more"
    )


def test_memory_that_two_parameters_share_is_no_tie() -> None:
    model = Tied()
    model.head.weight.data = model.embed.weight.data
    assert told(model) == "none"


def test_a_model_that_is_gone_has_no_names() -> None:
    ties = TiedParameters(nn.Linear(1, 1))
    assert ties() == ([], {})
