# SPDX-License-Identifier: Apache-2.0
"""Writes the generated part of docs/findings.md: the declaration of each check, and the comment at
the beginning of its file. With --check, only checks that the document is up to date."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "findings.md"
BEGIN, END = "<!-- tools/findings_doc.py writes from here -->", "<!-- to here -->"


def declared() -> list[dict[str, Any]]:
    """Every check, by precedence."""
    command = [sys.executable, "-m", "presum", "explain", "--format", "json"]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(told.stdout)  # type: ignore[no-any-return]


def declaring() -> Iterator[tuple[str, str]]:
    """The id of the first check and the source of each file that declares checks."""
    for path in sorted((ROOT / "src" / "checks").glob("*/*.cc")):
        source = path.read_text(encoding="utf-8")
        if check := re.search(r'\.id = "([a-z-]+)"', source):
            yield check[1], source


def notes() -> dict[str, str]:
    """The comments at the beginning of the files, by check."""
    comments = {c: re.match(r"// SPDX.*\n((?://.*\n)+)", source) for c, source in declaring()}
    return {
        check: re.sub(r"^// ?", "", comment[1], flags=re.MULTILINE).strip()
        for check, comment in comments.items()
        if comment
    }


def evidence() -> dict[str, list[str]]:
    """The names of the values in evidence, from files and the headers that they include, by
    check."""
    out = {}
    for check, source in declaring():
        headers = re.findall(r'#include "(checks/(?!engine/)[\w/]+\.h)"', source)
        if "Differing" in source:
            headers.append("checks/engine/agree.h")
        texts = [source, *((ROOT / "src" / h).read_text(encoding="utf-8") for h in headers)]
        out[check] = list(dict.fromkeys(re.findall(r'\bfield\("(\w+)"', "".join(texts))))
    return out


def section(check: dict[str, Any]) -> str:
    lines = [
        f"### {check['check']}",
        "",
        f"{check['severity'].capitalize()}. {check['consequence']}",
        "",
        "```python",
        check["mistake"],
        "```",
        "",
        f"- Looks at {check['compares']}.",
        f"- Fires {check['fires']}.",
        f"- Cannot see: {check['cannot_see']}",
        f"- Fix: {check['fix']}",
    ]
    if check["resembles"]:
        lines.append(f"- Resembles {check['resembles']}.")
    if check["explains"]:
        lines.append("- Explains " + ", ".join(f"`{effect}`" for effect in check["explains"]) + ".")
    return "\n".join(lines)


def generated() -> str:
    checks, told, values = declared(), notes(), evidence()
    table = ["| check | severity | looks at | fires |", "|---|---|---|---|"]
    table += [
        f"| `{c['check']}` | {c['severity']} | {c['compares']} | {c['fires']} |" for c in checks
    ]
    parts = ["\n".join(table)]
    for check in checks:
        parts.append(section(check))
        if check["check"] in told:
            parts.append(told[check["check"]])
        if values.get(check["check"]):
            names = ", ".join(f"`{name}`" for name in values[check["check"]])
            parts.append(f"Values in evidence: {names}.")
    return "\n\n".join(parts)


def main() -> int:
    document = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = document.partition(BEGIN)
    text = f"{before}{BEGIN}\n\n{generated()}\n\n{END}{rest.partition(END)[2]}"
    if "--check" not in sys.argv:
        DOCUMENT.write_text(text, encoding="utf-8")
    elif text != document:
        print("docs/findings.md is out of date with the checks: run tools/findings_doc.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
