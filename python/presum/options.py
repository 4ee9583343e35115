# SPDX-License-Identifier: Apache-2.0
"""The options of ``presum.attach`` as typed values, and as the flat names and plain values that
``presum.run``, PRESUM_OPTIONS and option files use."""

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
    """Let presum sum the gradients, so that their mean has the same bits for any order, topology
    and number of ranks (docs/reduction.md).

    Each micro-batch under ``no_sync()`` (FSDP2: without ``requires_gradient_sync``) becomes a
    separate leaf of the sum; ``.grad`` contains none of them until the step is reduced. The
    reduction stays in place after the monitor is closed.

    Args:
        microbatch_mean: divide the sum by the number of micro-batches of all ranks, in one
            rounding, instead of by the number of ranks. Use it if the loss is not divided by the
            number of accumulated micro-batches.
    """

    microbatch_mean: bool = False

    def __str__(self) -> str:
        return "exact" + (", mean of micro-batches" if self.microbatch_mean else "")


@dataclass(frozen=True)
class Audit:
    """Compare the reduction of one bucket with the exact sum of its inputs (docs/audit.md).

    Each audit takes the next bucket. It reports the error, the precision and order of the
    summation, and whether the same reduction gives the same bits again. An audit exchanges
    gradients between ranks. On DDP it runs in presum's communication hook, which calls a hook that
    the program registers later; on FSDP2 each rank audits its shard of a parameter group.

    Args:
        every: audit at every n-th recorded step.
        elements: the number of elements to compare, evenly spaced over the bucket. None: all.
    """

    every: int
    elements: int | None = AUDIT_ELEMENTS


@dataclass(frozen=True)
class Record:
    """What to record, and when.

    Args:
        every: record every n-th step. presum's overhead falls, but by less than a factor of n,
            because its hooks stay in place (docs/performance.md; ``presum summary`` shows the
            overhead of a run).
        reduced_every: also read the reduced gradient, in one more pass over it, at the first step
            and every n-th step. This gives the exact consistency and corrects the cosines.
        verify_every: at every n-th recorded step, recompute one micro-batch of this rank and
            compare the gradients bit for bit, to catch intermittent errors of memory and arithmetic
            (docs/findings.md, recompute-mismatch). It costs one more forward and backward pass.
            Needs ``optimizer``; not available for FSDP2.
        sketch: the number of float32 values that represent a gradient's direction: a power of two
            from 64 to 65536, 0 for no sketch, or None for 4096 with up to 64 ranks and 1024 with
            more. The cosine of a pair of ranks has a standard error of about ``1.2 /
            sqrt(sketch)``.
        groups: regular expressions that group parameters for per-group norms. The text that the
            first matching expression matches is the group's name; parameters without a match are in
            the group "other". None: one group per layer (the parameter's path up to its first
            number). Empty: a single group, "all".
        fingerprints: what to compare between ranks besides gradients: any of "data" (hashes of the
            samples), "rng", "sampler", "parameters", "buffers", "optimizer", "mode" and
            "environment". Default: all. Empty: none.
        local_buffers: regular expressions for names of buffers that may differ between ranks.
        data: the training's ``DataLoader`` or sampler, or a list of them. Needed only if presum
            does not find them: for loaders that are not torch's, and for batches that change before
            the forward pass.
        scaler: the ``GradScaler``, so that norms are those of the unscaled gradient. Default: the
            scaler that scaled the latest loss.
        on_training_thread: call ``on_finding`` on the training thread, after the optimizer step.
            There it may raise ``SystemExit`` to end this rank's process (a launcher then ends the
            others); other exceptions are logged.
        require: what exit code 0 of a preflight covers. "facts": everything that a few steps can
            decide. "statistics": exit with code 2 if there were too few steps to establish a
            lasting difference in losses or gradients (26 steps with 2 ranks, 10 with 8).
        stall_seconds: report a stall, with the position of every rank, when a rank has had no
            training event (a pass, a gradient, an optimizer step) for this long, or for twice the
            longest such gap of any rank so far if that is longer. From 1 to 1e8.
        on_stall: what to do when ranks wait for a rank that does not work. "report": print one line
            and record the stall in the RUN, as for every stall. "raise": also raise
            :class:`presum.StallError` in the training thread of every rank, and end processes that
            do not reach it within 10 s. "exit": also end all ranks with exit code 1.
        allow: a mapping from check ids to reasons, the same on all ranks. Findings of these checks
            become information and show the reason (docs/quiet.md).
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
    """State shared by all calls of ``attach`` in this process."""

    run: Path | None = None  # the RUN folder that ``presum.run`` was given
    attached = False  # whether any model has been attached


PROCESS = _Process()


# The options that flags, environment and files can set: all except Python objects of the program.
OF_RECORD = tuple(
    one.name for one in fields(Record) if one.name not in ("data", "scaler", "on_training_thread")
)
OF_ATTACH = (
    "run",
    "preflight",
    "log_to",
    "webhook",
    "reduction",
    "microbatch_mean",
    "audit",
    "audit_elements",
)
NAMES = (*OF_ATTACH, *OF_RECORD)


def unknown_check(name: object) -> str:
    """An error message if there is no check of this name, or ""."""
    known = check_ids()
    if name in known:
        return ""
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else "; `presum explain` lists them"
    return f"there is no check {name!r}{hint}"


def check_names(row: Mapping[str, object], where: str) -> None:
    """Raises UserError for an unknown option name, and suggests the nearest known name."""
    for name in row:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]}?" if near else f"; options: {', '.join(NAMES)}"
            raise UserError(f"{where}: there is no option {name}{hint}")


def arguments_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``presum.attach`` for a row of options."""
    found = {name: row[name] for name in ("run", "preflight", "log_to", "webhook") if name in row}
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
    """The options in ``presum.toml`` of a folder, or else in ``[tool.presum]`` of its
    pyproject.toml. Empty if there is neither.

    Raises:
        UserError: the file is not valid TOML, or contains an unknown option.
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
        raise UserError(f"{path} is not valid TOML: {error}") from None
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    if found is not None and not isinstance(found, dict):
        raise UserError(f"{path}: {'.'.join(keys)} must be a table")
    return found
