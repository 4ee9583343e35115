# SPDX-License-Identifier: Apache-2.0
"""What the last line says, by what was seen of a rank."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from presum.frameworks.closing import ALONE, FSDP1, Seen, closing_line, why_unwatched

POLICY = {"Policy": FSDP1}
CASES = {
    "watched": (Seen(watched=True, optimizer_steps=9), None),
    "watched, and a model that is not": (
        Seen(watched=True, unwatched=POLICY),
        f"presum: rank 0 also trained what is not recorded: Policy ({FSDP1})",
    ),
    "a model that is not watched": (
        Seen(world_size=2, unwatched=POLICY, optimizer_steps=9),
        f"presum: nothing was recorded: Policy ({FSDP1})",
    ),
    "that, while another rank records": (
        Seen(rank=1, world_size=2, unwatched=POLICY, recorded_elsewhere=True),
        f"presum: rank 1 also trained what is not recorded: Policy ({FSDP1})",
    ),
    "each rank on its own": (
        Seen(world_size=2, unwatched={"the parameters of SGD": ALONE}, optimizer_steps=9),
        "presum: 2 ranks were started, and this one took 9 optimizer steps, but no "
        "DistributedDataParallel or FSDP2 model was trained: each rank trains alone, or "
        'reduces by hand (then attach with mode="manual")',
    ),
    "no part in the training of others": (Seen(world_size=3, recorded_elsewhere=True), None),
    "no part, and nobody to ask": (
        Seen(world_size=3),
        "presum: rank 0 trained no DistributedDataParallel or FSDP2 model; if another rank "
        "recorded one, that rank reports it",
    ),
    "nobody trains": (
        Seen(),
        "presum: nothing was recorded: no DistributedDataParallel or FSDP2 model was trained in "
        "this process (of the processes that it started, presum records only those that a launcher "
        "starts)",
    ),
    "ranks of its own": (Seen(starts_ranks=True), None),
}


@pytest.mark.parametrize("case", CASES)
def test_the_last_line(case: str) -> None:
    seen, line = CASES[case]
    assert closing_line(seen) == line


def test_an_optimizer_of_nobody_s_model_trains_alone() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    assert why_unwatched(optimizer, []) == ("the parameters of SGD", ALONE)
