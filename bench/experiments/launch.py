# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of one machine, waits for them, and reports which one failed and why."""

import contextlib
import gc
import multiprocessing
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, TypeVar

from presum.errors import UserError

T = TypeVar("T")

_SETTLE_SECONDS = 0.5
_STOP_SECONDS = 5.0


class WorkerError(RuntimeError):
    """A rank ended early. ``trace`` is its traceback, which may be empty."""

    def __init__(self, *, rank: int, reason: str, trace: str) -> None:
        super().__init__(f"rank {rank} stopped: {reason}")
        self.trace = trace


class Failure(NamedTuple):
    """What a failing rank sends its parent before it ends."""

    time: float
    reason: str
    trace: str
    is_user_error: bool


class _Child(NamedTuple):
    rank: int
    process: BaseProcess
    reader: Connection


def under_torchrun() -> bool:
    """Whether a launcher has started this process as a rank."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def run_workers(work: Callable[[T], None], argument: T, *, workers: int) -> None:
    """Run ``work(argument)`` in ``workers`` processes, with torchrun's environment variables.

    If one fails, the others are ended, and WorkerError (or UserError, if that is what it raised) is
    raised here. No process outlives this call or the calling process.
    """
    import torch

    # Fork is fast, but a forked process cannot use CUDA.
    context: Any = multiprocessing.get_context("spawn" if torch.cuda.device_count() else "fork")
    port = free_port()
    children: list[_Child] = []
    # A forked process must not garbage-collect what it inherits: destroying a process group would
    # wait for threads that exist only in this process.
    gc.collect()
    gc.freeze()
    try:
        for rank in range(workers):
            environment = _environment(rank=rank, workers=workers, port=port)
            reader, writer = context.Pipe(duplex=False)
            process = context.Process(
                target=_child, args=(work, argument, environment, writer), daemon=True
            )
            process.start()
            writer.close()
            children.append(_Child(rank, process, reader))
        _await(children)
    finally:
        gc.unfreeze()
        _stop(children)


def _environment(*, rank: int, workers: int, port: int) -> dict[str, str]:
    ranks = {"RANK": rank, "LOCAL_RANK": rank}
    sizes = {"WORLD_SIZE": workers, "LOCAL_WORLD_SIZE": workers}
    values = {name: str(value) for name, value in (ranks | sizes | {"MASTER_PORT": port}).items()}
    if sys.platform == "linux":
        values["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    return values | {"MASTER_ADDR": "127.0.0.1"}


def free_port() -> int:
    """A free TCP port of 127.0.0.1.

    It is below the range that systems assign to connections (Linux: 32768 and up): such a port
    would often be taken before a rank listens on it.
    """
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            return port


def _child(
    work: Callable[[T], None], argument: T, environment: dict[str, str], writer: Connection
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(environment)
    try:
        work(argument)
    except BaseException as error:
        writer.send(_failure(error))
        writer.close()
        os._exit(1)


def _failure(error: BaseException) -> Failure:
    first_line = str(error).strip().partition("\n")[0]
    is_user_error = isinstance(error, UserError)
    return Failure(
        time=time.monotonic(),
        reason=first_line if is_user_error else f"{type(error).__name__}: {first_line}",
        trace="".join(traceback.format_exception(error)),
        is_user_error=is_user_error,
    )


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _await(children: list[_Child]) -> None:
    pending = list(children)
    while pending:
        ended = _ended(pending, timeout=None)
        if any(_failed(child) for child in ended):
            _ended([c for c in pending if c not in ended], timeout=_SETTLE_SECONDS)
            raise _first_failure([child for child in children if _failed(child)])
        pending = [child for child in pending if child not in ended]


def _ended(children: list[_Child], *, timeout: float | None) -> list[_Child]:
    """Wait until a child has ended, or for ``timeout`` seconds; return those that have ended,
    joined."""
    ready = wait([child.process.sentinel for child in children], timeout)
    ended = [child for child in children if child.process.sentinel in ready]
    for child in ended:
        child.process.join()
    return ended


def _failed(child: _Child) -> bool:
    return child.process.exitcode not in (None, 0)


def _first_failure(failed: list[_Child]) -> Exception:
    """The failure that caused the others: a killed rank, else the earliest failure."""
    told: list[tuple[Failure, int]] = []
    for child in failed:
        try:
            told.append((child.reader.recv(), child.rank))
        except EOFError:
            return WorkerError(rank=child.rank, reason=_death(child.process), trace="")
    failure, rank = min(told)
    if failure.is_user_error:
        return UserError(failure.reason)
    return WorkerError(rank=rank, reason=failure.reason, trace=failure.trace)


def _death(process: BaseProcess) -> str:
    code = process.exitcode
    assert code is not None
    if code == -signal.SIGKILL:
        return "killed by SIGKILL (out of memory?)"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def _stop(children: list[_Child]) -> None:
    for child in children:
        child.process.terminate()
    deadline = time.monotonic() + _STOP_SECONDS
    for child in children:
        child.process.join(max(0.0, deadline - time.monotonic()))
        child.process.kill()
        child.process.join()
        child.reader.close()
