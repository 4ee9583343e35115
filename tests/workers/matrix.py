# SPDX-License-Identifier: Apache-2.0
"""Every DDP configuration, trained without and with presum, beside a float64 oracle.

The oracle knows nothing of hooks: before each step it runs the same batches through a copy of the
module that is not wrapped, gathers everyone's gradient and computes the metrics in float64.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import presum
from workers.launch import main, token_rows, write_json

STEPS = 50
BATCH = 2
REDUCED_EVERY = 10


@dataclass(frozen=True)
class Configuration:
    name: str
    ddp: dict[str, Any] = field(default_factory=dict)
    micro_batches: int = 1
    autocast: bool = False
    optional_branch: bool = False
    checkpoint: bool = False  # reentrant activation checkpointing
    torch_operations: bool = False  # the pass for devices, on CPU tensors


CONFIGURATIONS = [
    Configuration("plain"),
    Configuration("accumulation", micro_batches=3),
    Configuration("bucket-view", {"gradient_as_bucket_view": True}),
    Configuration("bucket-view-accumulation", {"gradient_as_bucket_view": True}, micro_batches=2),
    Configuration("static-graph", {"static_graph": True}),
    Configuration(
        "unused-accumulation",
        {"find_unused_parameters": True},
        micro_batches=2,
        optional_branch=True,
    ),
    Configuration("bf16-autocast", autocast=True),
    Configuration("small-buckets", {"bucket_cap_mb": 0.02}),
    Configuration("reentrant-checkpoint", checkpoint=True),
    Configuration("torch-operations", micro_batches=2, torch_operations=True),
]


class Model(nn.Module):
    """A byte-level language model whose middle part may be skipped; returns its loss."""

    def __init__(self, *, checkpoint: bool) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.embed = nn.Embedding(256, 32)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.optional = nn.Linear(32, 32)
        self.head = nn.Linear(32, 256)

    def forward(self, tokens: torch.Tensor, use_optional: bool) -> dict[str, torch.Tensor]:
        hidden = self.embed(tokens)
        if self.checkpoint:
            hidden = checkpoint(self.layers, hidden, use_reentrant=True)
        else:
            hidden = self.layers(hidden)
        if use_optional:
            hidden = hidden + self.optional(hidden)
        logits = self.head(hidden)[:, :-1].flatten(0, 1)
        return {"loss": nn.functional.cross_entropy(logits.float(), tokens[:, 1:].flatten())}


def batches(rows: torch.Tensor, step: int, rank: int, world: int, count: int) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(1000 * step + 7)
    order = torch.randperm(len(rows), generator=random)
    mine = order[rank::world][: BATCH * count]
    return [rows[part] for part in mine.split(BATCH)]


def backward(
    model: nn.Module, configuration: Configuration, inputs: list[torch.Tensor], branch: list[bool]
) -> list[float]:
    losses = []
    for index, tokens in enumerate(inputs):
        last = index == len(inputs) - 1
        wait = isinstance(model, DistributedDataParallel) and not last
        with (
            model.no_sync() if wait else contextlib.nullcontext(),
            torch.autocast("cpu", torch.bfloat16, enabled=configuration.autocast),
        ):
            loss = model(tokens, branch[index])["loss"]
            (loss / len(inputs)).backward()
        losses.append(loss.item())
    return losses


def oracle(gradient: torch.Tensor, loss: float, world: int) -> dict[str, Any]:
    mine = torch.cat([torch.tensor([loss], dtype=torch.float64), gradient])
    everyone = [torch.zeros_like(mine) for _ in range(world)]
    dist.all_gather(everyone, mine)
    losses, matrix = torch.stack(everyone).split([1, len(gradient)], dim=1)
    norms = matrix.norm(dim=1)
    unit = matrix / norms[:, None]
    gram = matrix @ matrix.T
    cosines = unit @ unit.T
    pairs = world * (world - 1)
    return {
        "losses": losses.flatten().tolist(),
        "norms": norms.tolist(),
        "cosine_mean": ((cosines.sum() - world) / pairs).item() if pairs else None,
        "consistency": ((gram.sum() - gram.trace()) / (norms.sum() ** 2 - (norms**2).sum())).item(),
        "cosines": cosines.tolist(),
    }


def digest(model: nn.Module) -> str:
    state = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(state).hexdigest()


def train(
    configuration: Configuration, rows: torch.Tensor, rank: int, world: int, run: Path | None
) -> tuple[str, list[dict[str, Any]]]:
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(checkpoint=configuration.checkpoint), **configuration.ddp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    monitor = None
    if run is not None:
        monitor = presum.attach(
            model, optimizer=optimizer, run=run, reduced_every=REDUCED_EVERY, quiet=True
        )
        if configuration.torch_operations:
            monitor._collector._on_host = False
    expected = []
    for step in range(STEPS):
        inputs = batches(rows, step, rank, world, configuration.micro_batches)
        branch = [True] * len(inputs)
        if configuration.optional_branch:
            branch = [(step + rank + i) % 3 != 0 for i in range(len(inputs))]
        if monitor is not None:
            twin = copy.deepcopy(model.module)
            twin.zero_grad(set_to_none=True)
            losses = backward(twin, configuration, inputs, branch)
            zeros = [
                p.grad if p.grad is not None else torch.zeros_like(p) for p in twin.parameters()
            ]
            gradient = torch.cat([g.flatten().double() for g in zeros])
            expected.append(oracle(gradient, sum(losses) / len(losses), world))
        optimizer.zero_grad(set_to_none=True)
        backward(model, configuration, inputs, branch)
        optimizer.step()
    if monitor is not None:
        monitor.close()
    return digest(model), expected


def work(rank: int, world: int, out: Path) -> None:
    rows = token_rows()
    for configuration in CONFIGURATIONS:
        plain, _ = train(configuration, rows, rank, world, None)
        watched, expected = train(configuration, rows, rank, world, out / configuration.name)
        if rank == 0:
            write_json(
                out / f"{configuration.name}.json",
                {"plain": plain, "watched": watched, "expected": expected},
            )


if __name__ == "__main__":
    main(work)
