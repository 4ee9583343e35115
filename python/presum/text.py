# SPDX-License-Identifier: Apache-2.0
"""Cleans up text from outside for terminals and the run log."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text on one line, with lone surrogates replaced."""
    return " ".join(text.encode("utf-8", "replace").decode("utf-8").split())


def one_line(error: BaseException) -> str:
    """An exception's message on one line, or its class name if the message is empty."""
    return printable(str(error)) or type(error).__name__
