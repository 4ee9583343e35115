# SPDX-License-Identifier: Apache-2.0
"""What ``presum.attach`` takes, as values that say what they are; and the same as one row of names
and plain values, as ``presum.run``, PRESUM_OPTIONS and files have it."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from presum._core import check_ids
from presum.errors import UserError

if TYPE_CHECKING:
    import torch

AUDIT_ELEMENTS = 65536
FAMILIES = (
    "data",
    "rng",
    "sampler",
    "parameters",
    "buffers",
    "optimizer",
    "mode",
    "environment",
)


@dataclass(frozen=True)
class Reduction:
    """Gradients summed by presum, so that their mean has the same bits for any order, topology and
    number of ranks (docs/reduction.md). Micro-batches under ``no_sync()`` (FSDP2: without
    ``requires_gradient_sync``) are summed apart, each its own leaf: ``.grad`` holds none of them
    until the step is reduced. It stays when the monitor is closed.

    Args:
        microbatch_mean: divide the sum by all micro-batches of all ranks, in one rounding,
            instead of by the ranks; for losses that are not divided.
    """

    microbatch_mean: bool = False

    def __str__(self) -> str:
        return "exact" + (", mean of micro-batches" if self.microbatch_mean else "")


@dataclass(frozen=True)
class Audit:
    """What the reduction made of one bucket, the next one each time, against the exact sum of what
    went in (docs/audit.md): by how much they differ, in which precision and order was added, and
    whether the same reduction gives the same bits again. It exchanges gradients. On DDP it is made
    in presum's communication hook, which runs one that is registered later inside its own; on FSDP2
    each rank audits its shard of a parameter group.

    Args:
        every: at every n-th recorded step.
        elements: of that bucket, evenly spread; None for all.
    """

    every: int
    elements: int | None = AUDIT_ELEMENTS


@dataclass(frozen=True)
class Record:
    """What is recorded of a training, and when.

    Args:
        every: record every n-th step. What presum takes of a step falls, but not to an n-th: its
            hooks stay on (docs/performance.md; ``presum summary`` tells what it was in a run).
        reduced_every: also read the reduced gradient (one more pass) at the first step and every
            n-th; it gives the exact consistency and corrects the cosines.
        verify_every: at every n-th recorded step compute one micro-batch of this rank once more,
            and compare the gradients bit for bit: memory and arithmetic that are wrong now and then
            show (docs/findings.md, recompute-mismatch). It costs that forward and backward pass.
            Needs ``optimizer``; not for FSDP2.
        sketch: floats that stand for a gradient's direction: a power of two, 0 for off, None for
            4096 up to 64 ranks and 1024 above. A pair's cosine has a standard error of about
            ``1.2 / sqrt(sketch)``.
        groups: what per-group norms are of: regular expressions, of which the first that matches
            gives the text that it matches, "other" where none does. None: layers (the parameter's
            path up to its first number). Empty: no groups.
        fingerprints: what ranks are compared by besides gradients, by default all of "data" (hashes
            of the samples), "rng", "sampler", "parameters", "buffers", "optimizer", "mode",
            "environment". Empty: nothing.
        local_buffers: regular expressions of buffer names that may differ between ranks.
        data: the training's DataLoader or sampler, or a list of them, where it is not found by
            itself: loaders that are not torch's, batches that change before the forward pass.
        scaler: the GradScaler, so that norms are those of the unscaled gradient. Default: the one
            that scaled a loss last.
        on_training_thread: call ``on_finding`` after the optimizer's step, where it may end this
            rank's process by SystemExit (a launcher then ends the others). Other exceptions are
            logged.
        require: what a preflight's exit code 0 covers. "facts": everything that a few steps decide;
            "statistics": exit with 2 where the steps were too few for a lasting difference in
            losses or gradients to be established (26 with 2 ranks, 10 with 8).
        stall_seconds: after how long without any event of its training (a pass, a gradient, an
            optimizer's step) a rank is said to stand still, with where all ranks are; twice the
            longest such time so far where that is longer.
        on_stall: what a job does in which some rank waits for one that does not work: "report"
            says so, in a line and in the RUN, as for every job that stands still; "raise" raises
            :class:`presum.StallError` in every rank's thread, and ends processes that do not get
            to it within 10 s; "exit" ends all ranks with exit code 1.
        allow: checks, by id, whose findings are a practice of this program, each with the reason,
            the same on all ranks: they are information then, and say it (docs/quiet.md).
        quiet: print nothing on the terminal.
    """

    every: int = 1
    reduced_every: int = 25
    verify_every: int | None = None
    sketch: int | None = None
    groups: Sequence[str] | None = None
    fingerprints: Collection[str] = FAMILIES
    local_buffers: Sequence[str] = ()
    data: object = None
    scaler: torch.amp.GradScaler | None = None
    on_training_thread: bool = False
    require: Literal["facts", "statistics"] = "facts"
    stall_seconds: float = 60.0
    on_stall: Literal["report", "raise", "exit"] = "report"
    allow: Mapping[str, str] = field(default_factory=dict)
    quiet: bool = False


class _Process:
    """What holds for every call of ``attach`` in this process."""

    run: Path | None = None  # where ``presum.run`` was told to record
    attached = False  # some model was


PROCESS = _Process()


# What a row may hold: all but objects of the program's.
OF_RECORD = tuple(
    one.name for one in fields(Record) if one.name not in ("data", "scaler", "on_training_thread")
)
OF_ATTACH = ("run", "preflight", "reduction", "microbatch_mean", "audit", "audit_elements")
NAMES = (*OF_ATTACH, *OF_RECORD)


def unknown_check(name: object) -> str:
    """What is wrong with it, where there is no check of this name; else nothing."""
    known = check_ids()
    if name in known:
        return ""
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else "; `presum explain` lists them"
    return f"there is no check {name!r}{hint}"


def check_names(row: Mapping[str, object], where: str) -> None:
    """Raises UserError for a name that is none, with the nearest one."""
    for name in row:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(NAMES)}"
            raise UserError(f"{where}: there is no option {name}{hint}")


def arguments_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``presum.attach`` that a row of options stands for."""
    found = {name: row[name] for name in ("run", "preflight") if name in row}
    if "reduction" in row:
        found["reduction"] = row["reduction"]
    if row.get("microbatch_mean"):
        if row.get("reduction") != "exact":
            raise UserError('presum: microbatch_mean needs reduction="exact"')
        found["reduction"] = Reduction(microbatch_mean=True)
    if "audit" in row:
        found["audit"] = Audit(row["audit"], row.get("audit_elements", AUDIT_ELEMENTS))
    elif "audit_elements" in row:
        raise UserError("presum: audit_elements needs audit")
    of_record = {name: row[name] for name in OF_RECORD if name in row}
    return found | ({"record": Record(**of_record)} if of_record else {})


def from_file(folder: Path) -> dict[str, Any]:
    """The options of ``presum.toml`` in a folder, else of ``[tool.presum]`` in its pyproject.toml;
    none where there is neither.

    Raises:
        UserError: it is no TOML, or has a name that is none.
    """
    for name, keys in (("presum.toml", ()), ("pyproject.toml", ("tool", "presum"))):
        path = folder / name
        if path.is_file():
            found = _table(path, keys)
            if found is not None:
                check_names(found, str(path))
                return found
    return {}


def _table(path: Path, keys: Sequence[str]) -> dict[str, Any] | None:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        text = path.read_text(encoding="utf-8")
        if keys and "[tool.presum]" not in text:
            return None
        raise UserError(f"{path}: Python 3.10 reads no TOML: use PRESUM_OPTIONS") from None
    try:
        found: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no TOML: {error}") from None
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    if found is not None and not isinstance(found, dict):
        raise UserError(f"{path}: {'.'.join(keys)} is no table")
    return found
