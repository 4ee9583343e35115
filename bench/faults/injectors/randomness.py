# SPDX-License-Identifier: Apache-2.0
"""Random number generators with equal states."""

from __future__ import annotations

import torch
import torch.distributed as dist

from faults.training import Training


class SharedSeed(Training):
    """One generator has the same seed on all ranks."""

    def generator_seed(self, generator: str) -> int:
        shared = generator == self.case.settings["generator"]
        return self.seed if shared else super().generator_seed(generator)


class RestoredRng(Training):
    def before_step(self) -> None:
        if self.step == self.case.begins:
            state = torch.get_rng_state()
            dist.broadcast(state, src=self.roles.upper_half[0])
            if self.rank in self.roles.upper_half:
                torch.set_rng_state(state)
