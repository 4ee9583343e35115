# SPDX-License-Identifier: Apache-2.0
"""A training of two ranks that read the same data. Run it with torchrun and the RUN's path.

Prints the time from the program's first line to the first finding.
"""

import sys
import time

BEGAN = time.monotonic()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import presum  # noqa: E402


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)  # no seed per rank
    model = nn.parallel.DistributedDataParallel(nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    took: list[float] = []
    monitor = presum.attach(
        model,
        optimizer=optimizer,
        run=sys.argv[1],
        on_finding=lambda finding: took.append(time.monotonic() - BEGAN),
    )
    for _ in range(200):
        x = torch.randn(16, 32)
        loss: torch.Tensor = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.005)
    monitor.close()
    if dist.get_rank() == 0:
        print("first finding after", round(took[0], 1) if took else "never", "s")
    dist.destroy_process_group()


main()
