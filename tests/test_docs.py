# SPDX-License-Identifier: Apache-2.0
"""What holds for all documents."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import presum
from markdown_tables import tables
from presum._core import check_ids, shown_tables, stored_tables

DOCS = Path(__file__).parents[1] / "docs"


def documents() -> list[Path]:
    return sorted([*DOCS.glob("*.md"), *DOCS.parent.glob("*.md")])


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#\s]+)", text):
        if not link.startswith(("http://", "https://")):
            assert (document.parent / link).exists(), link


GLOSSARY = (DOCS / "glossary.md").read_text(encoding="utf-8")
SOURCES = "".join(
    path.read_text(encoding="utf-8")
    for folder, pattern in [("include", "*.h"), ("src", "*.h"), ("python/presum", "*.py")]
    for path in sorted((DOCS.parent / folder).rglob(pattern))
)


def words() -> list[list[str]]:
    return [row for table in tables(GLOSSARY) for row in table]


def test_a_word_is_explained_once() -> None:
    names = [word for word, *_ in words()]
    assert len(names) == len(set(names)) >= 30
    assert all(meaning and (code or users) for _, meaning, code, users in words())


@pytest.mark.parametrize("row", words(), ids=lambda row: row[0])
def test_names_in_the_glossary_are_in_the_code(row: list[str]) -> None:
    columns = {c for _, _, listed in [*shown_tables(), *stored_tables()] for c, *_ in listed}
    for name in filter(None, row[2].split(", ")):
        owner, *member = name.split("::")
        assert re.search(rf"\b(?:struct|class|enum class|using) {owner}\b", SOURCES), name
        assert not member or re.search(rf"\b{member[0]}\b", SOURCES), name
    for argument in re.findall(r"attach\((\w+)=\)", row[3]):
        assert argument in inspect.signature(presum.attach).parameters
    for frame in re.findall(r"\bframe (\w+)", row[3]):
        assert frame in {name for name, *_ in shown_tables()}
    for listed in re.findall(r"\bcolumns? ([\w, ]+)", row[3]):
        assert set(listed.split(", ")) <= columns, listed


# What a command writes lies between two comments.
GENERATED = re.compile(r"^<!-- .*? -->$.*?^<!-- .*? -->$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"^```.*?^```$|^ {4,}.*?$", re.DOTALL | re.MULTILINE)


def prose(document: Path) -> str:
    return CODE.sub("", GENERATED.sub("", document.read_text(encoding="utf-8")))


def length(text: str) -> int:
    return sum(any(c.isalpha() for c in word) for word in text.split())


def test_the_documents_are_short() -> None:
    lengths = {path.name: length(prose(path)) for path in documents()}
    assert sum(lengths.values()) <= 25_800
    del lengths["ARCHITECTURE.md"]
    assert {name: words for name, words in lengths.items() if words > 2_000} == {}


@pytest.mark.parametrize("document", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_a_page_says_who_reads_it(document: Path) -> None:
    first = document.read_text(encoding="utf-8").split("\n", 3)[2]
    assert re.match(r"For (users|operators|maintainers|readers)\b", first), first


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_paths_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    folders = "src|include|python|tests|examples|bench|cmake|tools|wheels|docs|gpu_check"
    for path in re.findall(rf"`((?:{folders})/[\w./-]+)`", text):
        assert (DOCS.parent / path).exists(), path


def test_the_readme_s_figures_are_measured() -> None:
    numbers = re.findall(r"[\d.]*\d", (DOCS / "performance.md").read_text(encoding="utf-8"))
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    (costs,) = re.findall(r"## What it costs\n(.*?)\n## ", readme, re.DOTALL)
    figures = [re.sub(r":.*", "", row[1]) for table in tables(costs) for row in table]
    assert len(figures) == 4
    for number in re.findall(r"[\d.]*\d", " ".join(figures)):
        assert number in numbers, number


def test_the_readme_s_findings_are_checks() -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    (finds,) = re.findall(r"## What it finds\n(.*?)\nAll checks", readme, re.DOTALL)
    named = [name for row in tables(finds)[0] for name in row[2].split(", ")]
    assert len(named) >= 10 and set(named) <= set(check_ids())


def test_the_readme_fits_two_screens() -> None:
    assert len((DOCS.parent / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_first_training_is_a_program() -> None:
    start = (DOCS / "start.md").read_text(encoding="utf-8")
    program, *_ = re.findall(r"```python\n(.*?)```", start, re.DOTALL)
    compile(program, "train.py", "exec")


def test_messages_of_the_troubleshooting_are_given() -> None:
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    code = "".join(
        path.read_text(encoding="utf-8")
        for folder, pattern in [("src", "*.cc"), ("python/presum", "*.py")]
        for path in sorted((DOCS.parent / folder).rglob(pattern))
    )
    joined = re.sub(r'"\s*f?"', "", code)  # a literal goes on in the next line
    messages = [row[0] for table in tables(text) for row in table]
    assert len(messages) == 20
    assert [message for message in messages if message not in joined] == []
