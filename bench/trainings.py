# SPDX-License-Identifier: Apache-2.0
"""The trainings that benchmarks time, with and without presum, and what people write today
instead."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import presum
from presum._core import simd_target
from presum.transport.session import open_sessions

TOKENS = (4, 256)  # micro-batch size and length: 1,024 tokens per step
VOCABULARY = 2048
WAYS = ("ddp", "fsdp2", "by-hand")


class Model(nn.Module):
    """A causal language model of about 1.6 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 192)
        layer = nn.TransformerEncoderLayer(192, 4, 512, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(192, VOCABULARY, bias=False)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        mask = nn.Transformer.generate_square_subsequent_mask(input_ids.shape[1])
        logits = self.head(self.layers(self.embed(input_ids), mask=mask, is_causal=True))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())}


class Scales(nn.Module):
    """Many parameters of 64 elements with almost no arithmetic, to measure the cost per
    parameter."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.scales = nn.ParameterList(torch.randn(64) for _ in range(count))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        data = (input_ids + labels).float().flatten()[:64] / VOCABULARY
        return {"loss": (torch.stack(list(self.scales)) @ data).square().mean()}


def wrapped(way: str, parameters: int) -> nn.Module:
    if parameters:
        return DistributedDataParallel(Scales(parameters))
    model = Model()
    if way == "fsdp2":
        for layer in model.layers.layers:
            fully_shard(layer)
        fully_shard(model)
        return model
    return model if way == "by-hand" else DistributedDataParallel(model)


class Training:
    """One rank's model and its training step."""

    def __init__(self, dtype: str = "bf16", way: str = "ddp", parameters: int = 0) -> None:
        torch.manual_seed(0)
        self.bf16 = dtype == "bf16"
        self.way = way
        self.processor = 0.0
        self.model = wrapped(way, parameters)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        torch.manual_seed(1 + dist.get_rank())  # different tokens on each rank

    def step(self) -> float:
        """The seconds of a step after a barrier. ``processor`` gets the processor time of all
        threads."""
        tokens = torch.randint(0, VOCABULARY, TOKENS)
        dist.barrier()
        began, processor = time.perf_counter(), time.process_time()
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            loss = self.model(input_ids=tokens, labels=tokens)["loss"]
        loss.backward()
        if self.way == "by-hand":
            self.reduce()
        self.optimizer.step()
        self.processor = time.process_time() - processor
        return time.perf_counter() - began

    def reduce(self) -> None:
        named = [(n, p.grad) for n, p in self.model.named_parameters() if p.grad is not None]
        self.before_reduction(named)
        flat = torch.cat([gradient.view(-1) for _, gradient in named])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        parts = torch.split(flat, [gradient.numel() for _, gradient in named])
        for (_, gradient), part in zip(named, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        self.after_reduction(named)

    def before_reduction(self, named: list[tuple[str, torch.Tensor]]) -> None:
        """Called with this rank's own gradients."""

    def after_reduction(self, named: list[tuple[str, torch.Tensor]]) -> None:
        """Called with the reduced gradients."""


class WatchedTraining(Training):
    """A training with presum's monitor, with default settings except `every`."""

    def __init__(
        self,
        run: Path,
        dtype: str = "bf16",
        way: str = "ddp",
        parameters: int = 0,
        every: int = 1,
    ) -> None:
        super().__init__(dtype, way, parameters)
        self.monitor = presum.attach(
            self.model,
            optimizer=self.optimizer,
            run=run,
            mode="manual" if way == "by-hand" else "passive",
            record=presum.Record(every=every),
        )
        (recording,) = open_sessions()[0].recordings
        self.recorder: Any = getattr(recording, "recorder")  # noqa: B009
        self.watched = True

    def watch(self, on: bool) -> None:
        """Register or remove presum's hooks."""
        self.recorder.unhook()
        self.watched = on
        if on:
            self.recorder.hook()

    def before_reduction(self, named: list[tuple[str, torch.Tensor]]) -> None:
        if self.watched:
            self.monitor.before_reduction(named)

    def after_reduction(self, named: list[tuple[str, torch.Tensor]]) -> None:
        if self.watched:
            self.monitor.after_reduction(named)


class Norms:
    """What people write: each parameter's norm before the reduction, as a Python number, and one
    all-gather of all ranks' norms per step."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._norms: list[float] = []
        self._handles: list[Any] = []

    def watch(self, on: bool) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if on:
            self._norms = []
            self._handles = [
                p.register_post_accumulate_grad_hook(self._norm)  # type: ignore[no-untyped-call]
                for p in self._parameters
            ]

    def _norm(self, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        self._norms.append(parameter.grad.norm().item())
        if len(self._norms) == len(self._parameters):
            own = torch.tensor(self._norms)
            everyone = [torch.empty_like(own) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, own)
            self._norms = []


class SquaresTraining(Training):
    """What people write: a communication hook that squares each bucket before the reduction. Such a
    hook cannot be removed, so it uses a separate model."""

    def __init__(self, dtype: str, parameters: int = 0) -> None:
        super().__init__(dtype, "ddp", parameters)
        assert isinstance(self.model, DistributedDataParallel)
        self.model.register_comm_hook(Squares(), squares_hook)


class Squares:
    """The state of the communication hook."""

    def __init__(self) -> None:
        self.of_buckets: list[float] = []

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        self.of_buckets.append(buffer.square().sum().item())
        if bucket.is_last():
            self.of_buckets.clear()
        buffer /= dist.get_world_size()
        future = dist.all_reduce(buffer, async_op=True).get_future()
        return future.then(lambda done: done.value()[0])  # type: ignore[no-any-return]


def squares_hook(state: Any, bucket: GradBucket) -> Any:
    return state.reduce(bucket)


squares_hook.__annotations__.clear()  # DDP compares them with types, but these are strings


def join_group(rank: int, world: int, port: int) -> None:
    """Pin this rank to one core and join the default group."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    dist.init_process_group("gloo")


def processor() -> str:
    """The processor's name, and the instruction set that presum's kernels use."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    found = {key.strip(): value.strip() for key, value in fields.items()}
    name = found.get("model name", "unknown processor")
    model = f"family {found.get('cpu family', '?')} model {found.get('model', '?')}"
    return f"{name} ({model}), {os.cpu_count()} cores, {simd_target()}"
