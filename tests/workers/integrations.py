# SPDX-License-Identifier: Apache-2.0
"""Everything but plain DDP, trained without and with presum, beside a float64 oracle.

Where a framework trains, the oracle records what its model was given and computes the gradients
again with a copy that nobody has hooked.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, Dataset

import presum
from workers.launch import QUIET, main, token_rows, write_json
from workers.matrix import oracle

STEPS = 8
BATCH = 2
Outcome = tuple[str, list[dict[str, Any]]]
Row = Callable[[int, int, Path | None], Outcome]
# Not here: DeepSpeed, which reduces in its own engine; FSDP1, which is refused
# (python/tests/parallel/test_targets.py), and so Lightning's FSDPStrategy; the Trainer with FSDP2,
# where it uses DDP on CPUs.


def whole(parameter: Any) -> torch.Tensor:
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def digest(parameters: Any) -> str:
    state = b"".join(whole(p).detach().float().numpy().tobytes() for p in parameters)
    return hashlib.sha256(state).hexdigest()


def flat(gradients: Any) -> torch.Tensor:
    return torch.cat([g.flatten().double() for g in gradients])


def rows_of(rows: torch.Tensor, step: int, rank: int, world: int, count: int = 1) -> list[Any]:
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(step))
    return list(rows[order[rank::world][: BATCH * count]].split(BATCH))


# ---- loops of our own


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(256, 16), nn.Linear(16, 33), nn.Tanh(), nn.LayerNorm(33), nn.Linear(33, 256)
    )


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens)[:, :-1].flatten(0, 1)
    return nn.functional.cross_entropy(logits.float(), tokens[:, 1:].flatten())


def expect(
    twin: nn.Module, parameters: Any, inputs: list[Any], world: int, group: Any = None
) -> dict[str, Any]:
    """The oracle's values for a step from parameters as they are."""
    with torch.no_grad():
        for mine, theirs in zip(twin.parameters(), parameters, strict=True):
            mine.copy_(whole(theirs))
    twin.zero_grad()
    losses = []
    for tokens in inputs:
        loss = loss_of(twin, tokens)
        (loss / len(inputs)).backward()
        losses.append(loss.item())
    gradient = flat(p.grad for p in twin.parameters())
    return oracle(gradient, sum(losses) / len(losses) / len(inputs), world, group)


def watched(
    model: nn.Module, optimizer: Any, run: Path | None, **attach: Any
) -> contextlib.AbstractContextManager[Any]:
    """By presum, where there is a run to record."""
    if run is None:
        return contextlib.nullcontext()
    record = presum.Record(reduced_every=4, quiet=True)
    return presum.attach(model, optimizer=optimizer, run=run, record=record, **attach)


def fsdp2(
    rank: int,
    world: int,
    run: Path | None,
    *,
    micro: int = 1,
    hybrid: bool = False,
    low: bool = False,
) -> Outcome:
    model = small_model()
    mesh = None
    if hybrid:
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard"))
    policy = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16) if low else MixedPrecisionPolicy()
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    twin, expected, rows = small_model(), [], token_rows()
    with watched(model, optimizer, run):
        for step in range(STEPS):
            inputs = rows_of(rows, step, rank, world, micro)
            if run:
                expected.append(expect(twin, list(model.parameters()), inputs, world))
            optimizer.zero_grad()
            for index, tokens in enumerate(inputs):
                model.set_requires_gradient_sync(index == len(inputs) - 1)
                (loss_of(model, tokens) / len(inputs)).backward()
            optimizer.step()
    return digest(model.parameters()), expected


def by_hand(rank: int, world: int, run: Path | None, *, group: Any = None) -> Outcome:
    """A loop that sums gradients itself; with a group, in two data-parallel groups."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    members = dist.get_world_size(group)
    place = dist.get_rank(group)
    twin, expected, rows = small_model(), [], token_rows()
    with watched(model, optimizer, run, mode="manual", process_group=group) as monitor:
        for step in range(STEPS):
            inputs = rows_of(rows, step, place, members)
            if run:
                expected.append(expect(twin, list(model.parameters()), inputs, members, group))
            optimizer.zero_grad()
            for tokens in inputs:
                (loss_of(model, tokens) / len(inputs)).backward()
            named = [(name, p.grad) for name, p in model.named_parameters()]
            if monitor:
                monitor.before_reduction(named[:2])
                monitor.before_reduction(named[2:])
            for _, gradient in named:
                dist.all_reduce(gradient, group=group)
                gradient /= members
            if monitor:
                monitor.after_reduction(named)
            optimizer.step()
    return digest(model.parameters()), expected


def subgroups(rank: int, world: int, run: Path | None) -> Outcome:
    pairs = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
    return by_hand(rank, world, run, group=pairs[rank // 2])


def accelerated(rank: int, world: int, run: Path | None) -> Outcome:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(token_rows()[: STEPS * BATCH * world], batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    twin, expected = small_model(), []
    with watched(model, optimizer, run):
        for tokens in loader:
            if run:
                expected.append(expect(twin, list(model.parameters()), [tokens], world))
            optimizer.zero_grad()
            accelerator.backward(loss_of(model, tokens))
            optimizer.step()
    return digest(model.parameters()), expected


# ---- frameworks


class Records:
    """What a module was given in its training forwards, and its parameters then."""

    def __init__(self, module: nn.Module, twin: nn.Module) -> None:
        self.twin = twin
        self.given: list[tuple[dict[str, Any], Any, Any]] = []
        self._handle = module.register_forward_pre_hook(self._record, with_kwargs=True)

    def _record(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.is_grad_enabled():
            state = {name: whole(p).detach().clone() for name, p in module.named_parameters()}
            self.given.append((state, copy.deepcopy(args), copy.deepcopy(kwargs)))

    def gradient(
        self, part: list[tuple[dict[str, Any], Any, Any]], loss: Callable[..., torch.Tensor]
    ) -> torch.Tensor:
        """Of the sum of losses of some forwards."""
        self._handle.remove()
        twin = self.twin
        twin.train()
        with torch.no_grad():
            for name, p in twin.named_parameters():
                p.copy_(part[0][0][name])
        twin.zero_grad()
        for _, args, kwargs in part:
            loss(twin, *args, **kwargs).backward()
        return flat(p.grad for p in twin.parameters())


class Causal(Dataset[dict[str, Any]]):
    """Rows with prompts of uneven lengths masked."""

    def __init__(self) -> None:
        self.rows = token_rows()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        labels = self.rows[index].clone()
        labels[: index % 20] = -100
        return {"input_ids": self.rows[index], "labels": labels}


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
        )
    )


def cross_entropy_sum(model: nn.Module, input_ids: Any, labels: Any, **_: Any) -> torch.Tensor:
    logits = model(input_ids=input_ids).logits[:, :-1].flatten(0, 1)
    return nn.functional.cross_entropy(logits.float(), labels[:, 1:].flatten(), reduction="sum")


def expect_tokens(records: Records, world: int, micro: int) -> list[dict[str, Any]]:
    """Transformers divides the summed loss by the tokens of all workers, and by nothing else."""
    expected = []
    for first in range(0, len(records.given), micro):
        part = records.given[first : first + micro]
        local = sum(int((kw["labels"][:, 1:] != -100).sum()) for _, _, kw in part)
        everyone = torch.tensor(local)
        dist.all_reduce(everyone)
        factor = world / everyone.item()
        gradient = factor * records.gradient(part, cross_entropy_sum)
        with torch.no_grad():
            total = sum(cross_entropy_sum(records.twin, **kw).item() for _, _, kw in part)
        expected.append(oracle(gradient, total / local, world))
    return expected


def trainer(rank: int, world: int, run: Path | None, *, micro: int) -> Outcome:
    from transformers import Trainer, TrainingArguments

    model = llama()
    found = Trainer(
        model=model,
        args=TrainingArguments(**arguments(micro)),
        train_dataset=Causal(),
        callbacks=[presum.TransformersCallback(run=run, record=QUIET)] if run else [],
    )
    records = Records(model, llama())
    with quietly():
        found.train()
    return digest(model.parameters()), expect_tokens(records, world, micro) if run else []


def arguments(micro: int) -> dict[str, Any]:
    return {
        "output_dir": os.environ["PRESUM_TEST_OUT"],
        "per_device_train_batch_size": BATCH,
        "gradient_accumulation_steps": micro,
        "max_steps": STEPS,
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "bf16": False,
    }


def lightning(
    rank: int, world: int, run: Path | None, *, micro: int = 1, sharded: bool = False
) -> Outcome:
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import ModelParallelStrategy

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = small_model()

        def configure_model(self) -> None:
            if sharded:
                fully_shard(self.model, mesh=self.device_mesh["data_parallel"])

        def training_step(self, tokens: Any, index: int) -> torch.Tensor:
            return loss_of(self.model, tokens)

        def validation_step(self, tokens: Any, index: int) -> None:
            loss_of(self.model, tokens)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    rows = token_rows()[: STEPS * BATCH * world * micro]
    with quietly():
        found = pl.Trainer(
            **LIGHTNING,
            devices=world,
            strategy=ModelParallelStrategy(world, 1) if sharded else "ddp",
            max_epochs=1,
            accumulate_grad_batches=micro,
            callbacks=[presum.LightningCallback(run=run, record=QUIET)] if run else [],
        )
        records = Records(module.model, small_model())
        found.fit(module, DataLoader(rows, batch_size=BATCH), DataLoader(rows[:4], batch_size=2))
    expected = []
    for first in range(0, len(records.given) if run else 0, micro):
        part = records.given[first : first + micro]
        losses: list[float] = []

        def loss(model: nn.Module, tokens: Any, losses: list[float] = losses) -> torch.Tensor:
            value = loss_of(model, tokens)
            losses.append(value.item())
            return value / micro

        gradient = records.gradient(part, loss)
        expected.append(oracle(gradient, sum(losses) / len(losses), world))
    return digest(module.parameters()), expected


LIGHTNING = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    with warnings.catch_warnings(), open(os.devnull, "w") as nowhere:  # noqa: PTH123
        warnings.simplefilter("ignore")
        with contextlib.redirect_stdout(nowhere):
            yield


def rows_for(world: int) -> dict[str, Row]:
    """For 4 workers what 2 cannot form."""
    if world == 4:
        return {"hsdp": lambda *a: fsdp2(*a, hybrid=True), "subgroups": subgroups}
    return {
        "fsdp2": fsdp2,
        "fsdp2-accumulation": lambda *a: fsdp2(*a, micro=3),
        "fsdp2-bf16-reduction": lambda *a: fsdp2(*a, low=True),
        "by-hand": by_hand,
        "accelerate": accelerated,
        "trainer": lambda *a: trainer(*a, micro=2),
        "lightning": lambda *a: lightning(*a, micro=2),
        "lightning-fsdp2": lambda *a: lightning(*a, sharded=True),
    }


def work(rank: int, world: int, out: Path) -> None:
    os.environ["PRESUM_TEST_OUT"] = str(out / "trainer")
    os.environ["LOCAL_RANK"] = str(rank)
    for name, row in rows_for(world).items():
        plain, _ = row(rank, world, None)
        watched, expected = row(rank, world, out / name)
        if rank == 0:
            write_json(
                out / f"{name}.json", {"plain": plain, "watched": watched, "expected": expected}
            )


if __name__ == "__main__":
    main(work)
