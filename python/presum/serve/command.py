# SPDX-License-Identifier: Apache-2.0
"""The command line of ``presum serve``."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from presum.errors import UserError
from presum.serve.runs import FILE, Runs
from presum.serve.server import Server
from presum.text import one_line

PORT = 6016
LOCAL = ("localhost", "127.0.0.1", "::1")
ANY = ("0.0.0.0", "::", "")
NICE = 10  # the training's processes come first


def main(argv: Sequence[str]) -> int:
    """Returns 0 after Ctrl-C."""
    given = _parser().parse_args(argv)
    path = Path(given.path)
    if not (path.is_dir() or (path.name == FILE and path.exists())):
        raise UserError(
            f"serve: {path}: no such folder; a run that has not begun yet appears in "
            "the list of its folder"
        )
    server = _server(path, given)
    os.nice(NICE)
    print(f"presum: {path} is at {_link(server, given.host)} (Ctrl-C ends it)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print(file=sys.stderr)
    finally:
        server.server_close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="presum serve",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Show runs in a browser while they are recorded: the report of a run, which\n"
        "follows its steps and keeps zoom and place, or the list of a folder's runs.\n"
        "It only reads, and only the link that it prints, which holds a token, leads in.",
        epilog="Where training is on another machine, forward the port and open the link here:\n"
        f"  ssh -L {PORT}:localhost:{PORT} HOST presum serve runs\n\n"
        "On a network file system a run can be read when it has ended.",
        allow_abbrev=False,
    )
    parser.add_argument("path", metavar="RUN|FOLDER", help="a run, or a folder of runs")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: "
        "%(default)s, this machine only; others see what is sent unencrypted)",
    )
    parser.add_argument(
        "--port", type=_port, help=f"(default: {PORT}, or a free one if it is taken)"
    )
    parser.add_argument(
        "--allow-host",
        metavar="NAME",
        action="append",
        default=[],
        help="another "
        "name that browsers may use for this server, for example a proxy's; may be "
        "repeated",
    )
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return int(text)


def _hosts(given: argparse.Namespace) -> set[str]:
    names = {*LOCAL, *given.allow_host, socket.gethostname()}
    return {name.lower().strip("[]") for name in names | ({given.host} - {*ANY})}


def _server(path: Path, given: argparse.Namespace) -> Server:
    runs, hosts = Runs(path), _hosts(given)
    ports = [PORT, 0] if given.port is None else [given.port]
    for port in ports:
        try:
            return Server((given.host, port), runs, str(path), hosts)
        except OSError as error:
            if port == ports[-1]:
                raise UserError(
                    f"serve: cannot listen on {given.host} port {port}: {one_line(error)}"
                ) from None
    raise AssertionError


def _link(server: Server, host: str) -> str:
    name = socket.gethostname() if host in ANY else f"[{host}]" if ":" in host else host
    return f"http://{name}:{server.server_address[1]}/#{server.token}"
