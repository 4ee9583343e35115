# SPDX-License-Identifier: Apache-2.0
"""What holds for all documents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def documents() -> list[Path]:
    return sorted([*DOCS.glob("*.md"), *DOCS.parent.glob("*.md")])


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#\s]+)", text):
        if not link.startswith(("http://", "https://")):
            assert (document.parent / link).exists(), link
