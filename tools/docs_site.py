# SPDX-License-Identifier: Apache-2.0
"""Builds the documentation as a site: ``make docs``.

Sphinx reads one folder of pages, so this script makes one: docs/, the documents at the root, one
page per check, the Python reference, and the public C++ headers. Links between documents become
links between pages. Every warning of Sphinx, such as a link without a target, is an error.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sphinx.cmd.build import build_main

import presum

ROOT = Path(__file__).parents[1]
AT_ROOT = {
    "README.md": "index.md",
    **{name: name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")},
}
PARTS = {
    "Use": "start integrations findings quiet troubleshooting time compare blame audit reduction "
    "experiment ways tokens faults glossary",
    "Operate": "install performance devices runlog_format",
    "Maintain": "ARCHITECTURE CONTRIBUTING metrics detectors step packet_format CHANGELOG",
    "Reference": "checks/index python cpp cpp/index",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
CODE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)

CONFIGURATION = """\
project = "presum"
author = "the presum authors"
html_title = "presum"
html_theme = "furo"
html_copy_source = False
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
autoclass_content = "both"
highlight_language = "text"
suppress_warnings = ["misc.highlighting_failure"]
"""


def main(site: Path) -> int:
    """Writes the site. Returns 0, or Sphinx's exit code for a warning or an error."""
    shutil.rmtree(site, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        write_pages(Path(folder))
        return build_main(
            ["-W", "--keep-going", "-q", "-d", f"{folder}/.doctrees", folder, str(site)]
        )


def write_pages(folder: Path) -> None:
    pages = dict(all_pages())
    for uri, (source, text) in pages.items():
        path = folder / uri
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(with_links(text, source=source, uri=uri, pages=set(pages)), "utf-8")
    for picture in (ROOT / "docs").glob("*.png"):
        shutil.copy(picture, folder)
    (folder / "conf.py").write_text(CONFIGURATION, "utf-8")


def all_pages() -> Iterator[tuple[str, tuple[str, str]]]:
    """Each page's address, the file of the repository that its links start from, and its text."""
    for name, uri in AT_ROOT.items():
        yield uri, (name, (ROOT / name).read_text("utf-8"))
    for path in sorted((ROOT / "docs").glob("*.md")):
        yield path.name, (f"docs/{path.name}", path.read_text("utf-8"))
    findings = (ROOT / "docs" / "findings.md").read_text("utf-8")
    sections = re.findall(r"^### ([a-z-]+)\n(.*?)(?=^##)", findings, re.DOTALL | re.MULTILINE)
    for check, text in sections:
        yield f"checks/{check}.md", ("docs/findings.md", f"# {check}\n{text}")
    yield "checks/index.md", ("", contents("Checks", [check for check, _ in sections]))
    yield "findings.md", ("docs/findings.md", without_sections(findings, [c for c, _ in sections]))
    headers = sorted((ROOT / "include").rglob("*.h"))
    for path in headers:
        text = f"# {path.relative_to(ROOT / 'include')}\n\n```cpp\n{path.read_text('utf-8')}```\n"
        yield f"cpp/{path.stem}.md", ("", text)
    yield "cpp/index.md", ("", contents("C++ headers", [path.stem for path in headers]))
    yield "python.md", ("", python_reference())


def contents(title: str, names: list[str]) -> str:
    return "\n".join([f"# {title}", "", "```{toctree}", *names, "```", ""])


def without_sections(findings: str, checks: list[str]) -> str:
    """docs/findings.md with links to the checks' pages instead of their sections."""
    text = re.sub(r"^### [a-z-]+\n.*?(?=^##)", "", findings, flags=re.DOTALL | re.MULTILINE)
    row = rf"^\| `({'|'.join(checks)})` \|"
    return re.sub(row, r"| [`\1`](checks/\1.md) |", text, flags=re.MULTILINE)


def python_reference() -> str:
    """Every public name, from its docstring."""
    lines = ["# Python reference", "", "```{eval-rst}", ".. currentmodule:: presum", ""]
    for name in presum.__all__:
        kind = type(getattr(presum, name)).__name__
        if kind == "function":
            lines += [f".. autofunction:: {name}", ""]
        elif kind == "type":
            lines += [f".. autoclass:: {name}", ""]
        elif kind == "module":
            lines += [f".. automodule:: presum.{name}", ""]
    return "\n".join([*lines, "```", ""])


def with_links(text: str, *, source: str, uri: str, pages: set[str]) -> str:
    """Links of the repository's file ``source`` as links of the page ``uri``. A link to a file that
    has no page becomes text."""

    def replaced(link: re.Match[str]) -> str:
        image, shown, target, anchor = link.groups()
        if not target or "://" in target or target.startswith("checks/"):
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        page = AT_ROOT.get(path, path.removeprefix("docs/"))
        if not image and page not in pages:
            return shown
        relative = posixpath.relpath(page, posixpath.dirname(uri) or ".")
        return f"{image}[{shown}]({relative}{anchor or ''})"

    parts = CODE.split(text)
    parts[::2] = [LINK.sub(replaced, part) for part in parts[::2]]
    if uri == "index.md":
        parts += [
            f"\n```{{toctree}}\n:hidden:\n:caption: {part}\n\n"
            + "\n".join(names.split())
            + "\n```\n"
            for part, names in PARTS.items()
        ]
    return "".join(parts)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
