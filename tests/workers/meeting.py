# SPDX-License-Identifier: Apache-2.0
"""Who records where rank 0 does not train, or cannot serve; one case after the other.

Ranks above 0 train; writes the times of polls, by who polled, as meeting.RANK.json.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import presum
from presum.transport import rendezvous
from presum.transport.connections import StoreConnections
from workers.launch import main, write_json

STEPS = 12


def train(
    run: Path,
    group: dist.ProcessGroup,
    *,
    pause: float = 0.0,
    beside: contextlib.AbstractContextManager[Any] | None = None,
) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 1), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    with beside or contextlib.nullcontext(), presum.attach(model, optimizer=optimizer, run=run):
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
            time.sleep(pause)


def fails(*_: Any) -> Any:
    raise OSError("planted: no port")


def work(rank: int, world: int, out: Path) -> None:
    others = dist.new_group(list(range(1, world)))
    everyone = dist.group.WORLD
    assert everyone is not None and others is not None
    checks = count_checks()
    print("== short", file=sys.stderr, flush=True)
    if rank > 0:  # over before anybody is given up
        train(out / "short", others)
    dist.barrier()
    before = rendezvous.TAKE_OVER_SECONDS, rendezvous.PER_RANK_SECONDS
    rendezvous.TAKE_OVER_SECONDS, rendezvous.PER_RANK_SECONDS = 0.0, 1.0
    if rank > 0:
        train(out / "without-rank-0", others, pause=0.25)
    rendezvous.TAKE_OVER_SECONDS, rendezvous.PER_RANK_SECONDS = before
    dist.barrier()
    original = StoreConnections.serve
    if rank == 0:
        StoreConnections.serve = fails  # type: ignore[method-assign]
    train(out / "no-server", everyone)
    StoreConnections.serve = original  # type: ignore[method-assign]
    dist.barrier()
    if rank > 0:
        train(out / "joined-later", others)
    dist.barrier()
    train(out / "joined-later", everyone)
    extra = nn.Linear(4, 1)
    beside = None
    if rank > 0:
        wrapped = DistributedDataParallel(extra, process_group=others)
        beside = presum.attach(wrapped, run=out / "extra-model")
        wrapped(torch.randn(2, 4)).sum().backward()
    train(out / "extra-model", everyone, beside=beside)
    dist.barrier()
    write_json(out / f"meeting.{rank}.json", checks)


def count_checks() -> list[list[float]]:
    """When the default store is asked for an address, by each who waits."""
    found: list[list[float]] = []
    original = rendezvous.Rendezvous.find

    def find(self: rendezvous.Rendezvous) -> Any:
        store = self._store
        mine: list[float] = []
        found.append(mine)

        class Counted:
            def check(self, keys: list[str]) -> bool:
                mine.append(time.monotonic())
                return bool(store.check(keys))

            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

        self._store = Counted()  # type: ignore[assignment]
        return original(self)

    rendezvous.Rendezvous.find = find  # type: ignore[method-assign]
    return found


if __name__ == "__main__":
    main(work, patient=False)
