# SPDX-License-Identifier: Apache-2.0
"""Models that train one another, and losses that are made of losses."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from shapes.training import WIDTH, Shape, Training, network, sgd


def adversarial(run: Training) -> None:
    """A GAN as in DCGAN: the discriminator in two backward passes, the generator through it."""
    torch.manual_seed(0)
    generator = run.wrap(nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh()))
    judge = run.wrap(network())
    optimizers = {model: sgd(model) for model in (generator, judge)}
    for model, optimizer in optimizers.items():
        run.watch(model, optimizer)
    draws = torch.Generator().manual_seed(run.rank)

    def loss_of(x: torch.Tensor, target: float):  # type: ignore[no-untyped-def]
        def loss(net: nn.Module) -> torch.Tensor:
            out = net(x)
            return functional.binary_cross_entropy_with_logits(out, torch.full_like(out, target))

        return loss

    for place, real in enumerate(run.batches()):
        noise = torch.randn(4, 4, generator=draws)
        fake = generator(noise)
        optimizers[judge].zero_grad()
        for x, target in ((real, 1.0), (fake.detach(), 0.0)):
            run.expect(judge, [loss_of(x, target)], use="kept" if target else "used")
            loss_of(x, target)(judge).backward()
        optimizers[judge].step()
        optimizers[generator].zero_grad()
        run.expect(
            generator,
            [lambda net, noise=noise: loss_of(net(noise), 1.0)(judge.module)],
        )
        last = place + 1 == run.steps  # nobody sees what becomes of it
        run.expect(judge, [loss_of(fake.detach(), 1.0)], use="unknown" if last else "unused")
        loss_of(fake, 1.0)(judge).backward()
        optimizers[generator].step()


def adversarial_with_a_frozen_critic(run: Training) -> None:
    """A WGAN: the critic is frozen, and passed by DDP, while the generator trains."""
    torch.manual_seed(0)
    generator = run.wrap(nn.Sequential(nn.Linear(4, WIDTH)))
    critic = run.wrap(network())
    optimizers = {model: sgd(model, lr=0.02) for model in (generator, critic)}
    for model, optimizer in optimizers.items():
        run.watch(model, optimizer)
    draws = torch.Generator().manual_seed(run.rank)
    for real in run.batches():
        noise = torch.randn(4, 4, generator=draws)
        fake = generator(noise)

        def apart(
            net: nn.Module, made: torch.Tensor = fake, real: torch.Tensor = real
        ) -> torch.Tensor:
            return net(made.detach()).mean() - net(real).mean()

        def convincing(net: nn.Module, noise: torch.Tensor = noise) -> torch.Tensor:
            return -critic.module(net(noise)).mean()

        optimizers[critic].zero_grad()
        run.expect(critic, [apart])
        apart(critic).backward()
        optimizers[critic].step()
        optimizers[generator].zero_grad()
        critic.requires_grad_(False)
        run.expect(generator, [convincing])
        (-critic.module(fake).mean()).backward()
        critic.requires_grad_(True)
        optimizers[generator].step()


def one_optimizer_for_two(run: Training) -> None:
    models = [run.wrap(network()), run.wrap(network(out=2))]
    optimizer = torch.optim.Adam([p for model in models for p in model.parameters()], lr=1e-3)
    for model in models:
        run.watch(model, optimizer)
    for x in run.batches():
        losses = [lambda net, x=x: net(x).square().mean(), lambda net, x=x: net(x).abs().mean()]
        for model, loss in zip(models, losses, strict=True):
            run.expect(model, [loss])
        optimizer.zero_grad()
        for model, loss in zip(models, losses, strict=True):
            loss(model).backward()
        optimizer.step()


SHAPES = [
    Shape("adversarial", adversarial),
    Shape("adversarial-frozen-critic", adversarial_with_a_frozen_critic),
    Shape("one-optimizer-for-two", one_optimizer_for_two),
]
