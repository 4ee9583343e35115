# SPDX-License-Identifier: Apache-2.0
"""Each check in each way of training: a fault that it found, or why it could not see it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from faults.fault import Fault
from faults.judge import Outcome

WAYS = {
    "ddp": "DDP",
    "zero-code": "DDP, zero-code",
    "fsdp2": "FSDP2",
    "hsdp": "HSDP",
    "by-hand": "by hand",
    "accelerate": "Accelerate",
    "trainer": "Trainer",
    "trl": "TRL",
    "lightning": "Lightning",
    "mpi": "C++, MPI",
}
OF_OUR_LOOP = ("update", "wrap", "synchronizes")  # methods that a framework replaces
NOT_POSSIBLE = "not-possible"


class Tried(NamedTuple):
    """A fault in one way of training."""

    way: str
    fault: Fault
    outcome: Outcome | None  # None: it cannot be injected there
    # why its check was not possible (in another run if this one has none); empty: it was possible
    reason: str


class Cell(NamedTuple):
    """A check in one way of training."""

    found: tuple[str, ...]  # faults
    missed: tuple[str, ...]  # although the check did not say that it could not see them
    reasons: tuple[str, ...]  # why it could not see them

    @property
    def text(self) -> str:
        """The text of the table's cell."""
        if self.found:
            return "found"
        if self.missed:
            return f"missed: {', '.join(self.missed)}"
        return "; ".join(self.reasons) or "-"


def in_way(fault: Fault, way: str) -> Fault:
    """The fault with the model trained in this way."""
    configuration = replace(fault.configuration, way=way)
    return replace(fault, name=f"{fault.name}-{way}", configuration=configuration)


def can_be_injected(fault: Fault) -> bool:
    """Whether everything that the fault changes exists, is wrong in this way, and is not the
    framework's own."""
    from faults.injectors import injector
    from faults.injectors.reductions import Hooked
    from faults.training import Training

    kind = injector(fault.injector)
    way = fault.configuration.way
    if way in kind.right_in or (fault.ranks == "replicas" and way != "hsdp"):
        return False
    hooked = issubclass(kind, Hooked)
    audited = fault.configuration.audit_every is not None
    if way == "zero-code" and (kind.calls_presum or (hooked and audited)):
        return False  # presum attaches last, and refuses to audit around the program's own hook
    if way == "trl" and fault.configuration.model != "lm":
        return False
    if fault.configuration.shards and hooked:
        return False  # communication hooks are specific to DDP
    if not fault.configuration.frameworks_loop:
        return True
    return all(getattr(kind, name) is getattr(Training, name) for name in OF_OUR_LOOP)


def reason_of(run: Path, check: str) -> str:
    """Why a check was not possible in a run; "" if it was."""
    from presum.loading import load

    if not (run / "presum.db").exists():
        return ""
    told = load(run).checks
    of = told[(told.check == check) & (told.state == NOT_POSSIBLE)]
    return str(of.reason.iloc[-1]) if len(of) else ""


def cells(tried: Iterable[Tried]) -> dict[str, dict[str, Cell]]:
    """The cells by check and way."""
    out: dict[str, dict[str, Cell]] = {}
    for one in sorted(tried, key=lambda one: one.outcome is None):  # another run's reason last
        row = out.setdefault(one.fault.expects, {})
        cell = row.setdefault(one.way, Cell((), (), ()))
        name = one.fault.name.removesuffix(f"-{one.way}")
        if one.outcome and one.outcome.right_check and one.outcome.right_ranks:
            cell = cell._replace(found=(*cell.found, name))
        elif one.outcome and not one.reason:
            cell = cell._replace(missed=(*cell.missed, name))
        elif one.reason and one.reason not in cell.reasons and (one.outcome or not cell.reasons):
            cell = cell._replace(reasons=(*cell.reasons, one.reason))
        row[one.way] = cell
    return out


def markdown(found: dict[str, dict[str, Cell]], ways: Sequence[str]) -> str:
    """The table, and the number of cells with found faults."""
    head = ["check", *(WAYS[way] for way in ways)]
    rows = [
        [f"`{check}`", *(row[way].text if way in row else "-" for way in ways)]
        for check, row in sorted(found.items())
    ]
    lines = [head, ["---"] * len(head), *rows]
    every = [cell for row in found.values() for cell in row.values()]
    count = sum(bool(cell.found) for cell in every)
    missed = sum(cell.text.startswith("missed") for cell in every)
    beside = [
        f"- `{check}`, {WAYS[way]}: {', '.join(row[way].missed)}\n"
        for check, row in sorted(found.items())
        for way in ways
        if way in row and row[way].found and row[way].missed
    ]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    counts = f"{count} cells are faults that were found; {missed} are faults that were missed.\n"
    others = "\nIn cells where others were found, these were not:\n\n" if beside else ""
    return f"{table}\n{counts}{others}{''.join(beside)}"
