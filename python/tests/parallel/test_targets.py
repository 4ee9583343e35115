# SPDX-License-Identifier: Apache-2.0
"""What is not watched, and what torch itself refuses on CPUs."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import presum

pytestmark = pytest.mark.usefixtures("one_worker")


class FullyShardedDataParallel(nn.Linear):
    """As FSDP1 is known: by the name of its class."""


def test_fsdp1_is_refused_with_what_to_use_instead() -> None:
    with pytest.raises(ValueError, match=r"reduces flat shards .* use FSDP2"):
        presum.attach(FullyShardedDataParallel(2, 1))


def test_torch_synchronises_no_batch_norm_on_cpus() -> None:
    with pytest.raises(ValueError, match="only work with GPU"):
        DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)))


@pytest.mark.skipif(dist.is_nccl_available(), reason="this torch has NCCL")
def test_torch_compresses_to_bf16_with_nccl_only(model: DistributedDataParallel) -> None:
    with pytest.raises(TypeError, match="NCCL"):
        model.register_comm_hook(None, bf16_compress_hook)
