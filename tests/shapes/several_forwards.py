# SPDX-License-Identifier: Apache-2.0
"""One backward pass through several forward passes, or several through one."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from shapes.training import Shape, Training, network


def cached_contrastive(run: Training) -> None:
    """GradCache: embedded without a graph first, then once more in a hook of the loss."""
    model, optimizer = run.trained(network(out=6))
    for x in run.batches():

        def loss_of(rows: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(rows @ rows.T, torch.arange(len(rows)))

        run.expect(model, [lambda net, x=x: loss_of(net(x))])
        with torch.no_grad():
            rows = model.module(x).requires_grad_()
        (by_row,) = torch.autograd.grad(loss_of(rows), rows)
        loss = loss_of(rows.detach()).requires_grad_()

        def again(scale: torch.Tensor, x: torch.Tensor = x, by_row: torch.Tensor = by_row) -> None:
            with torch.enable_grad():
                (model(x) * by_row * scale).sum().backward()

        loss.register_hook(again)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class WithLoss(nn.Module):
    """Returns a loss of its own, as a model of transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = network(out=2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.inside(x)
        return {"loss": logits.square().mean(), "logits": logits}


def two_losses_inside(run: Training) -> None:
    """Each forward has a loss, and what is trained is made of both."""
    model, optimizer = run.trained(WithLoss())
    for x in run.batches():

        def loss_of(net: nn.Module, x: torch.Tensor = x) -> torch.Tensor:
            return net(x)["loss"] + 0.5 * net(x.roll(1, 1))["loss"]

        run.step(model, optimizer, loss_of)


def retained_graph(run: Training) -> None:
    """Two backward passes over one graph: DDP reduces in the first one only, so the second is a
    step of its own that was not reduced."""
    model, optimizer = run.trained(network(out=2))
    for x in run.batches():

        def first(net: nn.Module, x: torch.Tensor = x) -> torch.Tensor:
            return net(x)[:, 0].square().mean()

        def second(net: nn.Module, x: torch.Tensor = x) -> torch.Tensor:
            return net(x)[:, 1].square().mean()

        run.expect(model, [first], use="kept")
        run.expect(model, [second], reduced=False)
        optimizer.zero_grad()
        out = model(x)
        out[:, 0].square().mean().backward(retain_graph=True)
        out[:, 1].square().mean().backward()
        optimizer.step()


class OptimizedByHand(nn.Module):
    """Its forward runs the backward pass too, as under Lightning's manual optimization."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = network()
        self.ddp: list[nn.Module] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.inside(x).square().mean()
        for ddp in self.ddp:
            ddp.require_forward_param_sync = True
            ddp.reducer._rebuild_buckets()
            ddp.reducer.prepare_for_backward([])
            loss.backward()
            ddp.require_backward_grad_sync = False
        return loss.detach() if self.ddp else loss


def within_forward(run: Training) -> None:
    model, optimizer = run.trained(OptimizedByHand())
    for x in run.batches():
        model.module.ddp.clear()
        run.expect(model, [lambda net, x=x: net(x)])
        optimizer.zero_grad()
        model.module.ddp.append(model)
        model(x)
        model.require_backward_grad_sync = True
        optimizer.step()
    model.module.ddp.clear()


SHAPES = [
    Shape("within-forward", within_forward),
    Shape("cached-contrastive", cached_contrastive),
    Shape("two-losses-inside", two_losses_inside),
    Shape("retained-graph", retained_graph, findings=frozenset({"no-reduction"})),
]
