# SPDX-License-Identifier: Apache-2.0
"""Other clipping, steps that are left out, gradients of zero, and hooks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer
from torch.utils.data import TensorDataset

from right.gradients import clipped, norm_of, parameters_of
from right.inputs import programs, seeded
from right.optimization import gradients_of
from right.run import CLASSES, INPUTS, ROWS, STEPS, Batch, Program, Run, loss_of, network, train

# ---- L: a norm of another type


def each_layer_by_its_norm(run: Run) -> None:
    """As LAMB's kin: every tensor is clipped alone."""

    def clip(parameters: list[nn.Parameter]) -> None:
        for p in parameters:
            nn.utils.clip_grad_norm_([p], 0.1)

    clipped(run, clip)


def by_value_then_by_norm(run: Run) -> None:
    """Elements are cut off first, so the norm is that of what is left."""

    def clip(parameters: list[nn.Parameter]) -> None:
        nn.utils.clip_grad_value_(parameters, 0.02)
        nn.utils.clip_grad_norm_(parameters, 0.1)

    clipped(run, clip)


def by_the_weights_norm(run: Run) -> None:
    """Adaptive clipping: each row of a gradient is held to a share of its weights' norm."""

    def clip(parameters: list[nn.Parameter]) -> None:
        for p in parameters:
            assert p.grad is not None
            rows = p.grad.reshape(len(p), -1)
            limit = 0.02 * p.detach().reshape(len(p), -1).norm(dim=1).clamp(min=1e-3)
            factor = (limit / rows.norm(dim=1).clamp(min=1e-6)).clamp(max=1.0)
            rows.mul_(factor[:, None])

    clipped(run, clip)


def sum_of_norms(run: Run) -> None:
    """The mistake: norms of layers are added up and taken for the norm of all."""

    def clip(parameters: list[nn.Parameter]) -> None:
        norm = torch.stack([g.norm() for g in gradients_of(parameters)]).sum()
        nn.utils.clip_grads_with_norm_(parameters, 0.1, norm)

    clipped(run, clip)


def clipped_while_accumulating(run: Run) -> None:
    """The mistake: what has been added up so far is clipped after each micro-batch."""
    model, optimizer = run.trained()
    batches = run.batches()
    for pair in zip(batches, batches, strict=False):
        optimizer.zero_grad()
        with model.no_sync():
            (loss_of(model, pair[0]) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        (loss_of(model, pair[1]) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()


# ---- M: steps that are left out on purpose


def autocast_with_a_scaler(run: Run) -> None:
    """fp16 gradients that overflow in the first steps, and whenever the scale has grown again."""
    model, optimizer = run.trained()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**21, growth_interval=40)
    for x, y in run.batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            logits = model(x)
        scaler.scale(functional.cross_entropy(logits.float(), y)).backward()
        scaler.step(optimizer)
        scaler.update()


def scaler_that_begins_high(run: Run) -> None:
    """torch's loss scaler, under which the loss itself overflows in the first steps."""
    model, optimizer = run.trained()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=40)
    for batch in run.batches():
        optimizer.zero_grad()
        scaler.scale(loss_of(model, batch) * 8).backward()
        scaler.step(optimizer)
        scaler.update()


def left_out_where_one_rank_fails(run: Run) -> None:
    """A batch whose loss is not finite on any rank is left out on all, before the backward pass."""
    model, optimizer = run.trained()
    for step, (x, y) in enumerate(run.batches()):
        spoiled = step in (31, 32, 77) and run.rank == step % run.world
        loss = loss_of(model, (x * (math.nan if spoiled else 1.0), y))
        finite = loss.detach().isfinite().int()
        dist.all_reduce(finite, dist.ReduceOp.MIN)
        if finite:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def halves_with_master_weights(run: Run) -> None:
    """fp16 for passes, fp32 for the step; a scale that overflowed is halved on all ranks."""
    torch.manual_seed(0)
    model = DistributedDataParallel(network().half())
    parameters = parameters_of(model)
    masters = [nn.Parameter(p.detach().float()) for p in parameters]
    optimizer, scale = SGD(masters, lr=0.05), 2.0**17
    run.watch(model, optimizer)
    for x, y in run.batches():
        model.zero_grad()
        (functional.cross_entropy(model(x.half()).float(), y) * scale).backward()
        if not all(bool(g.isfinite().all()) for g in gradients_of(parameters)):
            scale /= 2
            continue
        for master, gradient in zip(masters, gradients_of(parameters), strict=True):
            master.grad = gradient.float() / scale
        optimizer.step()
        with torch.no_grad():
            for p, master in zip(parameters, masters, strict=True):
                p.copy_(master)


def spikes_left_out(run: Run) -> None:
    """A step whose reduced norm is half more than usual is not taken."""
    model, optimizer = run.trained()
    usual = math.inf
    for batch in run.batches():
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        norm = float(norm_of(parameters_of(model)))
        if norm < 1.5 * usual:
            optimizer.step()
        usual = norm if usual == math.inf else 0.9 * usual + 0.1 * norm


def one_rank_overflows(run: Run) -> None:
    """The mistake: the guard hides that rank 1 alone makes what is not finite, again and again."""
    model, optimizer = run.trained()
    for step, (x, y) in enumerate(run.batches()):
        factor = math.inf if run.rank == 1 and step % 8 == 5 else 1.0
        optimizer.zero_grad()
        (loss_of(model, (x, y)) * factor).backward()
        if norm_of(parameters_of(model)).isfinite():
            optimizer.step()


def spikes_of_each_rank(run: Run) -> None:
    """The mistake: each rank leaves out steps by its own loss."""
    model, optimizer = run.trained()
    for step, batch in enumerate(run.batches()):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        if step < 10 or loss < 1.2:
            optimizer.step()


# ---- N: zero or still by design


class Adapted(nn.Module):
    """A layer that is kept, with a low-rank part beside it that begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.base = network().requires_grad_(False)
        self.down, self.up = nn.Linear(INPUTS, 4, bias=False), nn.Linear(4, CLASSES, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))  # type: ignore[no-any-return]


class Embedded(nn.Module):
    """Most rows of the table get no gradient in a step."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(2000, 16), nn.Linear(16, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(ids).mean(1))  # type: ignore[no-any-return]


def low_rank_adapters(run: Run) -> None:
    """What leads into a zero has no gradient at first."""
    model, optimizer = run.trained(Adapted)
    train(model, optimizer, run.batches())


def rare_words(run: Run) -> None:
    """Of a table of 2,000 rows a step uses 40."""
    model, optimizer = run.trained(Embedded)
    ids = torch.randint(2000, (ROWS, 5), generator=seeded(3))
    train(model, optimizer, run.batches(data=TensorDataset(ids, run.labels)))


def rate_from_zero_to_zero(run: Run) -> None:
    """Warm-up, decay, and a rest of the run at a rate of 0, as schedulers leave it."""
    model, optimizer = run.trained()
    total = STEPS - 40

    def rate(step: int) -> float:
        return min(step / 10, 1.0) * max(0.0, (1 + math.cos(math.pi * min(step / total, 1.0))) / 2)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for batch in run.batches():
        train(model, optimizer, [batch])
        schedule.step()


class StochasticRounding(Optimizer):
    """Steps in bf16 whose rounding is drawn, alike on all ranks."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "stochastic_rounding": True})
        self.draws = seeded(4)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                exact = p.float() - group["lr"] * p.grad.float()
                noise = torch.randint(0, 1 << 16, p.shape, dtype=torch.int32, generator=self.draws)
                bits = (exact.view(torch.int32) + noise) & -65536
                p.copy_(bits.view(torch.float32))


def in_bfloat16(run: Run, make: Callable[[Any], Optimizer]) -> None:
    """Steps that are smaller than what bf16 can tell apart."""
    torch.manual_seed(0)
    model = DistributedDataParallel(network().bfloat16())
    optimizer = make(model.parameters())
    run.watch(model, optimizer)

    def loss(net: nn.Module, b: Batch) -> torch.Tensor:
        return functional.cross_entropy(net(b[0].bfloat16()).float(), b[1])

    train(model, optimizer, run.batches(), loss)


def rounded_by_chance(run: Run) -> None:
    """In a step most elements stand still; over many, none does."""
    in_bfloat16(run, lambda parameters: StochasticRounding(parameters, lr=2e-4))


def rounded_away(run: Run) -> None:
    """The mistake: the same small steps with torch's rounding are lost."""
    in_bfloat16(run, lambda parameters: SGD(parameters, lr=2e-4))


def last_layer_rests_on_one_rank(run: Run) -> None:
    """The mistake: only rank 1 takes the last layer's gradients away."""
    model, optimizer = run.trained()
    for step, batch in enumerate(run.batches()):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        if run.rank == 1 and step < 90:
            for p in parameters_of(model)[2:]:
                p.grad = None
        optimizer.step()


def loss_is_zero_on_one_rank(run: Run) -> None:
    """The mistake: rank 1's targets are all masked."""
    model, optimizer = run.trained()

    def loss(net: nn.Module, b: Batch) -> torch.Tensor:
        mask = torch.full((len(b[1]),), float(run.rank != 1))
        return (functional.cross_entropy(net(b[0]), b[1], reduction="none") * mask).mean()

    train(model, optimizer, run.batches(), loss)


# ---- O: a hook that changes the scale


def with_hook(run: Run, hook: Callable[[Any, Any], Any], state: object = None) -> None:
    model, optimizer = run.trained()
    hook.__annotations__.clear()  # DDP compares them with types, and these are texts
    model.register_comm_hook(state, hook)
    train(model, optimizer, run.batches())


def half_compression(run: Run) -> None:
    """torch's own hook."""
    model, optimizer = run.trained()
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(model, optimizer, run.batches())


def low_rank_compression(run: Run) -> None:
    """PowerSGD from the tenth step on."""
    model, optimizer = run.trained()
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=10)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(model, optimizer, run.batches())


def summed(flat: torch.Tensor) -> Any:
    work = dist.all_reduce(flat, async_op=True)
    assert work is not None
    return work.get_future()


def eight_bits(run: Run) -> None:
    """Gradients are rounded to eight bits of their largest element before they are summed."""

    def hook(_: Any, bucket: Any) -> Any:
        flat = bucket.buffer()
        unit = flat.abs().max() / 127 + 1e-12
        rounded = (flat / unit).round() * unit / dist.get_world_size()
        return summed(rounded).then(lambda done: done.value()[0])

    with_hook(run, hook)


def random_quarter(run: Run) -> None:
    """All ranks send the same quarter of the elements, four times as large."""
    draws = seeded(11)

    def hook(_: Any, bucket: Any) -> Any:
        flat = bucket.buffer()
        kept = torch.rand(flat.shape, generator=draws) < 0.25
        return summed(4 * flat * kept / dist.get_world_size()).then(lambda done: done.value()[0])

    with_hook(run, hook)


def divided_twice(run: Run) -> None:
    """The mistake: the mean is divided by the number of ranks once more."""

    def hook(_: Any, bucket: Any) -> Any:
        flat = bucket.buffer() / dist.get_world_size()
        return summed(flat).then(lambda done: done.value()[0] / dist.get_world_size())

    with_hook(run, hook)


def one_rank_weighs_otherwise(run: Run) -> None:
    """The mistake: what comes back is rescaled by each rank's own count."""

    def hook(_: Any, bucket: Any) -> Any:
        flat = bucket.buffer() / dist.get_world_size()
        return summed(flat).then(lambda done: done.value()[0] * (1.0 + 0.5 * run.rank))

    with_hook(run, hook)


PROGRAMS: list[Program] = [
    *programs("L", each_layer_by_its_norm, by_value_then_by_norm, by_the_weights_norm),
    *programs(
        "M",
        autocast_with_a_scaler,
        scaler_that_begins_high,
        left_out_where_one_rank_fails,
        halves_with_master_weights,
        spikes_left_out,
    ),
    *programs("N", low_rank_adapters, rare_words, rate_from_zero_to_zero, rounded_by_chance),
    *programs("O", half_compression, low_rank_compression, eight_bits, random_quarter),
]
FAULTS = [
    Program("L", sum_of_norms, "clip-norm", (0, 1)),
    Program("L", clipped_while_accumulating, "lost-gradients", (0, 1)),
    Program("M", one_rank_overflows, "nonfinite-gradient", (1,)),
    Program("M", spikes_of_each_rank, "parameter-desync", (0, 1)),
    Program("N", rounded_away, "no-progress", (0, 1)),
    Program("N", last_layer_rests_on_one_rank, "parameter-desync", (0, 1)),
    Program("N", loss_is_zero_on_one_rank, "zero-gradient", (1,)),
    Program("O", divided_twice, "reduction-scale", (0, 1)),
    Program("O", one_rank_weighs_otherwise, "parameter-desync", (0, 1)),
]
