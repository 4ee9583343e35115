# SPDX-License-Identifier: Apache-2.0
"""The results as text for people, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from faults.catalog import ABSENT, FAULTS, ROWS
from faults.fault import Fault
from faults.judge import Outcome
from faults.plan import Roles
from presum.errors import UserError

Row = Sequence[str]


def ranges(ranks: Sequence[int]) -> str:
    """Ascending numbers as ``0-3,8``; a dash for none."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and parts[-1][-1] == rank - 1:
            parts[-1] = [parts[-1][0], rank]
        else:
            parts.append([rank])
    return ",".join("-".join(map(str, part)) for part in parts) or "-"


def aligned(rows: Sequence[Row]) -> str:
    """Rows of cells as aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) for r in rows]
    return "\n".join(line.rstrip() for line in lines)


def render(outcomes: Sequence[Outcome]) -> str:
    """The table, the faults that are not injected (unless faults were left out), and a summary."""
    head = (
        "fault",
        "workers",
        "expected",
        "found as",
        "severity",
        "ranks",
        "right",
        "delay",
        "clean",
    )
    table = aligned([head, *(_line(outcome) for outcome in outcomes)])
    notes = [note for outcome in outcomes for note in _notes(outcome)]
    absent = "" if left_out(outcomes) else render_absent()
    parts = [table, "\n".join(notes), absent, verdict(outcomes)]
    return "\n\n".join(part for part in parts if part)


def left_out(outcomes: Sequence[Outcome]) -> int:
    """The number of faults in the catalog, with their models, that have no outcome."""
    return len(FAULTS) - len({o.fault.name for o in outcomes})


def render_list(workers: int) -> str:
    """The list of faults that would be injected."""
    head = "row", "fault", "begins", "expected", "severity", "ranks", "within", "what"
    keys = *head[:3], "expected_check", "expected_severity", "expected_ranks", "target", "what"
    faults = list_as_json(workers)["faults"]
    lines = [[_cell(fault[key]) for key in keys] for fault in faults]
    return f"{aligned([head, *lines])}\n\n{render_absent()}"


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ranges(value)
    return "-" if value is None else str(value)


def render_absent() -> str:
    """The faults that are not injected, with reasons."""
    lines = [(_cell(a.row), a.thread, a.what, a.why) for a in ABSENT]
    return f"not injected:\n{aligned(lines)}"


def verdict(outcomes: Sequence[Outcome]) -> str:
    """A summary of how many faults were found."""
    failed = [_name(o) for o in outcomes if not o.passed]
    twins = {(o.fault.twin.folder, o.workers): o.false_alarms for o in outcomes}
    alarmed = sum(bool(alarms) for alarms in twins.values())
    lines = [
        f"{len(outcomes) - len(failed)} of {len(outcomes)} runs with a fault: right check and "
        f"ranks; {_scope(outcomes)}",
        f"{alarmed} of {len(twins)} clean twins with a false alarm",
    ]
    late = [_name(o) for o in outcomes if o.found and not o.in_time]
    lines += [f"not right: {', '.join(failed)}"] if failed else []
    lines += [f"later than the target: {', '.join(late)}"] if late else []
    return "\n".join(lines)


def _scope(outcomes: Sequence[Outcome]) -> str:
    if left := left_out(outcomes):
        return f"{left} of the {len(FAULTS)} in the catalog left out"
    rows = {o.fault.row for o in outcomes if o.fault.row is not None}
    found = {o.fault.row for o in outcomes if o.fault.row is not None and o.passed}
    return f"of the {ROWS} rows {len(rows)} injected and {len(found)} found"


def as_json(outcomes: Sequence[Outcome], *, seed: int) -> dict[str, Any]:
    """The same content as JSON."""
    left = left_out(outcomes)
    return {
        "schema_version": 2,
        "seed": seed,
        "faults": [_object(outcome) for outcome in outcomes],
        "not_injected": [] if left else _absent(),
        "left_out": left,
        "passed": all(outcome.passed for outcome in outcomes),
    }


BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"


def write_into(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write the outcomes of public reports between the two marks of a file. Raises UserError if the
    marks are missing, or if a report's fault has no outcome."""
    _around(path)
    known = {outcome.fault.name for outcome in outcomes}
    absent = [fault.name for fault in REPORTED if fault.name not in known]
    if absent:
        raise UserError(f"--document needs all faults, but {absent[0]} was left out")
    put_between(path, reports(outcomes))


def put_between(path: Path, table: str) -> None:
    """Write a text between the two marks of a file. Raises UserError if the marks are missing."""
    before, after = _around(path)
    path.write_text(f"{before}{BEGIN}\n{table}{END}{after}", encoding="utf-8")


def _around(path: Path) -> tuple[str, str]:
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    before, begins, rest = text.partition(BEGIN)
    _, ends, after = rest.partition(END)
    if not begins or not ends:
        raise UserError(f"{path} needs the lines {BEGIN} and {END}, to put the table between")
    return before, after


REPORTED = [fault for fault in FAULTS if fault.thread and not fault.variant]


def reports(outcomes: Sequence[Outcome]) -> str:
    """One row per public report, for its first model."""
    return _markdown_table([_head(outcomes), *(_row(fault, outcomes) for fault in REPORTED)])


def markdown(outcomes: Sequence[Outcome]) -> str:
    """One row per fault and model."""
    rows = [["fault", "model", *_head(outcomes), "severity", "ranks", "target"]]
    for fault in {o.fault.name: o.fault for o in outcomes}.values():
        row = [f"`{fault.name}`", fault.configuration.model, *_row(fault, outcomes)]
        rows.append([*row, fault.severity, fault.ranks, _cell(fault.within)])
    return _markdown_table(rows)


def _head(outcomes: Sequence[Outcome]) -> list[str]:
    worlds = "/".join(map(str, _worlds(outcomes)))
    return ["public report", "what is broken", "found as", f"after, {worlds} ranks"]


def _row(fault: Fault, outcomes: Sequence[Outcome]) -> list[str]:
    """One row, with the results for all world sizes in one cell."""
    found = {o.workers: o for o in outcomes if o.fault.name == fault.name}
    delays = "/".join(_markdown_delay(found.get(workers)) for workers in _worlds(outcomes))
    return [fault.thread, fault.what, f"`{fault.expects}`", delays]


def _worlds(outcomes: Sequence[Outcome]) -> list[int]:
    return sorted({outcome.workers for outcome in outcomes})


def _markdown_table(rows: Sequence[Row]) -> str:
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _markdown_delay(outcome: Outcome | None) -> str:
    if outcome is None:
        return "-"
    if not outcome.found:
        return "not found"
    if not (outcome.right_check and outcome.right_ranks):
        return f"as `{outcome.check}` {ranges(outcome.ranks)}"
    return str(outcome.delay) + (" (twin alarmed)" if outcome.false_alarms else "")


def _name(outcome: Outcome) -> str:
    return f"{outcome.fault.name} ({outcome.workers})"


def list_as_json(workers: int) -> dict[str, Any]:
    """:func:`render_list` as JSON."""
    possible = [fault for fault in FAULTS if fault.runs_with(workers)]
    faults = [_described(fault, Roles(workers).named(fault.ranks)) for fault in possible]
    return {
        "schema_version": 1,
        "workers": workers,
        "not_injected": _absent(),
        "faults": faults,
    }


def _absent() -> list[dict[str, Any]]:
    return [asdict(one) for one in ABSENT]


def _line(outcome: Outcome) -> Row:
    fault = outcome.fault
    return (
        fault.name,
        str(outcome.workers),
        f"{fault.expects} {ranges(outcome.expected_ranks)}",
        outcome.check or "not found",
        outcome.severity or "-",
        ranges(outcome.ranks),
        "yes" if outcome.right_check and outcome.right_ranks else "NO",
        _delay(outcome),
        "FALSE ALARM" if outcome.false_alarms else "quiet",
    )


def _delay(outcome: Outcome) -> str:
    if outcome.delay is None:
        return "-"
    target = outcome.fault.within
    limit = "" if target is None else f" <= {target}" if outcome.in_time else f" > {target}"
    return f"{outcome.delay}{limit}"


def _notes(outcome: Outcome) -> list[str]:
    """Notes that do not fit into the table's cells."""
    name = _name(outcome)
    notes = []
    if outcome.other_findings:
        notes.append(f"{name}: also reported as {', '.join(outcome.other_findings)}")
    if outcome.false_alarms:
        notes.append(f"{name}: its clean twin reports {', '.join(outcome.false_alarms)}")
    notes += [f"{name}: the evidence does not support: {text}" for text in outcome.unsupported]
    return notes


def _described(fault: Fault, ranks: Sequence[int]) -> dict[str, Any]:
    return {
        "fault": fault.name,
        "row": fault.row,
        "thread": fault.thread,
        "what": fault.what,
        "begins": fault.begins,
        "steps": fault.configuration.steps,
        "expected_check": fault.expects,
        "expected_severity": fault.severity,
        "expected_ranks": list(ranks),
        "target": fault.within,
    }


def _object(outcome: Outcome) -> dict[str, Any]:
    names = (
        *("workers", "found", "check", "severity", "ranks", "right_check", "right_ranks"),
        *("delay", "in_time", "also", "other_findings", "false_alarms", "unsupported"),
        "passed",
    )
    found = {name: getattr(outcome, name) for name in names}
    found |= {"check": outcome.check or None, "severity": outcome.severity or None}
    return _described(outcome.fault, outcome.expected_ranks) | found
