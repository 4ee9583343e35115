# SPDX-License-Identifier: Apache-2.0
"""Everything that a rank needs to know, identical on every rank."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.s1.model import ModelSource
from experiments.s1.settings import S1Run
from experiments.s1.template import Example


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One experiment: the runs, and the settings that they share."""

    runs: tuple[S1Run, ...]
    workers: int
    steps: int
    """Optimizer steps of each run."""
    batch: int
    """Records per rank and step."""
    max_length: int
    """Maximum tokens per record."""
    dtype: str
    """``bf16``: autocast over fp32 parameters; ``fp32``."""
    lr: float
    seed: int
    out: Path
    save_models: bool
    source: ModelSource
    data_name: str
    tokenizer: Any
    examples: tuple[Example, ...]

    def folder(self, run: S1Run) -> Path:
        """The run folder of ``run``."""
        return self.out / run.name
