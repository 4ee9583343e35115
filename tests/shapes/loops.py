# SPDX-License-Identifier: Apache-2.0
"""Loops that do more than forward, backward and step, or do it in another order."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from torch import nn

from shapes.accumulation import loss_of
from shapes.training import WIDTH, Loss, Shape, Training, network


def evaluation_on_rank_0(run: Training) -> None:
    """Between steps, through the wrapper's inside; the others wait."""
    model, optimizer = run.trained(network(dropout=0.1))
    for place, x in enumerate(run.batches()):
        model.train()
        run.step(model, optimizer, loss_of(x))
        if place % 5 == 4:
            if run.rank == 0:
                model.eval()
                with torch.no_grad():
                    loss_of(x)(model.module)
            dist.barrier()


def caught_and_retried(run: Training) -> None:
    """An exception within a backward pass, on all workers; the batch is done again."""
    model, optimizer = run.trained(network())

    def broken(_gradient: torch.Tensor) -> None:
        raise RuntimeError("planted")

    for place, x in enumerate(run.batches()):
        if place % 6 == 3:
            optimizer.zero_grad()
            out = model(x)
            out.register_hook(broken)
            with contextlib.suppress(RuntimeError):
                out.square().mean().backward()
        run.step(model, optimizer, loss_of(x))


def sharpness_aware(run: Training) -> None:
    """SAM: a step up along the gradient, a second pass there, the step down from below."""
    model, optimizer = run.trained(network())
    for x in run.batches():
        run.expect(model, [loss_of(x)], use="unused")
        loss_of(x)(model).backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            moves = [0.05 * p.grad / norm for p in model.parameters()]
            for p, move in zip(model.parameters(), moves, strict=True):
                p.add_(move)
        optimizer.zero_grad()
        run.expect(model, [loss_of(x)])
        loss_of(x)(model).backward()
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves, strict=True):
                p.sub_(move)
        optimizer.step()
        optimizer.zero_grad()


def closures(run: Training) -> None:
    """LBFGS: several passes in a step; its closure returns a loss that all workers agree on."""
    model = run.wrap(network())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    run.watch(model, optimizer)
    for x in run.batches(count=run.steps):

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            run.expect(model, [loss_of(x)])
            optimizer.zero_grad()
            loss = loss_of(x)(model)
            loss.backward()
            agreed = loss.detach().clone()
            dist.all_reduce(agreed)
            return agreed / run.shape.world

        optimizer.step(closure)


def clipped_loss(
    states: torch.Tensor, actions: torch.Tensor, before: torch.Tensor, gains: torch.Tensor
) -> Loss:
    def loss(net: nn.Module) -> torch.Tensor:
        out = net(states)
        ratio = (out[:, :2].log_softmax(-1).gather(1, actions) - before).exp()
        clipped = torch.minimum(ratio * gains, ratio.clamp(0.8, 1.2) * gains)
        return 0.5 * (out[:, 2:] - gains).square().mean() - clipped.mean()

    return loss


def policy_gradient(run: Training) -> None:
    """PPO: a rollout without gradients, then some epochs over its parts."""
    torch.manual_seed(0)
    model = run.wrap(nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 3)))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    run.watch(model, optimizer)
    torch.manual_seed(run.rank)
    for states in run.batches(16, WIDTH, count=run.steps // 4):
        with torch.no_grad():
            before = model(states)[:, :2].log_softmax(-1)
            actions = before.exp().multinomial(1)
            rewards = states[:, :1] * (actions * 2 - 1)
        rollout = (states, actions, before.gather(1, actions), rewards - rewards.mean())
        for _ in range(2):
            for part in torch.randperm(16).chunk(2):
                ppo = clipped_loss(*(values[part] for values in rollout))
                run.expect(model, [ppo])
                optimizer.zero_grad()
                ppo(model).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()


def five_trainings(run: Training) -> None:
    """One after the other in a process, each with a wrapper of its own."""
    for _ in range(5):
        model, optimizer = run.trained(network())
        for x in run.batches(count=run.steps // 5):
            run.step(model, optimizer, loss_of(x))


SHAPES = [
    Shape("evaluation-on-rank-0", evaluation_on_rank_0),
    Shape("caught-and-retried", caught_and_retried),
    Shape("sharpness-aware", sharpness_aware),
    Shape("closures", closures),
    Shape("policy-gradient", policy_gradient),
    Shape("five-trainings", five_trainings, kept=7),
]
