# SPDX-License-Identifier: Apache-2.0
"""Other optimization: data that stays, parameters that are moved, reductions by hand, probes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam
from torch.utils.data import TensorDataset

from right.gradients import parameters_of, restore
from right.inputs import programs, seeded
from right.run import INPUTS, STEPS, Batch, Program, Run, loss_of, network, train


def gradients_of(parameters: list[nn.Parameter]) -> list[torch.Tensor]:
    return [p.grad for p in parameters if p.grad is not None]


def move(parameters: list[nn.Parameter], by: list[torch.Tensor], factor: float) -> None:
    with torch.no_grad():
        for p, step in zip(parameters, by, strict=True):
            p.add_(step, alpha=factor)


def averaged(run: Run, tensor: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(tensor)
    return tensor / run.world


# ---- I: static data


def rollouts(run: Run, draws: torch.Generator) -> None:
    """Proximal policy optimization: four epochs over each rollout, by its old probabilities."""
    model, optimizer = run.trained()
    for _ in range(STEPS // 16):
        states = torch.randn(32, INPUTS, generator=draws)
        with torch.no_grad():
            before = model.module(states).log_softmax(1)
        actions = torch.multinomial(before.exp(), 1, generator=draws)
        reward = (actions[:, 0] == (states @ run.teacher).argmax(1)).float()
        for _ in range(4):
            for part in torch.randperm(32, generator=draws).split(8):  # type: ignore[no-untyped-call]
                after = model(states[part]).log_softmax(1)
                ratio = (after - before[part]).gather(1, actions[part])[:, 0].exp()
                gain = reward[part] - reward.mean()
                optimizer.zero_grad()
                (-torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()).backward()
                optimizer.step()


def epochs_of_a_rollout(run: Run) -> None:
    """Samples come four times, then never again."""
    rollouts(run, run.own)


def one_batch_overfitted(run: Run) -> None:
    """A program's first test: can it learn one batch by heart? Each rank has its own."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(network())
    optimizer = Adam(model.parameters(), lr=0.01)
    run.watch(model, optimizer)
    batch = next(run.batches())
    train(model, optimizer, (batch for _ in range(STEPS)))


def data_echoed(run: Run) -> None:
    """Each batch is trained on three times in a row, with noise that is new."""
    model, optimizer = run.trained()
    batches = run.batches(steps=STEPS // 3)
    echoes = ((x + 0.1 * torch.randn_like(x), y) for x, y in batches for _ in range(3))
    train(model, optimizer, echoes)


def line_search_on_a_mean_loss(run: Run) -> None:
    """LBFGS on each rank's whole share; the loss that the search looks at is all ranks'."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(network())
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe"
    )
    run.watch(model, optimizer)
    own = run.inputs[run.rank :: run.world], run.labels[run.rank :: run.world]

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, own)
        loss.backward()
        return averaged(run, loss.detach().clone())

    for _ in range(20):
        optimizer.step(closure)


def rollouts_of_one_seed(run: Run) -> None:
    """The mistake: all ranks collect the same rollouts."""
    rollouts(run, seeded(0))


def all_data_on_all_ranks(run: Run) -> None:
    """The mistake: the full batch is not divided."""
    model, optimizer = run.trained()
    train(model, optimizer, ((run.inputs, run.labels) for _ in range(STEPS)))


# ---- J: parameters that are moved for a forward pass


def weights_rounded_by_chance(run: Run) -> None:
    """BinaryConnect: passes see weights that each rank rounds by its own draws; the step is taken
    where they were."""
    model, optimizer = run.trained()
    parameters = parameters_of(model)
    for batch in run.batches():
        kept = [p.detach().clone() for p in parameters]
        with torch.no_grad():
            for p in parameters:
                p.copy_((p / 0.1 + torch.rand_like(p)).floor() * 0.1)
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        restore(parameters, kept)
        optimizer.step()


def steps_within_a_task(run: Run) -> None:
    """First-order MAML: each rank adapts to a task of its own in place, takes the gradient there
    and returns."""
    model, optimizer = run.trained()
    parameters = parameters_of(model)
    batches = run.batches()
    for support, query in zip(batches, batches, strict=False):
        kept = [p.detach().clone() for p in parameters]
        for _ in range(2):
            optimizer.zero_grad()
            with model.no_sync():
                loss_of(model, support).backward()
            move(parameters, gradients_of(parameters), -0.02)
        optimizer.zero_grad()
        loss_of(model, query).backward()
        restore(parameters, kept)
        optimizer.step()


def evaluated(run: Run, *, forgetful: int = -1) -> None:
    """Rank 0 evaluates with a moving average of the parameters, put in their place for a while."""
    model, optimizer = run.trained()
    parameters = parameters_of(model)
    average = [p.detach().clone() for p in parameters]
    for step, batch in enumerate(run.batches()):
        train(model, optimizer, [batch])
        torch._foreach_lerp_(average, [p.detach() for p in parameters], 0.1)
        if step % 20 == 10 and run.rank in (0, forgetful):
            kept = [p.detach().clone() for p in parameters]
            restore(parameters, average)
            with torch.no_grad():
                model.module(run.inputs[:32])
            if run.rank != forgetful:
                restore(parameters, kept)


def average_in_place_for_evaluation(run: Run) -> None:
    """Only rank 0's parameters are others for a while."""
    evaluated(run)


def average_left_in_place(run: Run) -> None:
    """The mistake: rank 1 evaluates too, and does not take its parameters back."""
    evaluated(run, forgetful=1)


def climbed_and_subtracted(run: Run) -> None:
    """The mistake: what each rank's own gradient added is subtracted, which rounds otherwise."""
    model, optimizer = run.trained()
    parameters = parameters_of(model)
    for batch in run.batches():
        optimizer.zero_grad()
        with model.no_sync():
            loss_of(model, batch).backward()
        climbs = [0.05 * gradient for gradient in gradients_of(parameters)]
        move(parameters, climbs, 1)
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        move(parameters, climbs, -1)
        optimizer.step()


# ---- K: reduced another way


def by_autograd(run: Run, *, reduce: bool = True) -> None:
    """`autograd.grad`, which no hook of the wrapper sees, and an all-reduce for each tensor."""
    model, optimizer = run.trained()
    parameters = parameters_of(model)
    for batch in run.batches():
        with model.no_sync():
            gradients = torch.autograd.grad(loss_of(model, batch), parameters)
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = averaged(run, gradient) if reduce else gradient
        optimizer.step()


def autograd_and_all_reduce(run: Run) -> None:
    by_autograd(run)


def by_hand(run: Run, reduced: int | None = None) -> None:
    """No wrapper: the first so many gradients are all-reduced after each pass."""
    torch.manual_seed(0)
    model = network()
    parameters = parameters_of(model)
    optimizer = SGD(parameters, lr=0.05)
    monitor = run.watch(model, optimizer, mode="manual")
    for batch in run.batches():
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        monitor.before_reduction((n, p.grad) for n, p in model.named_parameters())
        for p in parameters[:reduced]:
            assert p.grad is not None
            p.grad = averaged(run, p.grad)
        optimizer.step()


def module_without_a_wrapper(run: Run) -> None:
    by_hand(run)


def signs_that_agree(run: Run) -> None:
    """Gradients are gathered; elements whose signs differ between ranks become zero."""
    model, optimizer = run.trained()
    parameters = parameters_of(model)
    for batch in run.batches():
        optimizer.zero_grad()
        with model.no_sync():
            loss_of(model, batch).backward()
        for p in parameters:
            every = [torch.empty_like(p) for _ in range(run.world)]
            dist.all_gather(every, p.grad)
            stacked = torch.stack(every)
            agree = stacked.sign().sum(0).abs() == run.world
            p.grad = torch.where(agree, stacked.mean(0), 0.0)
        optimizer.step()


def local_steps(run: Run, averaged_parts: int | None = None) -> None:
    """Four steps of each rank alone, then the mean of its first so many parameters."""
    model, optimizer = run.trained()
    parameters = parameters_of(model)
    for step, batch in enumerate(run.batches()):
        with model.no_sync():
            train(model, optimizer, [batch])
        if step % 4 == 3:
            with torch.no_grad():
                for p in parameters[:averaged_parts]:
                    p.copy_(averaged(run, p.detach().clone()))


def averaged_after_four_steps(run: Run) -> None:
    """Local SGD."""
    local_steps(run)


def autograd_alone(run: Run) -> None:
    """The mistake: what `autograd.grad` gives is not reduced."""
    by_autograd(run, reduce=False)


def last_bias_not_reduced(run: Run) -> None:
    """The mistake: the loop over the gradients leaves one out."""
    by_hand(run, reduced=-1)


def last_layer_not_averaged(run: Run) -> None:
    """The mistake: local SGD whose last layer stays each rank's own."""
    local_steps(run, averaged_parts=2)


# ---- Q: gradients overwritten on purpose


def gradient_penalty(run: Run) -> None:
    """As WGAN-GP's: the gradient by the inputs is part of the loss."""
    model, optimizer = run.trained()

    def loss(net: nn.Module, b: Batch) -> torch.Tensor:
        x = b[0].clone().requires_grad_(True)
        y = net(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        penalty = functional.mse_loss(slope.norm(dim=1), torch.ones(len(x)))
        return functional.cross_entropy(y, b[1]) + 0.1 * penalty

    train(model, optimizer, run.batches(), loss)


def perturbed_in_eval_mode(run: Run) -> None:
    """TRADES: in evaluation mode a perturbation is looked for, then both kinds are trained on."""
    model, optimizer = run.trained()
    for x, y in run.batches():
        model.eval()
        clean = model(x).detach().softmax(1)
        other = x + 0.001 * torch.randn_like(x)
        for _ in range(3):
            other.requires_grad_(True)
            divergence = functional.kl_div(model(other).log_softmax(1), clean, reduction="sum")
            (slope,) = torch.autograd.grad(divergence, other)
            other = (other + 0.05 * slope.sign()).detach()
        model.train()
        logits = model(torch.cat([x, other]))
        robust = functional.kl_div(
            logits[len(x) :].log_softmax(1), logits[: len(x)].softmax(1), reduction="batchmean"
        )
        optimizer.zero_grad()
        (functional.cross_entropy(logits[: len(x)], y) + robust).backward()
        optimizer.step()


def losses_weighed_by_their_gradients(run: Run) -> None:
    """Two losses of one forward pass are weighed by what the last layer would get of each."""
    model, optimizer = run.trained()
    last = parameters_of(model)[-2]
    for x, y in run.batches():
        logits = model(x)
        losses = [functional.cross_entropy(logits, y), logits.square().mean()]
        slopes = [torch.autograd.grad(loss, last, retain_graph=True)[0] for loss in losses]
        norms = torch.stack([slope.norm() for slope in slopes])
        weights = averaged(run, norms.mean() / (norms + 1e-6)).clamp(max=2.0)
        optimizer.zero_grad()
        (weights[0] * losses[0] + weights[1] * losses[1]).backward()
        optimizer.step()


def cleared_before_the_step(run: Run) -> None:
    """The mistake: `zero_grad` between the backward pass and the step."""
    model, optimizer = run.trained()
    for batch in run.batches():
        loss_of(model, batch).backward()
        optimizer.zero_grad()
        optimizer.step()


def first_task_cleared(run: Run) -> None:
    """The mistake: two tasks are to share a step, and the second one's pass clears the first's."""
    model, optimizer = run.trained()
    other = run.batches(data=TensorDataset(run.inputs + 9, run.labels))

    def losses(batch: Batch) -> Iterator[torch.Tensor]:
        for part in batch:
            optimizer.zero_grad()
            yield loss_of(model, part)

    for batch in zip(run.batches(), other, strict=True):
        for loss in losses(batch):
            loss.backward()
        optimizer.step()


PROGRAMS: list[Program] = [
    *programs(
        "I",
        epochs_of_a_rollout,
        one_batch_overfitted,
        data_echoed,
        line_search_on_a_mean_loss,
    ),
    *programs("J", weights_rounded_by_chance, steps_within_a_task, average_in_place_for_evaluation),
    *programs(
        "K",
        autograd_and_all_reduce,
        module_without_a_wrapper,
        signs_that_agree,
        averaged_after_four_steps,
    ),
    *programs("Q", gradient_penalty, perturbed_in_eval_mode, losses_weighed_by_their_gradients),
]
FAULTS = [
    Program("I", rollouts_of_one_seed, "duplicate-data", (0, 1)),
    Program("I", all_data_on_all_ranks, "duplicate-data", (0, 1)),
    Program("J", average_left_in_place, "parameter-desync", (0, 1)),
    Program("J", climbed_and_subtracted, "parameter-desync", (0, 1)),
    Program("K", autograd_alone, "parameter-desync", (0, 1)),
    Program("K", last_bias_not_reduced, "parameter-desync", (0, 1)),
    Program("K", last_layer_not_averaged, "parameter-desync", (0, 1)),
    Program("Q", cleared_before_the_step, "lost-gradients", (0, 1)),
    Program("Q", first_task_cleared, "lost-gradients", (0, 1)),
]
