# SPDX-License-Identifier: Apache-2.0
"""A fault, and what presum must report about it. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from faults.plan import MIN_WORKERS, Case, Configuration


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault, and the finding that it must produce."""

    name: str
    row: int | None = None  # in the catalog of public reports; None: not in it
    thread: str = ""
    what: str
    injector: str  # a class of injectors/
    settings: dict[str, Any] = field(default_factory=dict, hash=False)  # of the injector
    expects: str  # the check's id
    or_expects: str = ""  # of another consequence; hashes or the model decide which comes first
    severity: str
    ranks: str = "culprit"  # Roles.named
    begins: int = 0  # the first wrong step
    within: int | None = None  # the maximum number of steps to the finding; None: no limit
    tells_which: bool = False  # with two ranks, although its check often cannot
    least_workers: int = MIN_WORKERS  # needed for this fault to exist and be recognizable
    variant: bool = False  # on another model than the fault's first
    configuration: Configuration

    @property
    def checks(self) -> tuple[str, ...]:
        """The checks of which one must be on top."""
        return (self.expects, self.or_expects) if self.or_expects else (self.expects,)

    def runs_with(self, workers: int) -> bool:
        """Whether it can be injected with this many ranks; HSDP needs two equal replicas."""
        halves = self.configuration.way != "hsdp" or workers % 2 == 0
        return workers >= self.least_workers and halves

    @property
    def case(self) -> Case:
        """The run with the fault."""
        return Case(
            folder=self.name,
            configuration=self.configuration,
            injector=self.injector,
            settings=self.settings,
            begins=self.begins,
        )

    @property
    def twin(self) -> Case:
        """The run without the fault."""
        return Case(folder=f"clean-{self.configuration.name}", configuration=self.configuration)


@dataclass(frozen=True)
class Absent:
    """A fault that is not injected, with the reason."""

    row: int | None
    thread: str
    what: str
    why: str
