# SPDX-License-Identifier: Apache-2.0
"""Every DDP configuration, trained without and with presum, beside a float64 oracle.

The oracle knows nothing of hooks: before each step it runs the same batches through a copy of the
module that is not wrapped, gathers everyone's gradient and computes the metrics in float64.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import presum
from workers.launch import QUIET, main, token_rows, write_json

STEPS = 20
BATCH = 2
REDUCED_EVERY = 10


@dataclass(frozen=True)
class Configuration:
    name: str
    ddp: dict[str, Any] = field(default_factory=dict)
    micro_batches: int = 1
    autocast: bool = False
    optional_branch: bool = False
    tied: bool = False
    frozen: bool = False
    sparse: bool = False
    later: bool = False  # a layer is added after attaching
    dtype: torch.dtype = torch.float32
    comm_hook: str = ""  # registered before attaching, or after it where a "+" comes first
    zero: bool = False  # ZeroRedundancyOptimizer
    compiled: bool = False
    scaler: bool = False
    audited: bool = False

    @property
    def lossy(self) -> bool:
        """Whether what is reduced is not quite what went in."""
        return bool(self.comm_hook) or self.dtype != torch.float32


CONFIGURATIONS = [
    Configuration("plain"),
    Configuration("accumulation", micro_batches=3),
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
    Configuration("tied", tied=True),
    Configuration("frozen", frozen=True),
    Configuration("sparse", sparse=True),
    Configuration("added-later", later=True),
    Configuration("bf16-parameters", dtype=torch.bfloat16),
    Configuration("fp16-hook-before", comm_hook="fp16"),
    Configuration("fp16-hook-after", comm_hook="+fp16"),
    Configuration("power-sgd", comm_hook="power"),
    Configuration("zero", zero=True),
    Configuration("compiled", compiled=True),
    Configuration("grad-scaler", scaler=True, micro_batches=2),
    Configuration("audited", audited=True, micro_batches=3),
    Configuration("audited-view", {"gradient_as_bucket_view": True}, audited=True, micro_batches=2),
    Configuration("audited-sparse", audited=True, sparse=True),
]
# Not here: SyncBatchNorm and bf16_compress_hook, which torch refuses on CPUs.


class Model(nn.Module):
    """A byte-level language model whose middle part may be skipped; returns its loss."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 32, sparse=configuration.sparse)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.optional = nn.Linear(32, 32)
        self.head = nn.Linear(32, 256)
        if configuration.tied:
            self.head.weight = self.embed.weight
        if configuration.frozen:
            self.layers.requires_grad_(False)
        self.to(configuration.dtype)

    def forward(self, tokens: torch.Tensor, use_optional: bool) -> dict[str, torch.Tensor]:
        hidden = self.layers(self.embed(tokens))
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
    model: nn.Module,
    configuration: Configuration,
    inputs: list[torch.Tensor],
    branch: list[bool],
    scaler: torch.amp.GradScaler | None = None,
) -> list[float]:
    losses = []
    for index, tokens in enumerate(inputs):
        last = index == len(inputs) - 1
        wait = hasattr(model, "no_sync") and not last
        with (
            model.no_sync() if wait else contextlib.nullcontext(),
            torch.autocast("cpu", torch.bfloat16, enabled=configuration.autocast),
        ):
            loss = model(tokens, branch[index])["loss"]
            mean = loss / len(inputs)
            (mean if scaler is None else scaler.scale(mean)).backward()
        losses.append(loss.item())
    return losses


def oracle(gradient: torch.Tensor, loss: float, world: int, group: Any = None) -> dict[str, Any]:
    mine = torch.cat([torch.tensor([loss], dtype=torch.float64), gradient])
    everyone = [torch.zeros_like(mine) for _ in range(world)]
    dist.all_gather(everyone, mine, group=group)
    losses, matrix = torch.stack(everyone).split([1, len(gradient)], dim=1)
    return metrics(losses.flatten(), matrix)


def metrics(losses: torch.Tensor, matrix: torch.Tensor) -> dict[str, Any]:
    """Of each worker's loss and gradient, in float64."""
    world = len(losses)
    norms = matrix.norm(dim=1)
    unit = matrix / norms[:, None]
    gram = matrix @ matrix.T
    cosines = unit @ unit.T
    pairs = world * (world - 1)
    return {
        "losses": losses.tolist(),
        "norms": norms.tolist(),
        "cosine_mean": ((cosines.sum() - world) / pairs).item() if pairs else None,
        "consistency": ((gram.sum() - gram.trace()) / (norms.sum() ** 2 - (norms**2).sum())).item(),
        "cosines": cosines.tolist(),
    }


def digest(model: nn.Module) -> str:
    """Of the parameters, or of this worker's parts of them."""
    held = (p.to_local() if isinstance(p, DTensor) else p for p in model.parameters())
    state = b"".join(p.detach().float().numpy().tobytes() for p in held)
    return hashlib.sha256(state).hexdigest()


def make_optimizer(configuration: Configuration, model: nn.Module) -> torch.optim.Optimizer:
    if configuration.sparse:
        return torch.optim.SGD(model.parameters(), lr=0.1)
    if configuration.zero:
        return ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.AdamW, lr=2e-3
        )
    return torch.optim.AdamW(model.parameters(), lr=2e-3)


def register_hook(model: DistributedDataParallel, name: str, *, after: bool) -> None:
    if not name or name.startswith("+") != after:
        return
    name = name.removeprefix("+")
    if name == "power":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2)
        state.start_powerSGD_iter = 2
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)


def train(
    configuration: Configuration, rows: torch.Tensor, rank: int, world: int, run: Path | None
) -> tuple[str, list[dict[str, Any]]]:
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(configuration), **configuration.ddp)
    optimizer = make_optimizer(configuration, model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if configuration.scaler else None
    register_hook(model, configuration.comm_hook, after=False)
    monitor = None
    if run is not None:
        monitor = presum.attach(
            model,
            optimizer=optimizer,
            run=run,
            audit=2 if configuration.audited else None,
            record=presum.Record(reduced_every=REDUCED_EVERY, quiet=True),
        )
    register_hook(model, configuration.comm_hook, after=True)
    if configuration.later:
        model.module.later = nn.Linear(32, 32)
    forward = torch.compile(model, backend="aot_eager") if configuration.compiled else model
    expected = []
    for step in range(STEPS):
        inputs = batches(rows, step, rank, world, configuration.micro_batches)
        branch = [True] * len(inputs)
        if configuration.optional_branch:
            branch = [(step + rank + i) % 3 != 0 for i in range(len(inputs))]
        if monitor is not None:
            twin = Model(configuration)
            twin.load_state_dict(model.module.state_dict(), strict=not configuration.later)
            twin.zero_grad(set_to_none=True)
            losses = backward(twin, configuration, inputs, branch)
            read = [p for p in twin.parameters() if p.grad is None or not p.grad.is_sparse]
            zeros = [p.grad if p.grad is not None else torch.zeros_like(p) for p in read]
            gradient = torch.cat([g.flatten().double() for g in zeros])
            expected.append(oracle(gradient, sum(losses) / len(losses), world))
        optimizer.zero_grad(set_to_none=True)
        backward(forward, configuration, inputs, branch, scaler)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    if monitor is not None:
        monitor.close()
    return digest(model), expected


def join(rows: torch.Tensor, rank: int, world: int, run: Path | None) -> str:
    """Uneven inputs: each rank has one step less than the one before it."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(CONFIGURATIONS[0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = run and presum.attach(model, optimizer=optimizer, run=run, record=QUIET)
    with model.join():
        for step in range(STEPS - rank):
            optimizer.zero_grad()
            backward(model, CONFIGURATIONS[0], batches(rows, step, rank, world, 1), [True])
            optimizer.step()
    if monitor:
        monitor.close()
    return digest(model)


def configurations_for(world: int) -> list[Configuration]:
    """For 3 workers, where 1/W is not exact, those that divide themselves and several buckets, and
    for each number the first, as metrics depend on it."""
    if world == 2:
        return CONFIGURATIONS
    if world != 3:
        return [CONFIGURATIONS[0]]
    divide = [c for c in CONFIGURATIONS if c.audited and not c.ddp]
    return [CONFIGURATIONS[0], *(c for c in CONFIGURATIONS if c.name == "small-buckets"), *divide]


def work(rank: int, world: int, out: Path) -> None:
    rows = token_rows()
    joined = {
        "plain": join(rows, rank, world, None),
        "watched": join(rows, rank, world, out / "join"),
    }
    if rank == 0:
        write_json(out / "join.json", joined)
    for configuration in configurations_for(world):
        plain, _ = train(configuration, rows, rank, world, None)
        watched, expected = train(configuration, rows, rank, world, out / configuration.name)
        if rank == 0:
            write_json(
                out / f"{configuration.name}.json",
                {"plain": plain, "watched": watched, "expected": expected},
            )


if __name__ == "__main__":
    main(work)
