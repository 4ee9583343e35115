# SPDX-License-Identifier: Apache-2.0
"""What default monitoring costs a training step: a ratio measured side by side, with its interval.

Separate processes cannot resolve 1 % on a noisy machine. So two DDP workers train one model, and
from step to step presum's hooks are registered (on) or removed (off, and off' as a control), in an
order that a seed common to both workers shuffles and each block mirrors. Estimator: 20 %-trimmed
mean over blocks of the log ratio of step times, with a bootstrap interval over blocks.
Pass: the upper bound is at most 1 %, the control's interval holds 0 and its half-width is at most
0.5 %. Fail: the lower bound is above 1 %. Else inconclusive.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import random
import tempfile
import threading
import time
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import presum
from presum._core import ParameterHook
from presum.experiments.launch import free_port
from presum.fingerprints.families import Families
from presum.parallel.ddp_hook import FailureGuard
from presum.torch_events.hooks import Hook
from presum.transport.session import open_sessions

WORKERS = 2
TOKENS = (4, 256)  # micro-batch and length: 1,024 tokens a step
VOCABULARY = 2048
BACKGROUND_THREADS = ("presum-aggregator", "presum-sender")
MODES = ("off", "off'", "on")
ATTACHED = {"hook": "hook", "by-hand": "manual"}  # Trainer and Lightning attach as ddp does
LIMIT = 0.01
CONTROL_HALF_WIDTH = 0.005
ATTRIBUTED_LIMIT = 0.005
WARM_UP = 10
CYCLE = 50  # steps after which everything that is sampled has been done
CYCLES = 5


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
    """Many parameters of 64 elements, next to no arithmetic: what each costs by itself."""

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
    """One worker's model, its monitor and one step of both."""

    def __init__(
        self, run: Path, dtype: str = "bf16", way: str = "ddp", parameters: int = 0
    ) -> None:
        torch.manual_seed(0)
        self.bf16 = dtype == "bf16"
        self.way = way
        self.model = wrapped(way, parameters)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.monitor = presum.attach(
            self.model, optimizer=self.optimizer, run=run, mode=ATTACHED.get(way, "passive")
        )
        (recording,) = open_sessions()[0].recordings
        self.recorder: Any = getattr(recording, "recorder")  # noqa: B009
        torch.manual_seed(1 + dist.get_rank())  # each worker's own tokens
        self.watched = True

    def step(self) -> float:
        tokens = torch.randint(0, VOCABULARY, TOKENS)
        dist.barrier()
        began = time.perf_counter()
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            loss = self.model(input_ids=tokens, labels=tokens)["loss"]
        loss.backward()
        if self.way == "by-hand":
            self.reduce()
        self.optimizer.step()
        return time.perf_counter() - began

    def reduce(self) -> None:
        named = [(n, p.grad) for n, p in self.model.named_parameters() if p.grad is not None]
        if self.watched:
            self.monitor.before_reduction(named)
        flat = torch.cat([gradient.view(-1) for _, gradient in named])
        dist.all_reduce(flat)
        flat /= WORKERS
        parts = torch.split(flat, [gradient.numel() for _, gradient in named])
        for (_, gradient), part in zip(named, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        if self.watched:
            self.monitor.after_reduction(named)

    def timed(self, mode: str) -> float:
        self.recorder.unhook()
        self.watched = mode == "on"
        if self.watched:
            self.recorder.hook()
        return self.step()


def block_order(rng: random.Random) -> list[str]:
    half = rng.sample(MODES, len(MODES))
    return half + half[::-1]


def measure(training: Training, blocks: int) -> list[dict[str, float]]:
    """Per block, the mean seconds of a step in each mode."""
    rng = random.Random(1)
    for _ in range(WARM_UP):
        training.step()
    out = []
    for _ in range(blocks):
        times: dict[str, list[float]] = {mode: [] for mode in MODES}
        for mode in block_order(rng):
            times[mode].append(training.timed(mode))
        out.append({mode: float(np.mean(t)) for mode, t in times.items()})
    return out


class Parts:
    """Seconds inside each family of fingerprints and checks, while it counts. Made before anything
    is attached."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.counts = False
        call = Families.call

        def timed(families: Any, family: str, function: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.counts:
                return call(families, family, function, *args, **kwargs)
            began = time.perf_counter()
            try:
                return call(families, family, function, *args, **kwargs)
            finally:
                took = time.perf_counter() - began
                self.seconds[family] = self.seconds.get(family, 0.0) + took

        Families.call = timed  # type: ignore[assignment, method-assign]


def attribute(training: Training, parts: Parts) -> dict[str, Any]:
    """Seconds a step inside our hooks, and of our background thread's CPU time."""
    spent = [0.0]
    inside = [0]  # hooks within hooks are counted once
    originals = {kind: kind.__call__ for kind in (Hook, ParameterHook)}
    enter, leave = FailureGuard.__enter__, FailureGuard.__exit__

    def timed_enter(guard: Any) -> None:
        guard.began = time.perf_counter()
        enter(guard)

    def timed_leave(guard: Any, *error: Any) -> bool:
        spent[0] += time.perf_counter() - guard.began
        return leave(guard, *error)

    FailureGuard.__enter__, FailureGuard.__exit__ = timed_enter, timed_leave  # type: ignore[method-assign]

    def timed(call: Any) -> Any:
        def timed_call(hook: Hook, *args: Any, **kwargs: Any) -> None:
            began = time.perf_counter()
            inside[0] += 1
            call(hook, *args, **kwargs)
            inside[0] -= 1
            if inside[0] == 0:
                spent[0] += time.perf_counter() - began

        return timed_call

    (ours,) = (one for one in threading.enumerate() if one.name in BACKGROUND_THREADS)
    clock = time.pthread_getcpuclockid(ours.ident or threading.get_ident())
    training.recorder.unhook()
    training.recorder.hook()
    training.watched = True
    for kind, call in originals.items():
        kind.__call__ = timed(call)  # type: ignore[method-assign]
    background = time.clock_gettime(clock)
    steps_took, hooks_took = [], []
    of_parts: list[dict[str, float]] = []
    parts.counts = True
    for _ in range(CYCLES * CYCLE):
        spent[0] = 0.0
        parts.seconds = {}
        steps_took.append(training.step())
        hooks_took.append(spent[0])
        of_parts.append(parts.seconds)
    background = time.clock_gettime(clock) - background
    for kind, call in originals.items():
        kind.__call__ = call  # type: ignore[method-assign]
    FailureGuard.__enter__, FailureGuard.__exit__ = enter, leave  # type: ignore[method-assign]
    names = sorted({name for one in of_parts for name in one})
    return {
        "step": trimmed_mean(steps_took),
        "hooks": over_cycles(hooks_took),
        "usual": float(np.median(hooks_took)),
        "background": background / len(steps_took),
        "parts": {name: over_cycles([one.get(name, 0.0) for one in of_parts]) for name in names},
    }


def over_cycles(values: list[float]) -> float:
    """Mean over the steps of a cycle, each the median of its cycles: what is done in one step of 25
    counts, another program's time slice does not."""
    return float(np.median(np.reshape(values, (CYCLES, CYCLE)), axis=0).mean())


def trimmed_mean(values: list[float]) -> float:
    """Without a fifth at either end: another program's time slice is no cost of ours."""
    cut = len(values) // 5
    return float(np.mean(sorted(values)[cut : len(values) - cut]))


def worker(
    rank: int, port: int, arguments: argparse.Namespace, folder: str, answers: Queue[Any]
) -> None:
    blocks = arguments.blocks
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % os.cpu_count()]})  # type: ignore[operator]
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(WORKERS), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    dist.init_process_group("gloo")
    parts = Parts()
    training = Training(Path(folder) / "run", arguments.dtype, arguments.way, arguments.parameters)
    gc.disable()
    times = measure(training, blocks)
    attributed = attribute(training, parts)
    gc.enable()
    training.monitor.close()
    dist.destroy_process_group()
    answers.put((rank, times, attributed))


def interval(log_ratios: np.ndarray) -> tuple[float, float, float]:
    """20 %-trimmed mean and its 95 % bootstrap interval."""
    rng = np.random.default_rng(0)

    def trimmed(sample: np.ndarray) -> np.ndarray:
        cut = sample.shape[-1] // 5
        ordered = np.sort(sample, axis=-1)
        return np.asarray(ordered[..., cut : sample.shape[-1] - cut].mean(axis=-1))

    picks = rng.integers(0, len(log_ratios), (4000, len(log_ratios)))
    low, high = np.quantile(trimmed(log_ratios[picks]), [0.025, 0.975])
    return float(trimmed(log_ratios)), float(low), float(high)


def verdict(on: tuple[float, float, float], control: tuple[float, float, float]) -> str:
    resolved = control[1] <= 0 <= control[2] and control[2] - control[1] <= 2 * CONTROL_HALF_WIDTH
    if on[1] > LIMIT:
        return "fail"
    return "pass" if resolved and on[2] <= LIMIT else "inconclusive"


def report(
    answers: list[tuple[int, list[dict[str, float]], dict[str, Any]]],
    arguments: argparse.Namespace,
) -> None:
    # A step ends when the slower worker is done.
    blocks = [
        {mode: max(times[b][mode] for _, times, _ in answers) for mode in MODES}
        for b in range(len(answers[0][1]))
    ]
    off = np.array([(b["off"] + b["off'"]) / 2 for b in blocks])
    on = interval(np.log(np.array([b["on"] for b in blocks]) / off))
    control = interval(np.log(np.array([b["off'"] / b["off"] for b in blocks])))
    work = f"{TOKENS[0] * TOKENS[1]} tokens"
    if arguments.parameters:
        work = f"{arguments.parameters:,} parameters of 64 elements"
    print(
        f"overhead of presum.attach, defaults: {arguments.way}, {WORKERS} workers, "
        f"{arguments.dtype}, {work} a step, {len(blocks)} blocks of 6 steps, "
        f"{1e3 * off.mean():.0f} ms a step"
    )
    for name, estimate in (("on / off", on), ("off' / off (control)", control)):
        middle, low, high = (f"{100 * value:+.2f}" for value in estimate)
        print(f"  {name:22} {middle} %   95 % interval {low} to {high} %")
    print(f"  verdict (at most {100 * LIMIT:.0f} %): {verdict(on, control)}")
    for rank, _, attributed in sorted(answers, key=lambda answer: answer[0]):
        hooks = attributed["hooks"] / attributed["step"]
        background = attributed["background"] / attributed["step"]
        print(
            f"  attributed, rank {rank}: hooks {1e6 * attributed['hooks']:.0f} us, "
            f"{100 * hooks:.2f} % of a step (in most steps {1e6 * attributed['usual']:.0f} us), "
            f"background thread {100 * background:.2f} % of a core"
        )
        for name, took in sorted(attributed["parts"].items(), key=lambda part: -part[1]):
            share = 100 * took / attributed["step"]
            print(f"    of which {name:16} {1e6 * took:6.1f} us  {share:.3f} %")
    worst = max(a["hooks"] / a["step"] for _, _, a in answers)
    print(
        f"  attributed at most {100 * ATTRIBUTED_LIMIT:.1f} %: "
        f"{'pass' if worst <= ATTRIBUTED_LIMIT else 'fail'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--blocks", type=int, default=315, help="blocks of 6 steps (315 resolves 0.5 %%)"
    )
    parser.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16", help="autocast dtype")
    parser.add_argument(
        "--way", choices=["ddp", "hook", "fsdp2", "by-hand"], default="ddp", help="of training"
    )
    parser.add_argument(
        "--parameters", type=int, default=0, help="as many small ones under ddp, no language model"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    port = free_port()
    context = multiprocessing.get_context("fork")
    answers: Queue[Any] = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            context.Process(
                target=worker,
                args=(rank, port, arguments, folder, answers),
            )
            for rank in range(WORKERS)
        ]
        for process in workers:
            process.start()
        found = [answers.get(timeout=3600) for _ in workers]
        report(found, arguments)
        for process in workers:
            process.join()


if __name__ == "__main__":
    main()
