# SPDX-License-Identifier: Apache-2.0
"""python3 -m gpu_check.table [OUT]: writes the sections' results as a table into
docs/devices.md."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_check.__main__ import LIMITS, ROOT

DOCUMENT = ROOT / "docs" / "devices.md"
BEGIN, END = "<!-- gpu_check -->\n", "<!-- gpu_check ends -->\n"


def main() -> int:
    """Returns 0, or 2 if no section in the folder ran on a GPU."""
    parser = argparse.ArgumentParser(
        prog="python3 -m gpu_check.table", description="Writes results into docs/devices.md."
    )
    default = ROOT / "build" / "gpu-check"
    parser.add_argument("out", nargs="?", type=Path, default=default, help=f"default: {default}")
    out = parser.parse_args().out
    sections = [json.loads(path.read_text("utf-8")) for path in sorted(out.glob("*.json"))]
    sections = [one for one in sections if not one["dry"] and "on" in one]
    if not sections:
        print(f"gpu_check.table: no section in {out} ran on a GPU", file=sys.stderr)
        return 2
    text = DOCUMENT.read_text(encoding="utf-8")
    DOCUMENT.write_text(with_table(text, sections), encoding="utf-8")
    print(f"{DOCUMENT}: {sum(len(one['rows']) for one in sections)} rows; now update README.md,")
    print("docs/reduction.md and docs/integrations.md with what has run on a GPU")
    return 0


def with_table(text: str, sections: list[dict[str, Any]]) -> str:
    """The document with its table replaced."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    lines = ["| on | section | what | outcome | |", "|---|---|---|---|---|"]
    by_name = {one["section"]: one for one in sections}
    for name in LIMITS:
        lines += _rows(by_name[name]) if name in by_name else [_row("", name, "", "not tried", "")]
    return before + BEGIN + "\n".join(lines) + "\n" + END + after


def _rows(section: dict[str, Any]) -> Iterator[str]:
    on, name = section["on"], section["section"]
    machine = f"{on['device']}, torch {on['torch']}, presum {on['presum']}, {on['date']}"
    for row in section["rows"]:
        state = "" if row["ok"] else "**not as wanted**"
        yield _row(machine, name, row["what"], str(row["value"]), state)
    if not section["done"]:
        yield _row(machine, name, "the rest", "not done in its time", "")


def _row(*cells: str) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())
