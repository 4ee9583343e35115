# SPDX-License-Identifier: Apache-2.0
"""Clipping does what it did, and is told of by whatever name it was imported."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm

from presum.torch_events.clipping import CLIPS


def with_gradients() -> list[nn.Parameter]:
    parameters = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2)), nn.Parameter()]
    parameters[0].grad = torch.tensor([3.0, 0.0, 0.0])
    parameters[1].grad = torch.tensor([0.0, 4.0])
    return parameters


def test_every_way_to_clip_is_told_of_and_clips() -> None:
    told: list[Any] = []
    handle = CLIPS.add(lambda parameters, norm, *_: told.append((parameters, float(norm))))
    for clip in (
        lambda ps: clip_grad_norm_(ps, 1.0),
        lambda ps: nn.utils.clip_grad_norm_((p for p in ps), max_norm=1.0),
        lambda ps: clip_grads_with_norm_(ps, 1.0, torch.tensor(5.0)),
        lambda ps: nn.utils.clip_grads_with_norm_(
            parameters=iter(ps), max_norm=1.0, total_norm=torch.tensor(5.0)
        ),
    ):
        parameters = with_gradients()
        clip(parameters)
        assert float(get_total_norm([p.grad for p in parameters[:2]])) < 1.001  # type: ignore[misc]
        found, norm = told.pop()
        assert list(map(id, found)) == list(map(id, parameters))
        assert norm == 5
    one = with_gradients()[0]
    clip_grads_with_norm_(one, 1.0, torch.tensor(3.0))
    assert told.pop()[0] == [one]
    handle.remove()
    clip_grad_norm_(with_gradients(), 1.0)
    assert not told


@pytest.mark.parametrize("foreach", [None, True, False])
def test_the_type_is_that_which_torch_was_asked_for(foreach: bool | None) -> None:
    told: list[float | None] = []
    handle = CLIPS.add(lambda *args: told.append(args[3]))

    def kind(clip: Callable[[list[nn.Parameter], list[Any]], object]) -> float | None:
        parameters = with_gradients()
        clip(parameters, [p.grad for p in parameters[:2]])
        return told.pop()

    def norm_of(gradients: Any, norm_type: Any) -> torch.Tensor:
        return get_total_norm(gradients, norm_type, foreach=foreach)

    def logged(ps: list[nn.Parameter], gradients: list[Any]) -> None:
        norm_of(gradients, 2)
        clip_grads_with_norm_(ps, 1.0, gradients[0].abs().max())

    for asked, is_type in (("inf", math.inf), (math.inf, math.inf), (1, 1.0), (3.0, 3.0)):
        assert is_type == kind(
            lambda ps, _, p=asked: clip_grad_norm_(ps, 1.0, p, foreach=foreach)  # type: ignore[misc]
        )
        assert is_type == kind(
            lambda ps, gs, p=asked: clip_grads_with_norm_(ps, 1.0, norm_of(iter(gs), p))  # type: ignore[misc]
        )
    assert kind(lambda ps, _: clip_grad_norm_(ps, 1.0, error_if_nonfinite=True)) == 2
    assert kind(lambda ps, gs: clip_grads_with_norm_(ps, 1.0, norm_of(gs[:1], 3) / 2)) == 3
    assert kind(lambda ps, gs: clip_grads_with_norm_(ps, 1.0, torch.tensor(4.0))) is None
    assert kind(logged) is None, "it is made of something else"
    assert kind(lambda ps, gs: (norm_of(gs, 2), clip_grad_norm_(ps, 1.0, math.inf))) == math.inf
    handle.remove()


def test_gradients_that_are_not_finite_are_refused_by_torch_as_ever() -> None:
    handle = CLIPS.add(lambda *_: None)
    parameters = with_gradients()
    parameters[0].grad = torch.full((3,), math.nan)
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True)
    handle.remove()


def test_the_last_listener_leaves_torch_as_it_was() -> None:
    wrappers: list[Any] = [clip_grads_with_norm_, get_total_norm]
    originals = [wrapper.__closure__[0].cell_contents for wrapper in wrappers]

    def untouched() -> list[bool]:
        pairs = zip(wrappers, originals, strict=True)
        return [wrapper.__closure__[0].cell_contents is one for wrapper, one in pairs]

    first, second = CLIPS.add(lambda *_: None), CLIPS.add(lambda *_: None)
    assert not any(untouched())
    first.remove()
    assert not any(untouched())
    second.remove()
    assert all(untouched())
