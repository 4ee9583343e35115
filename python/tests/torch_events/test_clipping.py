# SPDX-License-Identifier: Apache-2.0
"""Clipping does what it did, and is told of by whatever name it was imported."""

from __future__ import annotations

from typing import Any

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
    handle = CLIPS.add(lambda parameters, norm, _limit: told.append((parameters, float(norm))))
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


def test_the_last_listener_leaves_torch_as_it_was() -> None:
    wrapper: Any = clip_grads_with_norm_
    original = wrapper.__closure__[0].cell_contents
    first, second = CLIPS.add(lambda *_: None), CLIPS.add(lambda *_: None)
    assert wrapper.__closure__[0].cell_contents is not original
    first.remove()
    assert wrapper.__closure__[0].cell_contents is not original
    second.remove()
    assert wrapper.__closure__[0].cell_contents is original
