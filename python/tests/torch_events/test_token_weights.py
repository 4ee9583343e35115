# SPDX-License-Identifier: Apache-2.0
"""What arrives at loss functions, against the gradient of the logits."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import cross_entropy

from presum.torch_events import token_weights
from presum.torch_events.token_weights import NODES_MAX, TokenWeights

CLASSES, IGNORED = 7, -100
Loss = Callable[[Tensor, Tensor], Tensor]
CLASS_WEIGHTS = torch.linspace(0.5, 2, CLASSES)


def masked(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    used = targets != IGNORED
    chosen = targets.clamp(min=0).unsqueeze(-1)
    return logits.log_softmax(-1).gather(-1, chosen).squeeze(-1), used


def by_gather(logits: Tensor, targets: Tensor) -> Tensor:
    found, used = masked(logits, targets)
    return -(found * used).sum() / used.sum()


def in_parts(logits: Tensor, targets: Tensor) -> Tensor:
    parts = zip(logits.chunk(3), targets.chunk(3), strict=True)
    return torch.stack([cross_entropy(x, y, reduction="sum") for x, y in parts]).sum() / 11


def with_auxiliary(logits: Tensor, targets: Tensor) -> Tensor:
    balance = (logits.softmax(-1).mean(0) * logits.mean(0)).sum()
    return cross_entropy(logits, targets) + 0.01 * balance


LOSSES: dict[str, Loss] = {
    "mean": cross_entropy,
    "mean-of-micro-batches": lambda x, y: cross_entropy(x, y) / 4,
    "sum": lambda x, y: cross_entropy(x, y, reduction="sum"),
    "sum-by-count": lambda x, y: 2 * cross_entropy(x, y, reduction="sum") / torch.tensor(45.0),
    "unreduced": lambda x, y: cross_entropy(x, y, reduction="none").sum() / (y != IGNORED).sum(),
    "unreduced-and-masked": lambda x, y: (
        cross_entropy(x, y.clamp(min=0), reduction="none") * (y != IGNORED)
    ).sum(),
    "over-ignored-too": lambda x, y: cross_entropy(x, y, reduction="none").mean(),
    "negative": lambda x, y: -cross_entropy(x, y),
    "class-weights": lambda x, y: cross_entropy(x, y, weight=CLASS_WEIGHTS),
    "class-weights-sum": lambda x, y: cross_entropy(x, y, weight=CLASS_WEIGHTS, reduction="sum"),
    "by-gather": by_gather,
    "in-parts": in_parts,
    "auxiliary": with_auxiliary,
    "half": lambda x, y: cross_entropy(x.bfloat16(), y).float(),
    "two-dimensions": lambda x, y: cross_entropy(x.t().unsqueeze(0), y.unsqueeze(0)),
}


def made(rows: int = 12) -> tuple[Tensor, Tensor]:
    torch.manual_seed(3)
    targets = torch.randint(0, CLASSES, (rows,))
    targets[::4] = IGNORED
    return torch.randn(rows, CLASSES, requires_grad=True), targets


def weights_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Each target's weight, from the gradient of its logits: w * (softmax - onehot)."""
    used = targets != IGNORED
    assert logits.grad is not None
    grad, shares = logits.grad[used], logits.detach().softmax(-1)[used]
    at = targets[used].unsqueeze(-1)
    return (grad.gather(-1, at) / (shares.gather(-1, at) - 1)).squeeze(-1)


def run(loss: Tensor) -> TokenWeights:
    weights = TokenWeights([loss])
    loss.backward()
    weights.remove()
    return weights


@pytest.mark.parametrize("name", LOSSES)
def test_the_weights_are_those_of_the_gradient(name: str) -> None:
    logits, targets = made()
    found = run(LOSSES[name](logits * 1, targets)).result()
    assert found is not None
    assert found.targets == (targets != IGNORED).sum()
    tolerance = 1e-2 if name in ("half", "auxiliary") else 1e-5
    assert found.sum == pytest.approx(float(weights_of(logits, targets).sum().abs()), rel=tolerance)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_label_smoothing_moves_no_weight(reduction: str) -> None:
    logits, targets = made()
    smooth = cross_entropy(logits * 1, targets, label_smoothing=0.2, reduction=reduction)
    found = run(smooth / 3).result()
    assert found is not None and found.targets == 9
    assert found.sum == pytest.approx((1 if reduction == "mean" else 9) / 3)


ELEMENTS: dict[str, Loss] = {
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "huber": functional.huber_loss,
    "smooth-l1": functional.smooth_l1_loss,
    "bce": functional.binary_cross_entropy_with_logits,
    "square": lambda x, y: (x - y).pow(2).mean(),
    "unreduced": lambda x, y: functional.mse_loss(x, y, reduction="none").mean(1).mean(),
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_elements_are_the_targets_of_other_losses(name: str) -> None:
    values = torch.rand(6, 5, requires_grad=True)
    found = run(ELEMENTS[name](values * 1, torch.ones(6, 5)) / 2).result()
    assert found is not None and found.targets == 30
    assert found.sum == pytest.approx(0.5)


def test_pairs_are_the_targets_of_a_preference_loss() -> None:
    logits, targets = made()
    chosen, _ = masked(logits * 1, targets)
    margins = chosen.view(2, 2, 3).sum(-1)
    found = run(-functional.logsigmoid(0.1 * (margins[0] - margins[1])).mean()).result()
    assert found is not None and (found.targets, found.sum) == (2, pytest.approx(1))


class Hidden(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        return x.sum()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> Tensor:
        return grads[0].expand(12, CLASSES)


def test_a_function_that_hides_the_loss_is_named() -> None:
    logits, _ = made()
    weights = run(Hidden.apply(logits * 1) / 2)  # type: ignore[no-untyped-call]
    assert weights.result() is None
    assert weights.unread == "HiddenBackward"


def test_a_loss_that_is_compiled_whole_is_named() -> None:
    logits, targets = made()
    compiled = torch.compile(cross_entropy, backend="aot_eager", fullgraph=True)
    weights = run(compiled(logits * 1, targets))
    assert weights.result() is None
    assert weights.unread == "CompiledFunctionBackward"


def test_a_saved_tensor_that_is_stored_elsewhere_is_not_fetched() -> None:
    logits, targets = made()
    fetched = []

    def fetch(packed: Tensor) -> Tensor:
        fetched.append(packed)
        return packed

    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, fetch):
        loss = cross_entropy(logits * 1, targets)
    weights = TokenWeights([loss])
    assert not fetched
    loss.backward()
    found = weights.result()
    assert found is not None and found.targets is None
    assert found.sum == pytest.approx(1)


class NllLoss(Hidden):
    """It has the name of torch's."""


def test_a_function_of_the_program_is_not_torch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, _ = made()
    weights = run(NllLoss.apply(logits * 1))  # type: ignore[no-untyped-call]
    assert (weights.result(), weights.unread) == (None, "NllLossBackward")


@pytest.mark.parametrize("order", [1, -1])
def test_a_loss_of_tokens_is_preferred(order: int) -> None:
    logits, targets = made()
    scores = logits * 1
    losses = [cross_entropy(scores, targets), functional.mse_loss(scores, torch.ones(12, CLASSES))]
    first, second = losses[::order]
    weights = run(first + second)
    found = weights.result()
    assert found is not None and (found.targets, found.sum) == (9, 1)
    assert weights.has_other_terms


def test_two_means_are_several_terms() -> None:
    logits, targets = made()
    whole = run(cross_entropy(logits * 1, targets))
    assert not whole.has_other_terms
    parts = run(cross_entropy(logits[:6] * 1, targets[:6]) + cross_entropy(logits * 1, targets))
    assert parts.has_other_terms
    assert not run(in_parts(logits * 1, targets)).has_other_terms


def test_the_elements_of_classes_are_not_targets() -> None:
    logits, _ = made()
    shares = torch.rand(12, CLASSES).softmax(-1)
    weights = run(-((logits * 1).log_softmax(-1) * shares).sum(-1).mean())
    assert (weights.result(), weights.unread) == (None, "LogSoftmax")


def test_a_graph_that_is_not_reached_is_let_go() -> None:
    logits, targets = made()
    scores = logits * 1
    weights = TokenWeights([cross_entropy(scores, targets)])
    held = weakref.ref(targets)
    weights.remove()
    del targets
    gc.collect()
    assert held() is None


def test_a_graph_is_kept_and_differentiated_again() -> None:
    logits, targets = made()
    loss = cross_entropy(logits * 1, targets)
    first = TokenWeights([loss])
    loss.backward(retain_graph=True)
    first.remove()
    second = TokenWeights([loss])
    (3 * loss).backward()
    assert [found and found.sum for found in (first.result(), second.result())] == [1, 3]


class Unreadable(torch.Tensor):
    """Fails in every operation."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise RuntimeError("not here")


def test_labels_that_cannot_be_read_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, targets = made()
    weights = TokenWeights([loss := cross_entropy(logits * 1, targets)])
    loss.backward()  # type: ignore[no-untyped-call]
    monkeypatch.setattr(token_weights, "count_plain_targets", lambda *_: None)
    monkeypatch.setattr(token_weights, "readable", lambda x: x.as_subclass(Unreadable))
    weights.remove()
    assert weights.result() is None


def test_a_penalty_on_weights_is_no_term() -> None:
    logits, targets = made()
    weight = torch.ones(3, requires_grad=True)
    penalty = 0.1 * (weight.pow(2).sum() + weight.norm())
    whole = run(cross_entropy(logits * 1, targets) + penalty)
    assert whole.has_penalty and not whole.has_other_terms
    assert whole.result() == (9, 1)
    alone = run(0.1 * weight.abs().sum())
    assert (alone.result(), alone.has_penalty, alone.has_terms) == (None, True, False)
    features = torch.ones(2, 3)
    probe = run((features @ weight.unsqueeze(1)).square().mean())
    assert (probe.has_penalty, probe.has_terms) == (False, True)


def test_labels_whose_memory_is_gone_are_not_counted() -> None:
    logits, targets = made()
    weights = TokenWeights([loss := cross_entropy(logits * 1, targets)])
    loss.backward()  # type: ignore[no-untyped-call]
    targets.untyped_storage().resize_(0)
    assert weights.result() == (None, 1)


def test_hooks_do_not_stay_on_a_graph_that_can_run_again() -> None:
    weight = torch.ones(4, requires_grad=True)
    total = (weight + 0).cumsum(0).sum()

    def left() -> int:
        gc.collect()
        module = token_weights.__name__
        return sum(type(one).__module__ == module for one in gc.get_objects())

    before = left()
    for _ in range(3):
        weights = TokenWeights([total], kept=False)
        total.backward()  # type: ignore[no-untyped-call]
        weights.remove()
        del weights
    assert left() == before


def test_labels_that_change_during_the_pass_are_not_counted() -> None:
    logits, targets = made()
    weights = TokenWeights([loss := cross_entropy(logits * 1, targets)])
    loss.backward()  # type: ignore[no-untyped-call]
    targets.fill_(IGNORED)
    assert weights.result() == (None, 1)


@pytest.mark.parametrize("roots", [[], [torch.ones(1)], [None]])
def test_without_a_graph_nothing_is_known(roots: list[Tensor | None]) -> None:
    assert TokenWeights(roots).result() is None


def test_the_walk_is_bounded() -> None:
    logits, targets = made()
    loss = cross_entropy(logits * 1, targets)
    for _ in range(NODES_MAX + 1):
        loss = loss + 1
    weights = run(loss)
    assert weights.result() is None
    in_many = sum(cross_entropy(x, y) for x, y in zip(logits, targets.clamp(min=0), strict=True))
    for _ in range(NODES_MAX):
        in_many = in_many + 1
    assert run(torch.as_tensor(in_many)).result() is None, "a part is not the whole"
    assert weights.unread == f"more than {NODES_MAX} nodes"


def test_no_target_has_no_weight() -> None:
    logits, targets = made()
    found = run(cross_entropy(logits * 1, torch.full_like(targets, IGNORED))).result()
    assert found is not None and found.targets == 0
