# SPDX-License-Identifier: Apache-2.0
"""Precision as it is inside a model's forward pass, wherever it is chosen."""

from __future__ import annotations

import functools
import importlib
import pickle
import sys
from collections.abc import Iterator
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from helpers.packets import PARTS
from helpers.training import Training
from presum.fingerprints.families import Families, LateValues
from presum.fingerprints.precision import COMPILED, NO_LAYER, ForwardPrecision

CPU = torch.device("cpu")
PLAIN = "no autocast, float32 parameters"
CAST = "autocast to bfloat16, float32 parameters"


class Looking:
    """Whoever looks into the forward passes of a model, and what they saw."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.saw: list[str] = []
        self.unseen: list[str] = []
        families = Families({"environment"}, self.unseen.append)
        self.told: LateValues = []
        self.precision = ForwardPrecision(
            model, CPU, families, tell=self.told.extend, say=self.said
        )

    def said(self, facts: dict[str, str]) -> None:
        self.saw += filter(None, [facts.get("forward_precision")])
        self.unseen += filter(None, [facts.get("forward_unseen")])

    def forward(self, turn: int, x: torch.Tensor) -> torch.Tensor:
        self.precision.begin(turn)
        out: torch.Tensor = self.model(x)
        self.precision.end()
        return out

    def look(self, turn: int = 1) -> str:
        self.forward(turn, torch.ones(2, 4))
        return self.saw[-1]


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))


@pytest.fixture(autouse=True)
def nothing_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "torch._dynamo.convert_frame"
    importlib.import_module("torch._dynamo.aot_compile")  # which the first hook would import
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(FRAME_COUNTER=0))  # type: ignore[arg-type]


def test_autocast_around_the_forward_pass_and_parameters_of_another_dtype() -> None:
    assert Looking(layers()).look() == PLAIN
    with torch.autocast("cpu", torch.bfloat16):
        assert Looking(layers()).look() == CAST
    looking = Looking(layers().bfloat16())
    looking.forward(1, torch.ones(2, 4, dtype=torch.bfloat16))
    assert looking.saw == ["no autocast, bfloat16 parameters"]


def test_autocast_that_is_entered_inside() -> None:
    model = layers()  # as Accelerate does
    inside = torch.autocast("cpu", torch.bfloat16)
    model.forward = MethodType(inside(type(model).forward), model)  # type: ignore[method-assign]
    assert Looking(model).look() == CAST

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.rest = nn.Linear(4, 4), layers()

        def forward(self, x: torch.Tensor) -> Any:
            x = self.first(x)
            with torch.autocast("cpu", torch.bfloat16):
                return self.rest(x)

    looking = Looking(Half())
    assert [looking.look(turn) for turn in (1, 6, 11, 16)] == [PLAIN, CAST, CAST, PLAIN]


def test_it_is_looked_at_in_one_step_of_five_and_nothing_stays_behind() -> None:
    looking = Looking(layers())
    for turn in range(12):
        looking.forward(turn, torch.ones(2, 4))
        assert not any(part._forward_hooks for part in looking.model.modules())
    assert len(looking.saw) == len(looking.told) == 3
    assert looking.unseen == []


def test_a_fused_encoder_gets_no_hook_for_which_it_would_compute_otherwise() -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, dim_feedforward=8, batch_first=True).eval()
    looking = Looking(nn.Sequential(encoder, nn.Linear(8, 2)))
    hooked: list[nn.Module] = []
    for turn in (1, 6, 11, 16):
        looking.precision.begin(turn)
        hooked += [module for module in encoder.modules() if module._forward_hooks]
        looking.precision.end()
    assert not hooked


def test_a_layer_that_is_not_called_is_no_place_to_look_from() -> None:
    class ByHand(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, self.layer.weight)

    model = ByHand()
    looking = Looking(model)
    for turn in range(8):
        looking.forward(turn, torch.ones(2, 4))
    assert (looking.saw, looking.unseen) == ([], [NO_LAYER])
    assert not model.layer._forward_hooks

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            self.inner = nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    for whole in (Bare(), nn.Linear(4, 2)):
        bare = Looking(whole)
        bare.forward(1, torch.ones(2, 4))
        assert (bare.saw, bare.unseen) == ([], [NO_LAYER])


def test_one_layer_among_others_that_is_not_called_is_passed_over() -> None:
    model = layers()
    model.unused = nn.Linear(1, 1)  # type: ignore[assignment]
    model.forward = lambda x: model[1](model[0](x))  # type: ignore[method-assign, assignment]
    looking = Looking(model)
    for turn in range(40):
        looking.forward(turn, torch.ones(2, 4))
    assert len(looking.saw) == 6
    assert looking.unseen == []


def test_where_torch_compiles_nothing_is_hooked(monkeypatch: pytest.MonkeyPatch) -> None:
    for counted in (SimpleNamespace(FRAME_COUNTER=3), SimpleNamespace()):
        monkeypatch.setitem(sys.modules, "torch._dynamo.convert_frame", counted)  # type: ignore[arg-type]
        looking = Looking(layers())
        looking.forward(1, torch.ones(2, 4))
        assert (looking.saw, looking.unseen) == ([], [COMPILED])


def test_a_model_that_is_copied_within_its_forward_pass_copies_no_hook_of_ours() -> None:
    looking = Looking(layers())
    looking.precision.begin(1)
    (hook,) = looking.model[0]._forward_hooks.values()  # type: ignore[index, union-attr]
    assert pickle.loads(pickle.dumps(hook))(None, None, None) is None
    looking.precision.end()


@pytest.fixture
def mesh() -> Iterator[Any]:
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))


@pytest.mark.usefixtures("one_worker")
def test_parameters_that_fsdp_casts_for_the_forward_pass(mesh: Any) -> None:
    for apply in (lambda model: [model], lambda model: [model[0], model[1][1], model]):
        model = layers()
        for part in apply(model):
            fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16))
        looking = Looking(model)
        assert looking.look() == "no autocast, bfloat16 parameters"
        assert looking.look(6) == "no autocast, bfloat16 parameters"


@pytest.mark.usefixtures("one_worker")
def test_a_step_tells_what_was_seen_inside(training: Training) -> None:
    inner = training.model.module
    inside = torch.autocast("cpu", torch.bfloat16)
    inner.forward = MethodType(functools.wraps(inner.forward)(inside(type(inner).forward)), inner)  # type: ignore[method-assign]
    with training.watched():
        for _ in range(7):
            training.step(PARTS[:1])
    at = [i for i, step in enumerate(training.steps) if "forward_precision" in step.values]
    assert at == [1, 6]
    assert training.packets.facts["forward_precision"] == CAST
    assert "forward_unseen" not in training.packets.facts
