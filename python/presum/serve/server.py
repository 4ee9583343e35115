# SPDX-License-Identifier: Apache-2.0
"""The HTTP server: read only, for those who have its token."""

from __future__ import annotations

import hmac
import io
import logging
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import urlsplit

from presum._core import live_page
from presum.serve.pages import listing, login
from presum.serve.runs import Runs, ServedRun
from presum.text import one_line

log = logging.getLogger("presum")

CONNECTIONS = 32  # at once; others are refused
REQUEST_SECONDS = 5.0  # for a whole request to arrive
ANSWER_SECONDS = 60.0
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
POLICY = (
    "default-src 'none'; style-src 'nonce-{0}'; script-src 'nonce-{0}'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HTML, TEXT = "text/html; charset=utf-8", "text/plain; charset=utf-8"


class Server(ThreadingTCPServer):
    """Serves runs until ``shutdown``.

    Args:
        address: host and port to listen on. Port 0: any that is free.
        runs: what it serves.
        title: of the list of runs.
        hosts: names by which browsers may call it, in lower case and without a port. A page of
            another name that leads here cannot read anything.
    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], runs: Runs, title: str, hosts: Collection[str]
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.runs = runs
        self.title = title
        self.hosts = frozenset(hosts)
        self.token = secrets.token_urlsafe(24)
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(address, Handler)

    @property
    def cookie(self) -> str:
        """Its name. Browsers do not tell the servers of one host apart by port."""
        return f"presum-{self.server_address[1]}"

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("presum: serve: a request failed", exc_info=True)


def hostname(host: str) -> str:
    """In lower case, without the port; "" if it is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


class _BoundedReader(io.RawIOBase):
    """A socket that must have sent everything by a time."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._end = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request did not arrive in time")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class Handler(BaseHTTPRequestHandler):
    """One request, after which the connection ends."""

    server: Server

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_BoundedReader(self.connection, REQUEST_SECONDS))

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if not self._is_called_rightly():
            return
        if not self._is_known():
            if path == "/":
                self._page(login)
            else:
                self._say(403, "open the link that presum serve printed: it holds the token")
            return
        if path == "/":
            self._first_page()
            return
        where = re.fullmatch(r"/runs/([^/]+)(?:|/|/(data))", path)
        run = where and self.server.runs.find(where[1])
        if not where or not run:
            self._say(404, "there is no such run")
        elif where[2]:
            self._data(run, query.removeprefix("have="))
        elif path.endswith("/"):
            self._page(live_page)
        else:
            self._lead_to(run)

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not self._is_called_rightly():
            return
        if self.path != "/login":
            self._say(404, "there is no such page")
        elif not re.fullmatch(r"\d{1,3}", length, re.ASCII):
            self._say(413, "this is not the token")
        elif not self._is_token(self.rfile.read(int(length))):
            self._say(403, "this is not the token")
        else:
            cookie = f"{self.server.cookie}={self.server.token}; Path=/; HttpOnly; SameSite=Strict"
            self._answer(204, TEXT, b"", {"Set-Cookie": cookie})

    def _is_called_rightly(self) -> bool:
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if hostname(host) not in {*self.server.hosts, self.connection.getsockname()[0]}:
            self._say(403, "presum serve does not go by this name: allow it with --allow-host")
        elif origin is not None and origin.partition("://")[2] != host:
            self._say(403, "a page from elsewhere asks")
        else:
            return True
        return False

    def _is_known(self) -> bool:
        for part in self.headers.get("Cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self.server.cookie and self._is_token(value.encode("utf-8", "replace")):
                return True
        return False

    def _is_token(self, given: bytes) -> bool:
        return hmac.compare_digest(given, self.server.token.encode())

    def _first_page(self) -> None:
        run = self.server.runs.only()
        if run is not None:
            self._lead_to(run)
            return
        runs, older = self.server.runs.newest()
        self._page(lambda nonce: listing(self.server.title, runs, older, nonce))

    def _lead_to(self, run: ServedRun) -> None:
        self._answer(302, TEXT, b"", {"Location": f"/runs/{run.link}/"})

    def _data(self, run: ServedRun, have: str) -> None:
        if self.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            self._say(403, "a page from elsewhere asks")
            return
        try:
            data = run.data()
        except Exception as error:
            self._say(503, one_line(error))
            return
        if data.tag == have:
            self._answer(204, TEXT, b"", {})
            return
        more = {
            "Content-Encoding": "gzip",
            "Presum-Tag": data.tag,
            "Last-Modified": formatdate(data.written.seconds, usegmt=True),
        }
        self._answer(200, "application/json", data.body, more)

    def _page(self, make: Callable[[str], str]) -> None:
        nonce = secrets.token_urlsafe(16)
        body = make(nonce).encode("utf-8")
        self._answer(200, HTML, body, {"Content-Security-Policy": POLICY.format(nonce)})

    def _say(self, code: int, text: str) -> None:
        self._answer(code, TEXT, text.encode("utf-8"), {})

    def _answer(self, code: int, kind: str, body: bytes, headers: dict[str, str]) -> None:
        self.connection.settimeout(ANSWER_SECONDS)
        self.send_response(code)
        for name, value in {**HEADERS, **headers}.items():
            self.send_header(name, value)
        if code != 204:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A request that is not one that this server knows."""
        self._say(code, "presum serve answers GET, and POST of its token")

    def version_string(self) -> str:
        return "presum"

    def log_message(self, *_: object) -> None:
        """Nothing: the terminal is for the link."""
