# SPDX-License-Identifier: Apache-2.0
"""A fault, and what presum must say of it. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from faults.plan import MIN_WORKERS, Case, Configuration


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault and the finding that it must lead to."""

    name: str
    row: int | None = None  # of the catalog of public reports; None: not among them
    thread: str = ""
    what: str
    injector: str  # a class of injectors/
    settings: dict[str, Any] = field(default_factory=dict, hash=False)  # of the injector
    expects: str  # the check id
    or_expects: str = ""  # of another consequence: which comes first depends on hashes, or model
    severity: str
    ranks: str = "culprit"  # Roles.named
    begins: int = 0  # the first step that is wrong
    within: int | None = None  # steps from there to the finding, at most; None: none is set
    tells_which: bool = False  # of two workers, where its check often cannot
    least_workers: int = MIN_WORKERS  # with which it is this fault, and can be told
    variant: bool = False  # on another model than the fault's first
    configuration: Configuration

    @property
    def checks(self) -> tuple[str, ...]:
        """Those of which one must be on top."""
        return (self.expects, self.or_expects) if self.or_expects else (self.expects,)

    def runs_with(self, workers: int) -> bool:
        """Whether it can be injected into so many; of HSDP there are two equal replicas."""
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
        """The run without it."""
        return Case(folder=f"clean-{self.configuration.name}", configuration=self.configuration)


@dataclass(frozen=True)
class Absent:
    """A fault that is not injected, and why."""

    row: int | None
    thread: str
    what: str
    why: str
