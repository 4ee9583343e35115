# SPDX-License-Identifier: Apache-2.0
"""``make docs``: every page, every link, and no request to another host."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import presum
from presum._core import check_ids

for package in ("sphinx", "furo", "myst_parser"):
    pytest.importorskip(package)
ROOT = Path(__file__).parents[1]


def is_elsewhere(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


class Addresses(HTMLParser):
    """The ids of a page, the addresses that it links to, and those that it loads."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.ids.add(values.get("id", ""))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        self.loads += [values[n] for n in ("src", "href") if tag != "a" and n in values]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "tools/docs_site.py", str(out)], cwd=ROOT, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    return out


def test_documents_checks_names_and_headers_have_a_place(site: Path) -> None:
    for document in (ROOT / "docs").glob("*.md"):
        assert (site / f"{document.stem}.html").is_file()
    assert {page.stem for page in (site / "checks").glob("*.html")} == {*check_ids(), "index"}
    names = Addresses(site / "python.html").ids
    assert {f"presum.{n}" for n in presum.__all__ if n not in ("__version__", "reduce")} <= names
    headers = [path.stem for path in (ROOT / "include").rglob("*.h")]
    assert sorted(page.stem for page in (site / "cpp").glob("*.html")) == sorted(
        [*headers, "index"]
    )
    assert "presum.reduce.sum" in names


def test_styles_load_nothing_from_elsewhere(site: Path) -> None:
    for style in site.rglob("*.css"):
        loads = re.findall(
            r"url\(['\"]?([^'\")]+)|@import ['\"]([^'\"]+)", style.read_text("utf-8")
        )
        assert [a for pair in loads for a in pair if a and is_elsewhere(a)] == []


def test_links_lead_somewhere_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = {page: Addresses(page) for page in site.rglob("*.html")}
    for page, found in pages.items():
        assert [a for a in found.loads if is_elsewhere(a)] == []
        for address in found.links:
            parts = urlsplit(address)
            if parts.scheme:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            assert target.is_file(), (page.name, address)
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].ids, (page.name, address)
