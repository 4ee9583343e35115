# SPDX-License-Identifier: Apache-2.0
"""What becomes of gradients and parameters: steps of two passes, reductions by hand, clipping,
steps that are left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from right.run import CLASSES, INPUTS, STEPS, Batch, Program, Run, loss_of, network, train

Trained = tuple[DistributedDataParallel, Optimizer]


def parameters_of(model: nn.Module) -> list[nn.Parameter]:
    return [*model.parameters()]


def norm_of(parameters: list[nn.Parameter]) -> torch.Tensor:
    return torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm()


# ---- I: static data


def one_full_batch(run: Run) -> None:
    model, optimizer = run.trained()
    own = run.inputs[run.rank :: run.world], run.labels[run.rank :: run.world]
    train(model, optimizer, (own for _ in range(STEPS)))


def lbfgs(run: Run) -> None:
    """Several passes over one mini-batch in each step."""
    torch.manual_seed(0)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=4)
    run.watch(model, optimizer)
    for batch in run.batches(steps=STEPS // 3, batch_size=16):

        def closure(batch: Batch = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]


def replayed_batches(run: Run) -> None:
    """Free adversarial training: four steps on each batch, perturbed."""
    model, optimizer = run.trained()
    for x, y in run.batches(steps=STEPS // 4):
        delta = torch.zeros_like(x)
        for _ in range(4):
            delta.requires_grad_(True)
            optimizer.zero_grad()
            loss_of(model, (x + delta, y)).backward()
            assert delta.grad is not None
            delta = (delta + 0.1 * delta.grad.sign()).detach().clamp(-0.3, 0.3)
            optimizer.step()


def stuck_on_one_rank(run: Run) -> None:
    """The mistake: rank 1 keeps a batch, and does not see that its loader goes on."""
    model, optimizer = run.trained()
    kept = next(run.batches())
    train(model, optimizer, (kept if run.rank == 1 else batch for batch in run.batches()))


# ---- J: parameters that are moved for a forward pass


def climb(parameters: list[nn.Parameter]) -> list[torch.Tensor]:
    """SAM's first step. Returns what the parameters were."""
    kept = [p.detach().clone() for p in parameters]
    norm = norm_of(parameters)
    with torch.no_grad():
        for p in parameters:
            assert p.grad is not None
            p.add_(0.05 * p.grad / (norm + 1e-12))
    return kept


def restore(parameters: list[nn.Parameter], kept: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for p, before in zip(parameters, kept, strict=True):
            p.copy_(before)


def sharpness(run: Run, *, at_rest: bool = True) -> None:
    model, optimizer = run.trained()
    parameters = parameters_of(model)
    for batch in run.batches():
        optimizer.zero_grad()
        with model.no_sync():
            loss_of(model, batch).backward()
        kept = climb(parameters)
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        if at_rest:
            restore(parameters, kept)
        optimizer.step()


def sam_without_sync(run: Run) -> None:
    """Each rank climbs by its own gradient."""
    sharpness(run)


def weight_noise(run: Run) -> None:
    """Noise of each rank's own in every forward pass, taken back before the step."""
    model, optimizer = run.trained()
    parameters = parameters_of(model)
    for batch in run.batches():
        kept = [p.detach().clone() for p in parameters]
        with torch.no_grad():
            for p in parameters:
                p.add_(0.01 * torch.randn_like(p))
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        restore(parameters, kept)
        optimizer.step()


def virtual_adversarial_steps(run: Run) -> None:
    """A direction is looked for with passes whose gradients are cleared."""
    model, optimizer = run.trained()
    for x, y in run.batches():
        delta = (0.1 * torch.randn_like(x)).requires_grad_(True)
        with model.no_sync():
            (model(x + delta) - model(x).detach()).square().mean().backward()
        assert delta.grad is not None
        worst = functional.normalize(delta.grad)
        optimizer.zero_grad()
        (loss_of(model, (x, y)) + loss_of(model, (x + worst, y))).backward()
        optimizer.step()


def climbed_and_not_restored(run: Run) -> None:
    """The mistake: each rank stays where its own gradient has taken it."""
    sharpness(run, at_rest=False)


# ---- K: reduced another way


def combined(run: Run, limit: float, *, reduce: bool = True) -> None:
    """Gradients of two halves, taken apart under `no_sync`, limited and all-reduced by hand."""
    model, optimizer = run.trained()
    parameters = parameters_of(model)
    for x, y in run.batches():
        sums = [torch.zeros_like(p) for p in parameters]
        for half in zip(x.split(4), y.split(4), strict=True):
            optimizer.zero_grad()
            with model.no_sync():
                loss_of(model, half).backward()
            factor = min(1.0, limit / float(norm_of(parameters)))
            for total, p in zip(sums, parameters, strict=True):
                assert p.grad is not None
                total.add_(p.grad, alpha=factor)
        for total, p in zip(sums, parameters, strict=True):
            if reduce:
                dist.all_reduce(total)
            p.grad = total / run.world / 2
        optimizer.step()


def gradient_surgery(run: Run) -> None:
    combined(run, math.inf)


def clipped_halves(run: Run) -> None:
    """As differentially private training clips."""
    combined(run, 1.0)


def flat_all_reduce(run: Run) -> None:
    """One buffer under `no_sync`, as Horovod's users have it."""
    model, optimizer = run.trained()
    parameters = parameters_of(model)
    for batch in run.batches():
        optimizer.zero_grad()
        with model.no_sync():
            loss_of(model, batch).backward()
        flat = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
        dist.all_reduce(flat)
        parts = (flat / run.world).split([p.numel() for p in parameters])
        for part, p in zip(parts, parameters, strict=True):
            p.grad = part.view_as(p)
        optimizer.step()


def with_experts(run: Run, *, seed: int) -> None:
    """The middle layer is each rank's own, and all gradients are handed over."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *network(INPUTS, 32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, CLASSES)
    )
    torch.manual_seed(seed)
    expert = model[3]
    expert.reset_parameters()
    own = {*expert.parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    monitor = run.watch(model, optimizer, mode="manual")
    run.models.remove(model)  # ranks hold other ones
    for batch in run.batches():
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        gradients = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
        monitor.before_reduction(gradients)
        for p in model.parameters():
            if p not in own and p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad /= run.world
        monitor.after_reduction(gradients)
        optimizer.step()


def own_experts(run: Run) -> None:
    with_experts(run, seed=1 + run.rank)


def layer_that_is_not_reduced(run: Run) -> None:
    """The mistake: the loop over the parameters leaves out a layer, which began equal."""
    with_experts(run, seed=1)


def combined_and_not_reduced(run: Run) -> None:
    """The mistake: the all-reduce is missing."""
    combined(run, math.inf, reduce=False)


# ---- L: a norm of another type


def clipped(run: Run, clip: Callable[[list[nn.Parameter]], Any], *, before: bool = False) -> None:
    model, optimizer = run.trained()
    parameters = parameters_of(model)
    for batch in run.batches():
        optimizer.zero_grad()
        with model.no_sync() if before else torch.enable_grad():
            loss_of(model, batch).backward()
        clip(parameters)
        for p in parameters if before else ():
            dist.all_reduce(p.grad)
            p.grad = None if p.grad is None else p.grad / run.world
        optimizer.step()


def norm_of_one(run: Run) -> None:
    clipped(run, lambda ps: nn.utils.clip_grad_norm_(ps, 5.0, norm_type=1))


def largest_element(run: Run) -> None:
    clipped(run, lambda ps: nn.utils.clip_grad_norm_(ps, 0.1, norm_type=math.inf))


def norm_and_clip_apart(run: Run) -> None:
    def clip(parameters: list[nn.Parameter]) -> None:
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None], 3.0)
        nn.utils.clip_grads_with_norm_(parameters, 0.5, norm)

    clipped(run, clip)


def clipped_before_the_reduction(run: Run) -> None:
    """The mistake: each rank clips by the norm of its own gradient."""
    clipped(run, lambda ps: nn.utils.clip_grad_norm_(ps, 0.5), before=True)


# ---- M: steps that are left out on purpose


def scaled_by_hand(run: Run) -> None:
    """A loss scale that starts too high: all ranks leave the step out and halve it."""
    model, optimizer = run.trained()
    parameters, scale = parameters_of(model), 2.0**14
    for step, batch in enumerate(run.batches()):
        optimizer.zero_grad()
        (loss_of(model, batch) * scale).backward()
        if step % 25 == 7:
            for p in parameters:
                p.grad = torch.full_like(p, math.inf)
        if not torch.isfinite(norm_of(parameters)):
            scale /= 2
            continue
        for p in parameters:
            p.grad = None if p.grad is None else p.grad / scale
        optimizer.step()


def steps_dropped_for_their_norm(run: Run) -> None:
    model, optimizer = run.trained()
    for step, batch in enumerate(run.batches()):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        if step < 5 or norm < 1.2:
            optimizer.step()


def easy_batches_without_backward(run: Run) -> None:
    """All ranks agree which these are."""
    model, optimizer = run.trained()
    for step, batch in enumerate(run.batches()):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        if step < 20 or step % 4:
            loss.backward()
            optimizer.step()


def one_rank_leaves_steps_out(run: Run) -> None:
    """The mistake: a decision of each rank alone."""
    model, optimizer = run.trained()
    for step, batch in enumerate(run.batches()):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        if run.rank == 0 or step % 10 != 5:
            optimizer.step()


# ---- N: zero or still by design


def pruned(run: Run) -> None:
    """Weights and gradients are zero at the places of a mask."""
    model, optimizer = run.trained()
    shared = torch.Generator().manual_seed(2)
    for p in parameters_of(model):
        if p.dim() > 1:
            mask = (torch.rand(p.shape, generator=shared) > 0.7).float()
            p.data.mul_(mask)
            p.register_hook(lambda gradient, mask=mask: gradient * mask)
    train(model, optimizer, run.batches())


def last_layer_rests(run: Run) -> None:
    """DINO takes its last layer's gradients away for some epochs."""
    model, optimizer = run.trained()
    last = parameters_of(model.module[2])  # type: ignore[index]
    for step, batch in enumerate(run.batches()):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        if step < 90:
            for p in last:
                p.grad = None
        optimizer.step()


def frozen_by_its_rate(run: Run) -> None:
    """A parameter group whose learning rate is 0 for some time."""
    torch.manual_seed(0)
    model = DistributedDataParallel(network())
    groups = [{"params": part.parameters()} for part in (model.module[0], model.module[2])]  # type: ignore[index]
    optimizer = torch.optim.SGD(groups, lr=0.05)
    run.watch(model, optimizer)
    for step, batch in enumerate(run.batches()):
        optimizer.param_groups[0]["lr"] = 0.0 if step < 80 else 0.05
        train(model, optimizer, [batch])


def layer_of_no_optimizer(run: Run) -> None:
    """The mistake: the optimizer was not given the last layer."""
    torch.manual_seed(0)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.module[0].parameters(), lr=0.05)  # type: ignore[index]
    run.watch(model, optimizer)
    train(model, optimizer, run.batches())


# ---- O: a hook that changes the scale


def hooked(run: Run, combine: Callable[[torch.Tensor], torch.Tensor], lr: float = 0.05) -> None:
    model, optimizer = run.trained(lr=lr)

    def hook(_: object, bucket: Any) -> Any:
        work = dist.all_reduce(combine(bucket.buffer()), async_op=True)
        assert work is not None
        return work.get_future().then(lambda done: done.value()[0])

    hook.__annotations__.clear()  # DDP compares them with types, and these are texts
    model.register_comm_hook(None, hook)  # type: ignore[arg-type]
    train(model, optimizer, run.batches())


def sign_votes(run: Run) -> None:
    hooked(run, lambda flat: flat.sign(), lr=0.002)


def largest_tenth(run: Run) -> None:
    """Top-k without what compensates for it."""

    def kept(flat: torch.Tensor) -> torch.Tensor:
        least = flat.abs().topk(len(flat) // 10).values.min()
        return torch.where(flat.abs() >= least, 3 * flat / dist.get_world_size(), 0.0)

    hooked(run, kept)


def signs_of_one_length(run: Run) -> None:
    """EF-signSGD without its feedback: signs times the mean magnitude."""
    hooked(run, lambda flat: flat.sign() * flat.abs().mean() / dist.get_world_size())


def sum_instead_of_mean(run: Run) -> None:
    """The mistake: the hook does not divide."""
    hooked(run, lambda flat: flat.clone(), lr=0.01)


# ---- Q: gradients overwritten on purpose


def pgd(run: Run) -> None:
    """Three passes look for a perturbation; only the fourth is meant for the step."""
    model, optimizer = run.trained()
    for x, y in run.batches():
        delta = torch.zeros_like(x)
        for _ in range(3):
            delta.requires_grad_(True)
            optimizer.zero_grad()
            loss_of(model, (x + delta, y)).backward()
            assert delta.grad is not None
            delta = (delta + 0.1 * delta.grad.sign()).detach()
        train(model, optimizer, [(x + delta, y)])


def fast_gradient_sign(run: Run) -> None:
    """`autograd.grad` before the pass that is meant."""
    model, optimizer = run.trained()
    for x, y in run.batches():
        x.requires_grad_(True)
        (gradient,) = torch.autograd.grad(loss_of(model, (x, y)), x)
        train(model, optimizer, [((x + 0.1 * gradient.sign()).detach(), y)])


def probe_of_every_tenth_step(run: Run) -> None:
    """A gradient norm is measured, and cleared."""
    model, optimizer = run.trained()
    for step, batch in enumerate(run.batches()):
        if step % 10 == 0:
            optimizer.zero_grad()
            with model.no_sync():
                loss_of(model, batch).backward()
        train(model, optimizer, [batch])


def cleared_between_micro_batches(run: Run) -> None:
    """The mistake: `zero_grad` in each micro-batch of an accumulation."""
    model, optimizer = run.trained()
    halves: Iterator[Batch] = run.batches()
    for first, second in zip(halves, halves, strict=False):
        with model.no_sync():
            (loss_of(model, first) / 2).backward()
        optimizer.zero_grad()
        (loss_of(model, second) / 2).backward()
        optimizer.step()


PROGRAMS = [
    *(Program("I", p) for p in (one_full_batch, lbfgs, replayed_batches)),
    *(Program("J", p) for p in (sam_without_sync, weight_noise, virtual_adversarial_steps)),
    *(Program("K", p) for p in (gradient_surgery, clipped_halves, flat_all_reduce, own_experts)),
    *(Program("L", p) for p in (norm_of_one, largest_element, norm_and_clip_apart)),
    *(
        Program("M", p)
        for p in (scaled_by_hand, steps_dropped_for_their_norm, easy_batches_without_backward)
    ),
    *(Program("N", p) for p in (pruned, last_layer_rests, frozen_by_its_rate)),
    *(Program("O", p) for p in (sign_votes, largest_tenth, signs_of_one_length)),
    *(Program("Q", p) for p in (pgd, fast_gradient_sign, probe_of_every_tenth_step)),
]
FAULTS = [
    Program("I", stuck_on_one_rank, "overlapping-data"),
    Program("J", climbed_and_not_restored, "parameter-desync"),
    Program("K", combined_and_not_reduced, "no-reduction"),
    Program("K", layer_that_is_not_reduced, "no-reduction"),
    Program("L", clipped_before_the_reduction, "clip-norm"),
    Program("M", one_rank_leaves_steps_out, "parameter-desync"),
    Program("N", layer_of_no_optimizer, "no-progress"),
    Program("O", sum_instead_of_mean, "reduction-scale"),
    Program("Q", cleared_between_micro_batches, "lost-gradients"),
]
