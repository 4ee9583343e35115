# SPDX-License-Identifier: Apache-2.0
"""Generators of random numbers that are alike."""

from __future__ import annotations

import torch
import torch.distributed as dist

from faults.training import Training


class SharedNumpySeed(Training):
    """NumPy is seeded alike on all ranks."""

    def generator_seed(self, generator: str) -> int:
        return self.seed if generator == "numpy" else super().generator_seed(generator)


class SharedTorchSeed(Training):
    """torch is seeded alike on all ranks."""

    def generator_seed(self, generator: str) -> int:
        return self.seed if generator == "torch" else super().generator_seed(generator)


class SharedPythonSeed(Training):
    """Python's random is seeded alike on all ranks."""

    def generator_seed(self, generator: str) -> int:
        return self.seed if generator == "python" else super().generator_seed(generator)


class RestoredOtherState(Training):
    """Half of the ranks restore one rank's generator state."""

    def before_step(self) -> None:
        if self.step == self.case.begins:
            state = torch.get_rng_state()
            dist.broadcast(state, src=self.roles.upper_half[0])
            if self.rank in self.roles.upper_half:
                torch.set_rng_state(state)
