# SPDX-License-Identifier: Apache-2.0
"""Findings that are posted: what, to whom, and what becomes of the address."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.recorded_runs import record
from helpers.webhook_receiver import Receiver, receiving
from presum.errors import UserError
from presum.findings import Finding
from presum.trackers import following
from presum.trackers.following import end_of, follow
from presum.trackers.webhook import MESSAGES, Webhook, address_in, body_for, message_of

FINDING = Finding(
    check="shared-rng",
    severity="critical",
    ranks=[0, 1],
    first_step=3,
    last_step=9,
    confidence=1.0,
    title="Ranks share a <generator>",
    sentence="Ranks share a <generator> & more, since step 3",
    remedy="Seed each rank.",
)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as server:
        yield server


Send = Callable[[str], list[str]]


@pytest.fixture
def send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Send:
    """Records a run whose findings go to an address. Returns the remarks."""

    def sent(address: str) -> list[str]:
        monkeypatch.setattr(following, "LOOK_SECONDS", 0.01)
        monkeypatch.setattr(following, "RETRY_SECONDS", 0.01)
        remarks: list[str] = []
        record(tmp_path / "run", opened=lambda: places.append(end_of(tmp_path / "run")))
        trackers = {"webhook": (Webhook(), {"address": address})}
        follow(trackers, places[0], remarks.append, lambda: None, 100.0)
        return remarks

    places: list[Any] = []
    return sent


def test_findings_are_posted_once(receiver: Receiver, send: Send) -> None:
    assert send(receiver.address) == []
    checks = [body["check"] for body in receiver.bodies]
    assert "nonfinite-gradient" in checks and len(set(checks)) == len(checks)
    (body,) = (body for body in receiver.bodies if body["check"] == "nonfinite-gradient")
    assert body["severity"] == "critical" and body["ranks"] == [1] and body["first_step"] == 3
    assert body["text"].startswith("presum: run: critical: ") and body["run"] == "run"


def test_a_redirect_is_not_followed(receiver: Receiver, send: Send) -> None:
    receiver.codes = [307] * 1000
    (remark,) = send(receiver.address)
    assert remark == "webhook: it answered 307; the run log has everything"
    assert receiver.bodies == []


def test_no_message_has_the_address(send: Send) -> None:
    with Receiver() as gone:
        address = gone.address
    (remark,) = send(address)
    assert remark.startswith("webhook: no answer (") and "refused" in remark
    assert "secret-path" not in remark and "127.0.0.1" not in remark


def test_an_error_is_tried_again(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.codes = [503, 429, 500]
    monkeypatch.setattr(following, "RETRY_SECONDS", 0.01)
    places: list[Any] = []
    record(tmp_path, opened=lambda: places.append(end_of(tmp_path)))
    remarks: list[str] = []
    trackers = {"webhook": (Webhook(), {"address": receiver.address})}

    def await_end() -> None:
        while not any(body["check"] == "nonfinite-gradient" for body in receiver.bodies):
            threading.Event().wait(0.01)

    follow(trackers, places[0], remarks.append, await_end, 100.0)
    assert remarks == ["webhook: it answered 503; the run log has everything"]


def test_slack_gets_its_own_shape() -> None:
    message = message_of(FINDING, "a")
    expected = "presum: a: critical: Ranks share a &lt;generator&gt; &amp; more, since step 3"
    slack = body_for("https://hooks.slack.com/services/x", message)
    assert slack == {"text": f"{expected} [shared-rng]\nSeed each rank."}
    assert body_for("https://hooks.slack.com.example/x", message) == message


def test_messages_are_few(receiver: Receiver) -> None:
    hook = Webhook()
    hook.open(Path("runs/a"), {"address": receiver.address})
    for _ in range(MESSAGES + 5):
        hook.tell(FINDING)
    texts = [body["text"] for body in receiver.bodies]
    assert len(texts) == MESSAGES
    assert [text.endswith("no further message.") for text in texts] == [False] * 19 + [True]


def test_information_is_no_alert(receiver: Receiver) -> None:
    hook = Webhook()
    hook.open(Path("runs/a"), {"address": receiver.address})
    hook.tell(Finding("x", "info", [0], 0, 0, 1.0, "t", "s"))
    assert receiver.asked == 0


def test_the_body_is_json() -> None:
    body = json.loads(json.dumps(message_of(FINDING, "a")))
    assert body["title"] == FINDING.title and body["source"] == "presum"
    unknown = message_of(replace(FINDING, confidence=float("nan")), "a")
    assert json.loads(json.dumps(unknown, allow_nan=False))["confidence"] is None


@pytest.mark.parametrize("address", ["https://h.example/x", "http://localhost:1/x\n"])
def test_the_address_comes_from_a_file_or_the_environment(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hook"
    file.write_text(address)
    monkeypatch.setenv("HOOK", address)
    assert address_in(str(file)) == address_in("HOOK") == address.strip()


@pytest.mark.parametrize(
    "address",
    ["", "http://h.example/x", "ftp://h/x", "https://", "https://h.example/x y", "https://[", "é"],
)
def test_an_address_that_is_not_safe_is_refused(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", address)
    with pytest.raises(UserError, match="HOOK must hold an address that begins with https"):
        address_in("HOOK")


def test_a_place_that_is_none_is_named() -> None:
    with pytest.raises(UserError, match="NO_HOOK is neither"):
        address_in("NO_HOOK")
