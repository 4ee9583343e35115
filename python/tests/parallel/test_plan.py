# SPDX-License-Identifier: Apache-2.0
"""Which sums go together with what, and what is not watched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import presum

pytestmark = pytest.mark.usefixtures("one_worker")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reduction": "kahan"}, 'must be "exact" or a presum.Reduction, not'),
        ({"reduction": 5}, "reduction must be of type Reduction, not int"),
        ({"reduction": "exact", "mode": "manual"}, "call presum.reduce there"),
        ({"audit": 0}, "audit must be"),
        ({"audit": presum.Audit(1, elements=0)}, "audit's elements must be"),
        ({"audit": True}, "audit must be an integer of at least 1, not True"),
        *(({"record": presum.Record(verify_every=n)}, "verify_every") for n in (0, -1, 1.5)),
        ({"record": presum.Record(verify_every=5)}, "verify_every needs the optimizer"),
        ({"record": {"every": 2}}, "record must be of type Record, not dict"),
        ({"record": presum.Record(allow={"data-covrage": "so"})}, "did you mean data-coverage"),
        ({"record": presum.Record(allow={"stall": " "})}, "give a reason for stall"),
        ({"record": presum.Record(allow=["stall"])}, "must be a mapping {check: reason}"),  # type: ignore[arg-type]
    ],
)
def test_what_does_not_go_together_is_one_clear_line(
    model: DistributedDataParallel, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        presum.attach(model, run=tmp_path, **arguments)
    assert "\n" not in str(caught.value)


class FullyShardedDataParallel(nn.Linear):
    """As FSDP1 is known: by the name of its class."""


def test_fsdp1_is_refused_with_what_to_use_instead() -> None:
    with pytest.raises(ValueError, match=r"reduces flat shards, .* use FSDP2"):
        presum.attach(FullyShardedDataParallel(2, 1))
