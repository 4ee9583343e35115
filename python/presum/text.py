# SPDX-License-Identifier: Apache-2.0
"""Texts that come from elsewhere, as what terminals and the run log take."""

from __future__ import annotations


def printable(text: str) -> str:
    """On one line, and without what is no character (lone surrogates)."""
    return " ".join(text.encode("utf-8", "replace").decode("utf-8").split())


def one_line(error: BaseException) -> str:
    """What an exception says."""
    return printable(str(error)) or type(error).__name__
