# SPDX-License-Identifier: Apache-2.0
"""python3 -m gpu_check.table [OUT]: what sections wrote, as a table in docs/devices.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gpu_check.__main__ import LIMITS, ROOT

DOCUMENT = ROOT / "docs" / "devices.md"
BEGIN, END = "<!-- gpu_check -->\n", "<!-- gpu_check ends -->\n"


def main() -> int:
    """0; 2 where nothing was written there by sections that ran on a GPU."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "gpu-check"
    paths = (out / f"{name}.json" for name in LIMITS)
    sections = [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]
    sections = [one for one in sections if not one["dry"]]
    if not sections:
        print(f"gpu_check.table: no section in {out} ran on a GPU", file=sys.stderr)
        return 2
    text = DOCUMENT.read_text(encoding="utf-8")
    DOCUMENT.write_text(with_table(text, sections), encoding="utf-8")
    print(f"{DOCUMENT}: {sum(len(one['rows']) for one in sections)} rows")
    return 0


def with_table(text: str, sections: list[dict[str, Any]]) -> str:
    """The document with their table in place of the one before."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    on = sections[0]["on"]
    lines = [f"On {on['device']}, torch {on['torch']}, CUDA {on['cuda']}:", ""]
    lines += ["| section | what | outcome | |", "|---|---|---|---|"]
    for section in sections:
        for row in section["rows"]:
            cells = (section["section"], row["what"], _text(row["value"]))
            state = "" if row["ok"] else "**not as wanted**"
            lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} | {state} |")
        if not section.get("done", True):
            lines.append(f"| {section['section']} | the rest | not done in its time | |")
    return before + BEGIN + "\n".join(lines) + "\n" + END + after


def _text(value: object) -> str:
    if isinstance(value, list) and len(value) == 3:
        return f"{value[0]} ({value[1]} to {value[2]})"
    return str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())
