# SPDX-License-Identifier: Apache-2.0
"""Reading what the documents say."""

from __future__ import annotations

import re


def section(text: str, heading: str) -> str:
    """From a heading to the next one of its level or above; code blocks hold no headings."""
    level = heading.split(" ")[0]
    inside, fenced = False, False
    lines = []
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if not fenced and re.match(r"#{1,6} ", line):
            if inside and len(line.split(" ")[0]) <= len(level):
                break
            inside = inside or line == heading
        if inside:
            lines.append(line)
    assert lines, f"no heading {heading!r}"
    return "\n".join(lines)


def tables(text: str) -> list[list[list[str]]]:
    """Rows of cells without backticks and without the header, table by table."""
    found: list[list[list[str]]] = []
    rows: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip().replace("`", "") for cell in line.strip("|").split("|")])
        elif rows:
            found.append(rows[2:])
            rows = []
    return found


def rows_of(text: str, heading: str) -> list[list[str]]:
    (only,) = tables(section(text, heading))
    return only


def code_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def number(text: str) -> int:
    return int(text.replace("_", ""), 0)
