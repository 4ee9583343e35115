# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven over a pipe with the DevTools protocol; nothing but the standard
library."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

COMMAND_TIMEOUT_S = 600
CLOSE_TIMEOUT_S = 10
_FIRST_SPARE_FD = 10


def find() -> str | None:
    """Chromium's command, if it is installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def with_page_functions(expression: str) -> str:
    """An expression that may call functions of the report's scripts, which a page keeps to
    itself."""
    scripts = Path(__file__).parents[1] / "src" / "report" / "page"
    texts = [file.read_text() for file in sorted(scripts.glob("*.js")) if file.name != "main.js"]
    return "(() => {" + "\n".join([*texts, f"return {expression};"]) + "})()"


class Browser:
    """One Chromium with one page. Close it, or use it as a context manager."""

    def __init__(self, command: str) -> None:
        # Chromium's helpers may still write there when their parent is gone.
        self._profile = tempfile.TemporaryDirectory(
            prefix="presum-chromium-", ignore_cleanup_errors=True
        )
        to_browser = _high_pipe()
        from_browser = _high_pipe()

        def take_pipes() -> None:
            os.dup2(to_browser[0], 3)
            os.dup2(from_browser[1], 4)

        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        flags += ["--hide-scrollbars", "--no-first-run", "--disable-background-networking"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={self._profile.name}"]
        self._process = subprocess.Popen(
            [command, *flags, "about:blank"],
            pass_fds=(3, 4),
            preexec_fn=take_pipes,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        self._out, self._in = to_browser[1], from_browser[0]
        self._buffer = b""
        self._ids = itertools.count(1)
        self._session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._events: list[str] = []
        self._attach()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._session = None
        with contextlib.suppress(OSError):
            self._send("Browser.close", {})
        try:
            self._process.wait(CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)
        self._profile.cleanup()

    def open(self, page: Path | str) -> float:
        """Load a file or an address and wait until it has drawn; returns the seconds that took."""
        self.errors.clear()
        self.requests.clear()
        self._events.clear()
        started = time.monotonic()
        self.command(
            "Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri()
        )
        while "Page.loadEventFired" not in self._events:
            self._read(started + COMMAND_TIMEOUT_S)
        self.settle()
        return time.monotonic() - started

    def settle(self) -> None:
        """Wait until the page has painted what it was told to."""
        frames = "new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))"
        self.evaluate(frames)

    def evaluate(self, expression: str) -> Any:
        answer = self.command(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def size(self, width: int, height: int, *, scale: float = 1, touch: bool = False) -> None:
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=touch,
        )

    def prefer(self, scheme: str, media: str = "") -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", media=media, features=features)

    def click(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.command(
                "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
            )
        self.settle()

    def key(self, key: str) -> None:
        codes = {"Enter": 13, "ArrowRight": 39, "ArrowDown": 40}
        for kind in ("rawKeyDown", "keyUp"):
            self.command(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes[key]
            )
        self.settle()

    def pdf(self, to: Path) -> None:
        answer = self.command("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        to.write_bytes(base64.b64decode(answer["data"]))

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = self._send(method, parameters)
        deadline = time.monotonic() + COMMAND_TIMEOUT_S
        while True:
            answer = self._read(deadline)
            if answer.get("id") == number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _send(self, method: str, parameters: dict[str, Any]) -> int:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        return number

    def _attach(self) -> None:
        targets = self.command("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        attached = self.command("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.command(f"{domain}.enable")

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("Chromium does not answer")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise ConnectionError("Chromium ended")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method = message.get("method", "")
        parameters = message.get("params", {})
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.errors.append(json.dumps(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])


def _high_pipe() -> tuple[int, int]:
    """A pipe whose ends lie above the descriptors 3 and 4 that Chromium expects."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _FIRST_SPARE_FD) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]
