# SPDX-License-Identifier: Apache-2.0
"""What the rank that records makes of queues that fail."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import presum
from helpers.loss_model import train
from presum.transport.session import open_sessions
from presum.transport.store_queue import StoreQueue

pytestmark = pytest.mark.usefixtures("one_worker")


class Store:
    """Answers as told, then fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.asked = 0

    def queue_len(self, _name: str) -> int:
        return 2

    def queue_pop(self, _name: str, *, block: bool) -> bytes:
        self.asked += 1
        raise self._error


@pytest.mark.parametrize("lost", [False, True])
def test_a_queue_that_somebody_else_emptied_is_no_reason_to_give_up(
    lost: bool, model: DistributedDataParallel, tmp_path: Path
) -> None:
    error = dist.DistNetworkError("planted") if lost else dist.QueueEmptyError("empty")
    with presum.attach(model, run=tmp_path):
        recorder = open_sessions()[0].recorder
        store = Store(error)
        recorder.queue = StoreQueue(store, "key")
        while not store.asked:
            time.sleep(0.01)
        train(model, 2)
        asked = store.asked
        while not (recorder.others_lost if lost else store.asked > asked + 1):
            time.sleep(0.01)
        assert recorder.others_lost == lost
        recorder.queue = None
    assert presum.load(tmp_path).steps.step.tolist() == [0, 1]
