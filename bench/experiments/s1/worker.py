# SPDX-License-Identifier: Apache-2.0
"""One rank: every run of the experiment, one after another, in one process group."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import presum
from experiments.progress import Progress
from experiments.s1.model import build_model
from experiments.s1.plan import Plan
from experiments.s1.settings import S1Run, make_sampler, rank_seed, seed_everything
from experiments.s1.template import collate

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Place(NamedTuple):
    """A rank, and the device of its model."""

    rank: int
    workers: int
    device: "torch.device"


def run_all(plan: Plan) -> None:
    """Perform all runs of ``plan`` as the rank in the environment (set as by torchrun)."""
    import torch.distributed as dist

    place = join_group()
    shown = place.rank == 0
    progress = Progress(runs=len(plan.runs), steps=len(plan.runs) * plan.steps, shown=shown)
    for run in plan.runs:
        progress.start(f"{run.mode} {run.setting}")
        seed = rank_seed(setting=run.setting, seed=plan.seed, rank=place.rank)
        stream = batches(plan, run.mode, place=place, seed=seed)
        model, loss = train(
            plan, stream, folder=plan.folder(run), seed=seed, place=place, step=progress.step
        )
        if plan.save_models and place.rank == 0:
            save(plan, run, model=model)
        progress.finish(f", last loss {loss:.3f}")
    progress.close()
    dist.barrier()
    dist.destroy_process_group()


def join_group() -> Place:
    """Join the process group as a deterministic, single-threaded rank."""
    import torch
    import torch.distributed as dist
    from transformers.utils import logging

    hide_bars: Any = logging.disable_progress_bar
    hide_bars()
    torch.set_num_threads(1)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    device, backend = choose_device(
        local_rank=int(os.environ["LOCAL_RANK"]),
        local_workers=int(os.environ["LOCAL_WORLD_SIZE"]),
        gpus=torch.cuda.device_count(),
    )
    if device != "cpu":
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    return Place(dist.get_rank(), dist.get_world_size(), torch.device(device))


def choose_device(*, local_rank: int, local_workers: int, gpus: int) -> tuple[str, str]:
    """The device and backend: NCCL with one GPU per rank; otherwise Gloo, on shared GPUs or the
    CPU."""
    if gpus >= local_workers:
        return f"cuda:{local_rank}", "nccl"
    return (f"cuda:{local_rank % gpus}" if gpus else "cpu"), "gloo"


def emulates_bf16() -> bool:
    """Whether ranks would train on an x86 processor without bf16 instructions. For other processors
    torch does not tell."""
    import platform

    import torch

    if platform.machine() not in ("x86_64", "AMD64"):
        return False

    supports = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return not supports and torch.cuda.device_count() == 0


def train(
    plan: Plan,
    stream: Iterable[dict[str, "Tensor"]],
    *,
    folder: Path,
    seed: int,
    place: Place,
    step: Callable[[], None],
    prepare: Callable[[Any], None] = lambda model: None,
) -> tuple[Any, float]:
    """Trains for ``plan.steps`` steps under presum. Returns the model and this rank's last loss.

    The initial model is the same on every rank and in every run. ``prepare`` receives it before
    training; ``step`` is called after each step.
    """
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model = build_model(
        plan.source, tokenizer=plan.tokenizer, max_length=plan.max_length, seed=plan.seed
    ).to(place.device)
    prepare(model)
    seed_everything(seed)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=plan.lr)
    with presum.attach(ddp, optimizer=optimizer, run=str(folder), record=presum.Record(quiet=True)):
        for batch in itertools.islice(stream, plan.steps):
            loss = train_step(ddp, batch, optimizer=optimizer, place=place, dtype=plan.dtype)
            step()
    return model, float(loss)


def batches(plan: Plan, mode: str, *, place: Place, seed: int) -> Iterator[dict[str, "Tensor"]]:
    """This rank's batches, epoch after epoch, without end."""
    from torch.utils.data import DataLoader

    sampler = make_sampler(
        plan.examples, mode=mode, seed=seed, rank=place.rank, workers=place.workers
    )
    loader: DataLoader[Any] = DataLoader(
        plan.examples,  # type: ignore[arg-type]
        batch_size=plan.batch,
        sampler=sampler,
        collate_fn=partial(collate, pad_id=plan.tokenizer.pad_token_id),
    )
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield from loader


def train_step(
    ddp: Any, batch: dict[str, "Tensor"], *, optimizer: Any, place: Place, dtype: str
) -> "Tensor":
    """Forward, backward with the reduction, optimizer step. Returns this rank's loss."""
    import torch

    inputs = {name: tensor.to(place.device) for name, tensor in batch.items()}
    optimizer.zero_grad()
    with torch.autocast(place.device.type, torch.bfloat16, enabled=dtype == "bf16"):
        loss: Tensor = ddp(**inputs).loss
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


def save(plan: Plan, run: S1Run, *, model: Any) -> None:
    """Write the model, its tokenizer and its card next to the complete run log."""
    from experiments.s1.card import model_card
    from experiments.s1.table import summarize

    folder = plan.folder(run)
    summary = summarize(presum.load(str(folder)).steps)
    model.save_pretrained(folder / "model")
    plan.tokenizer.save_pretrained(folder / "model")
    card = model_card(plan, run, summary=summary)
    (folder / "model" / "README.md").write_text(card, encoding="utf-8")
