# SPDX-License-Identifier: Apache-2.0
"""Backward passes that fail, nest, are called in other ways, or reach a part of the model only."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from shapes.accumulation import loss_of
from shapes.training import WIDTH, Shape, Training, network, sgd


def raises_early(run: Training) -> None:
    """Of two passes the first one fails before it reaches a parameter; no forward comes between."""
    model, optimizer = run.trained(network())

    def broken(_gradient: torch.Tensor) -> None:
        raise RuntimeError("planted")

    for x in run.batches():
        optimizer.zero_grad()
        first, second = model(x), loss_of(-x)(model)
        first.register_hook(broken)
        with contextlib.suppress(RuntimeError):
            first.square().mean().backward()
        run.expect(model, [loss_of(-x)])
        second.backward()
        optimizer.step()


class Output:
    """A class of the program's own, in which nobody else finds a tensor."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


class Blocks(nn.Module):
    """Every parameter lies in a reentrant checkpoint, or before one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: torch.Tensor) -> Output:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return Output(x)


def checkpoints_without_an_output(run: Training) -> None:
    model, optimizer = run.trained(Blocks())
    for x in run.batches():
        run.expect(model, [lambda net, x=x: net(x).value.square().mean()])
        optimizer.zero_grad()
        model(x).value.square().mean().backward()
        optimizer.step()


class Heads(nn.Module):
    """Two towers that share nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = network(), network(out=3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.a(x), self.b(x)


def towers(run: Training) -> None:
    """One forward, a pass for each tower: DDP reduces in the second one."""
    model, optimizer = run.trained(Heads())
    for x in run.batches():
        run.expect(model, [lambda net, at=at, x=x: net(x)[at].square().mean() for at in (0, 1)])
        optimizer.zero_grad()
        for out in model(x):
            out.square().mean().backward()
        optimizer.step()


def engine_called_by_the_program(run: Training) -> None:
    """As Megatron's schedules do; every other step starts from what is there. What is
    differentiated is not known then."""
    model, optimizer = run.trained(network())
    engine: Any = Variable._execution_engine
    for place, x in enumerate(run.batches()):
        run.expect(model, [lambda net, x=x: net(x).square().mean()], loss_known=False)
        if place % 2 == 0:
            optimizer.zero_grad()
        loss = loss_of(x)(model)
        engine.run_backward(
            (loss,),
            (torch.ones_like(loss),),
            False,
            False,
            (),
            allow_unreachable=True,
            accumulate_grad=True,
        )
        optimizer.step()


def gradients_kept_elsewhere(run: Training) -> None:
    """Megatron's ``main_grad``: ``.grad`` is emptied after each pass."""
    model = network()
    run.models.append(model)
    optimizer = sgd(model)
    monitor = run.watch(model, optimizer, mode="manual")
    for x in run.batches():
        parts = [loss_of(x * factor) for factor in (1.0, 0.5, -2.0)]
        run.expect(model, parts)
        main = [torch.zeros_like(p) for p in model.parameters()]
        for loss in parts:
            loss(model).backward()
            for parameter, total in zip(model.parameters(), main, strict=True):
                total += parameter.grad
                parameter.grad = None
        named = dict(zip(dict(model.named_parameters()), main, strict=True))
        if monitor is not None:
            monitor.before_reduction(named)
        for parameter, total in zip(model.parameters(), main, strict=True):
            dist.all_reduce(total)
            parameter.grad = total / run.shape.world
        optimizer.step()
        optimizer.zero_grad()


def penalties_by_hand(run: Training) -> None:
    """``torch.autograd.grad`` through the model's output is no pass."""
    model = network()
    run.models.append(model)
    optimizer = sgd(model)
    monitor = run.watch(model, optimizer, mode="manual")
    for x in run.batches():
        run.expect(model, [loss_of(x), loss_of(-x)])
        optimizer.zero_grad()
        for loss in (loss_of(x), loss_of(-x)):
            value = loss(model)
            torch.autograd.grad(value, list(model.parameters()), retain_graph=True)
            value.backward()
        named = [(name, p.grad) for name, p in model.named_parameters()]
        if monitor is not None:
            monitor.before_reduction(named)
        for _, gradient in named:
            dist.all_reduce(gradient)
            gradient /= run.shape.world
        optimizer.step()


def attached_between(run: Training) -> None:
    """After the first forward, before its backward."""
    model = run.wrap(network())
    optimizer = sgd(model)
    for place, x in enumerate(run.batches()):
        run.expect(model, [loss_of(x)])
        optimizer.zero_grad()
        loss = loss_of(x)(model)
        if place == 0:
            run.watch(model, optimizer)
        loss.backward()
        optimizer.step()


class Twice(torch.autograd.Function):
    """Its backward pass lets other threads run."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        threading.Event().wait(0.002)
        return 2 * gradient


def in_two_threads(run: Training) -> None:
    """A model in each, with a group of its own."""
    groups = [dist.new_group(), dist.new_group()]
    models = [run.wrap(network(), process_group=group) for group in groups]
    optimizers = [sgd(model) for model in models]
    for model, optimizer, group in zip(models, optimizers, groups, strict=True):
        run.watch(model, optimizer, process_group=group)
    batches = [list(run.batches()), [x + 1 for x in run.batches()]]

    def train(place: int) -> None:
        model, optimizer = models[place], optimizers[place]
        for x in batches[place]:

            def loss(net: nn.Module, x: torch.Tensor = x) -> torch.Tensor:
                return Twice.apply(net(x).square().mean())  # type: ignore[no-any-return]

            run.expect(model, [loss])
            optimizer.zero_grad()
            loss(model).backward()
            optimizer.step()

    threads = [threading.Thread(target=train, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # torch keeps the model of a forward pass there, and leaves it where two threads were in one.
    DistributedDataParallel._active_ddp_module = None


SHAPES = [
    Shape("raises-early", raises_early),
    Shape("checkpoints-without-an-output", checkpoints_without_an_output),
    Shape("towers", towers),
    Shape(
        "engine-called-by-the-program",
        engine_called_by_the_program,
        findings=frozenset({"lost-gradients"}),
    ),
    Shape("gradients-kept-elsewhere", gradients_kept_elsewhere),
    Shape("penalties-by-hand", penalties_by_hand),
    Shape("attached-between", attached_between),
    Shape("in-two-threads", in_two_threads),
]
