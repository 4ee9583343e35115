# SPDX-License-Identifier: Apache-2.0
"""Reading what the documents say, and writing the parts of them that are generated."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path


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


def hold_generated(document: Path, marker: str, expected: str) -> None:
    """What stands between a document's markers is ``expected``.

    With PRESUM_UPDATE_DOCS=1 in the environment it is made so.
    """
    begin, end = f"<!-- generated: {marker} -->\n", f"<!-- end: {marker} -->\n"
    text = document.read_text(encoding="utf-8")
    before, found, rest = text.partition(begin)
    inside, closed, after = rest.partition(end)
    assert found and closed, f"{document.name} has no markers {marker!r}"
    expected = f"\n{expected.strip()}\n\n"
    if inside != expected and os.environ.get("PRESUM_UPDATE_DOCS") == "1":
        document.write_text(before + begin + expected + end + after, encoding="utf-8")
        return
    assert inside == expected, (
        f"the part {marker!r} of {document.name} is generated and out of date: run this test with "
        "PRESUM_UPDATE_DOCS=1 in the environment, and look at what it changes"
    )


def table_of(header: str, rows: Iterable[Iterable[str]]) -> str:
    """A table; ``header`` is its first line."""
    lines = [header, "|" + "---|" * (header.count("|") - 1)]
    for row in rows:
        cells = [cell.replace("|", "\\|") for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(line.replace("|  |", "| |") for line in lines)
