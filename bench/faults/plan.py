# SPDX-License-Identifier: Apache-2.0
"""The plan of a launch, identical on every rank. Needs no torch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from presum import Record, _core
from presum._core import __version__
from presum.options import FAMILIES

if TYPE_CHECKING:
    from faults.data import Corpus

MIN_WORKERS = 2  # with fewer, nothing is reduced
MINORITY_WORKERS = 4  # one rank at fault is a minority, and a pair is not half of all


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The settings that a fault and its clean twin share."""

    model: str = "lm"  # lm, batch-norm, adapter, mlp, cnn, policy
    data: str = "blocks"  # blocks, instructions, stream, points, point-stream, episodes
    steps: int = 40
    batch: int = 2
    micro_batches: int = 1
    epoch_steps: int = 0  # steps of an epoch with one micro-batch each; 0: all data
    dropout: float = 0.0
    # numpy, python: the generator that masks a token; noise: added in the model
    augmentation: str = ""
    token_weighted: bool = False
    way: str = "ddp"  # of training: ddp, fsdp2, hsdp (two replicas), by-hand, and frameworks
    continued: bool = False  # interrupted, and continued from a checkpoint
    fingerprints: bool = True
    audit_every: int | None = None
    verify_every: int | None = None

    def watched(self) -> dict[str, Any]:
        """The arguments of ``presum.attach``."""
        prints = FAMILIES if self.fingerprints else ()
        record = Record(verify_every=self.verify_every, fingerprints=prints, quiet=True)
        mode = "manual" if self.way == "by-hand" else "passive"
        return {"audit": self.audit_every, "record": record, "mode": mode}

    @property
    def frameworks_loop(self) -> bool:
        """Whether a framework runs the training loop."""
        return self.way in ("trainer", "trl", "lightning")

    @property
    def shards(self) -> bool:
        """Whether each rank holds a part of the parameters."""
        return self.way in ("fsdp2", "hsdp")

    @property
    def name(self) -> str:
        """Its differences from the default, such as ``blocks-40-dropout-0.1``."""
        parts = [self.model, self.data, str(self.steps)]
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name not in ("model", "data", "steps") and value != one.default:
                parts.append(f"{one.name.replace('_', '-')}-{value}".lower())
        return "-".join(parts)


@dataclass(frozen=True)
class Roles:
    """The ranks that a fault affects."""

    workers: int

    @property
    def culprit(self) -> int:
        """The single rank at fault."""
        return self.workers * 5 // 8

    @property
    def pair(self) -> tuple[int, int]:
        """Two ranks that share something; the second one is at fault."""
        return self.workers // 4, self.workers * 3 // 4

    @property
    def replicas(self) -> tuple[int, int]:
        """The rank at fault, and the rank that holds the same shard in the other replica: it is
        impossible to tell which of the two is wrong."""
        other = (self.culprit + self.workers // 2) % self.workers
        return min(self.culprit, other), max(self.culprit, other)

    @property
    def upper_half(self) -> tuple[int, ...]:
        """The second half of the ranks."""
        return tuple(range(self.workers // 2, self.workers))

    def named(self, who: str) -> tuple[int, ...]:
        """The ranks of "all", "culprit", "pair", "replicas", "upper half" or "rank 0"."""
        ranks = {"all": tuple(range(self.workers)), "culprit": (self.culprit,), "rank 0": (0,)}
        others = {"pair": self.pair, "replicas": self.replicas, "upper half": self.upper_half}
        return (ranks | others)[who]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run."""

    folder: str
    configuration: Configuration
    injector: str = ""  # a class of injectors/; empty: no fault
    settings: dict[str, Any] = field(default_factory=dict, hash=False)  # of the injector
    begins: int = 0  # the first step with the fault
    seed_offset: int = 0


@cache
def _built() -> str:
    """A hash of presum's compiled and Python code, which determines the findings."""
    code = [Path(_core.__file__), *sorted(Path(__file__).parents[2].rglob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in code)).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All runs of one launch."""

    cases: tuple[Case, ...]
    corpus: Corpus
    data: str  # the source of the corpus
    out: Path
    seed: int
    workers: int

    def signature(self, case: Case) -> str:
        """Everything that determines a run."""
        what = f"{case} seed {self.seed} workers {self.workers} data {self.data}"
        return f"{__version__} {_built()} {what} {self.corpus_hash}"

    @cached_property
    def corpus_hash(self) -> str:
        """A hash of the records' contents, since a file can change under the same name."""
        return hashlib.sha256(repr(self.corpus).encode()).hexdigest()[:16]
