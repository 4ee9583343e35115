# SPDX-License-Identifier: Apache-2.0
"""Measures presum's overhead: transformers of 0.1 and 1 billion parameters in bf16, one rank,
alternating steps with and without presum's hooks; and the time inside hooks and kernels."""

from __future__ import annotations

import contextlib
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import presum
from gpu_check.place import Findings, Place, alone
from presum._core import ParameterHook
from presum.torch_events.hooks import Hook, OutputHook
from presum.transport.session import open_sessions

SIZES = {"0.1B": (768, 12, 12), "1B": (2048, 16, 16)}  # width, layers, heads
DRY = {"tiny": (64, 2, 2)}
VOCABULARY, LENGTH, BATCH = 32_000, 1024, 16  # 16,384 tokens per step
BLOCKS, WARM_UP, SHARE = 30, 5, 0.005


class Model(nn.Module):
    """A causal language model."""

    def __init__(self, width: int, layers: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(
            tokens.shape[1], tokens.device, self.head.weight.dtype
        )
        logits = self.head(self.layers(self.embed(tokens), mask=mask, is_causal=True))
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class Training:
    """One model, with presum's hooks on or off."""

    def __init__(self, place: Place, size: tuple[int, int, int], run: Path) -> None:
        vocabulary, self._shape = (500, (2, 32)) if place.dry else (VOCABULARY, (BATCH, LENGTH))
        model = Model(*size, vocabulary).to(place.device, torch.bfloat16)
        self.parameters = sum(p.numel() for p in model.parameters())
        self._model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4)
        self._vocabulary, self._place, self.dry = vocabulary, place, place.dry
        self.monitor = presum.attach(
            self._model, optimizer=self._optimizer, run=run, record=presum.Record(quiet=True)
        )
        ((recording,),) = [session.recordings for session in open_sessions()]
        self._recorder: Any = getattr(recording, "recorder")  # noqa: B009

    def watch(self, *, on: bool) -> None:
        self._recorder.unhook()
        if on:
            self._recorder.hook()

    def step(self) -> float:
        tokens = torch.randint(self._vocabulary, self._shape, device=self._place.device)
        self._wait()
        began = time.perf_counter()
        self._model(tokens).backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        if not self._place.dry:
            torch.cuda.synchronize()


def check(place: Place, findings: Findings) -> None:
    alone(place)
    for name, size in (DRY if place.dry else SIZES).items():
        with tempfile.TemporaryDirectory() as folder, place.kernels():
            _one(place, findings, name, Training(place, size, Path(folder)))
        if not place.dry:
            torch.cuda.empty_cache()
    dist.destroy_process_group()


def _one(place: Place, findings: Findings, name: str, training: Training) -> None:
    for _ in range(WARM_UP):
        training.step()
    blocks = 4 if place.dry else BLOCKS
    ratios = sorted(_block(training, random.Random(at)) for at in range(blocks))
    middle = [ratios[len(ratios) // 4], statistics.median(ratios), ratios[-len(ratios) // 4]]
    tokens = "" if place.dry else f", {BATCH * LENGTH:,} tokens a step"
    findings.say(
        f"{name} ({training.parameters:,} parameters{tokens}): with presum over without, quartiles",
        " ".join(f"{x:.4f}" for x in middle),
    )
    training.watch(on=True)
    step, hooks = _in_hooks(training)
    share = hooks / step
    ok = place.dry or share <= SHARE
    findings.say(f"{name}: share of the step inside hooks, on the host", round(share, 5), ok=ok)
    if not place.dry:
        kernels = _in_kernels(training, step)
        ok = 0 < kernels <= SHARE  # 0: nothing was traced
        findings.say(f"{name}: share inside kernels", round(kernels, 5), ok=ok)
    training.monitor.close()


def _block(training: Training, order: random.Random) -> float:
    """The ratio of the time with hooks to the time without: two steps of each, in a random,
    mirrored order."""
    half = order.sample([True, False], 2)
    times: dict[bool, float] = {True: 0.0, False: 0.0}
    for on in half + half[::-1]:
        training.watch(on=on)
        times[on] += training.step()
    return times[True] / times[False]


def _in_hooks(training: Training) -> tuple[float, float]:
    """The median seconds of a step, and those inside presum's hooks."""
    spent, inside = [0.0], [0]

    def timed(call: Any) -> Any:
        def timed_call(hook: Hook, *args: Any, **kwargs: Any) -> None:
            began = time.perf_counter()
            inside[0] += 1
            call(hook, *args, **kwargs)
            inside[0] -= 1
            if inside[0] == 0:
                spent[0] += time.perf_counter() - began

        return timed_call

    steps, hooks = [], []
    with contextlib.ExitStack() as stack:
        for kind in (Hook, OutputHook, ParameterHook):
            stack.enter_context(mock.patch.object(kind, "__call__", timed(kind.__call__)))
        for _ in range(4 if training.dry else 20):
            spent[0] = 0.0
            steps.append(training.step())
            hooks.append(spent[0])
    return statistics.median(steps), statistics.median(hooks)


def _in_kernels(training: Training, step: float) -> float:
    rounds = 5
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as traced:
        for _ in range(rounds):
            training.step()
    ours = [event for event in traced.key_averages() if event.key.startswith("presum_")]
    spent: float = sum(event.self_device_time_total for event in ours)
    return spent / 1e6 / rounds / step
