# SPDX-License-Identifier: Apache-2.0
"""A webhook on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Receiver(HTTPServer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.codes: list[int] = []  # the first answers; then 200
        self.bodies: list[Any] = []
        self.decode: Callable[[bytes], Any] = json.loads
        self.asked = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/secret-path"


class Answer(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.asked += 1
        body = self.server.decode(self.rfile.read(int(self.headers["Content-Length"])))
        code = self.server.codes.pop(0) if self.server.codes else 200
        if code == 200:
            self.server.bodies.append(body)
        self.send_response(code)
        self.send_header("Location", self.server.address + "/elsewhere")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def receiving() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()
