# SPDX-License-Identifier: Apache-2.0
"""Posts findings to a webhook."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Sequence
from http.client import HTTPMessage
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from presum._core import __version__
from presum.errors import UserError
from presum.findings import Finding
from presum.text import one_line
from presum.trackers.tracker import Found, Row

SECONDS = 10.0  # for one message
MESSAGES = 20  # of one segment
THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
SLACK = "hooks.slack.com"  # takes no other keys than its own
FIELDS = (
    "check",
    "severity",
    "title",
    "sentence",
    "remedy",
    "ranks",
    "hosts",
    "first_step",
    "last_step",
    "confidence",
    "segment",
    "model_index",
    "dp_group",
)


def address_in(where: str) -> str:
    """The address that an environment variable holds, or a file.

    Raises:
        UserError: there is neither, or what it holds is not the address of a webhook. The message
            does not contain it: who knows it can post.
    """
    text = os.environ.get(where)
    if text is None:
        try:
            text = Path(where).read_text(encoding="utf-8")
        except (OSError, ValueError):
            raise UserError(
                f"{where} is neither an environment variable nor a file that can be read"
            ) from None
    address = text.strip()
    if not _is_safe(address):
        raise UserError(f"{where} must hold an address that begins with https://")
    return address


def _is_safe(address: str) -> bool:
    """Encrypted, or on this machine."""
    try:
        scheme, host = urlsplit(address).scheme, urlsplit(address).hostname
    except ValueError:
        return False
    is_word = re.fullmatch(r"[!-~]+", address) is not None
    return is_word and bool(host) and (scheme == "https" or _is_here(address))


def _is_here(address: str) -> bool:
    return urlsplit(address).scheme == "http" and urlsplit(address).hostname in THIS_MACHINE


class Webhook:
    """A tracker that gets only findings, of severity "warning" and "critical"."""

    @staticmethod
    def find() -> Found:
        return {}

    def open(self, run: Path, found: Found) -> None:
        self._run = run.name
        self._address: str = found["address"]
        self._left = MESSAGES

    def log(self, rows: Sequence[Row]) -> None:
        """Nothing: metrics are no alerts."""

    def tell(self, finding: Finding) -> None:
        if finding.severity == "info" or not self._left:
            return
        message = message_of(finding, self._run)
        if self._left == 1:
            message["text"] += "\nThis run sends no further message."
        _post(self._address, body_for(self._address, message))
        self._left -= 1

    def close(self, verdict: str, report: Path) -> None:
        """Nothing: the program has said it."""


def message_of(finding: Finding, run: str) -> dict[str, Any]:
    """The finding, and as ``text`` what Slack, Mattermost and others show."""
    head = f"presum: {run}: {finding.severity}: {finding.sentence} [{finding.check}]"
    fields = {name: getattr(finding, name) for name in FIELDS}
    if not math.isfinite(finding.confidence):
        fields["confidence"] = None  # JSON has no NaN
    return {"text": f"{head}\n{finding.remedy}".strip(), "source": "presum", "run": run, **fields}


def body_for(address: str, message: dict[str, Any]) -> dict[str, Any]:
    """What the service at an address takes of a message."""
    if urlsplit(address).hostname != SLACK:
        return message
    return {"text": _escaped(message["text"])}


def _escaped(text: str) -> str:
    """https://docs.slack.dev/messaging/formatting-message-text#escaping"""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        """Only the address that was given gets messages."""


def _post(address: str, message: dict[str, Any]) -> None:
    """Raises OSError, without the address."""
    headers = {"Content-Type": "application/json", "User-Agent": f"presum/{__version__}"}
    request = Request(address, json.dumps(message).encode("utf-8"), headers)
    proxies = ProxyHandler({}) if _is_here(address) else ProxyHandler()
    try:
        build_opener(_NoRedirects, proxies).open(request, timeout=SECONDS).close()
    except HTTPError as error:
        error.close()
        raise OSError(f"it answered {error.code}") from None
    except URLError as error:
        reason = error.reason if isinstance(error.reason, Exception) else error
        raise OSError(f"no answer ({_without(address, one_line(reason))})") from None
    except Exception as error:
        raise OSError(f"no answer ({_without(address, one_line(error))})") from None


def _without(address: str, text: str) -> str:
    parts = urlsplit(address)
    for secret in (address, parts.path, parts.hostname or ""):
        if len(secret) > 1:
            text = text.replace(secret, "***")
    return text
