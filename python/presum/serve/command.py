# SPDX-License-Identifier: Apache-2.0
"""The command line of ``presum serve``."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from presum.errors import UserError
from presum.serve.runs import FILE, Runs
from presum.serve.server import Server, hostname
from presum.text import one_line

PORT = 6016
LOCAL = ("localhost", "127.0.0.1", "::1")
ANY = ("0.0.0.0", "::", "")
UNUSABLE = (OSError, TypeError, UnicodeError)  # those two: a name that no host can have
NICE = 10  # the training's processes come first


def main(argv: Sequence[str]) -> int:
    """Returns 0 after Ctrl-C."""
    given = _parser().parse_args(argv)
    server = _server(_existing(given.path), given)
    _say(f"presum: {given.path} is at {_link(server, given.host)} (Ctrl-C ends it)")
    os.nice(NICE)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print(file=sys.stderr)
    finally:
        server.server_close()
    return 0


def _say(line: str) -> None:
    unwritable = UserError("serve: cannot print the link to standard output")
    if sys.stdout is None:  # closed
        raise unwritable
    try:
        print(line, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise unwritable from None


def _existing(given: str) -> Path:
    path = Path(given)
    if given and (path.is_dir() or (path.name == FILE and path.is_file())):
        return path
    why = "neither a run nor a folder" if path.is_file() else "no such folder"
    raise UserError(
        f"serve: {given or repr(given)}: {why}; a run that has not begun yet appears in the list "
        "of its folder"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="presum serve",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Show runs in a browser while they are recorded: the report of a run, which\n"
        "follows its steps and keeps zoom and place, or the list of a folder's runs.\n"
        "It only reads, and only the link that it prints, which holds a token, leads in.",
        epilog="Where training is on another machine, forward the port and open the link here:\n"
        f"  ssh -t -L {PORT}:127.0.0.1:{PORT} HOST presum serve runs --port {PORT}\n\n"
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
        type=_name,
        action="append",
        default=[],
        help="another name that browsers may use for this server, for example a proxy's; may be "
        "repeated",
    )
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return int(text)


def _name(text: str) -> str:
    name = hostname(text)
    if not name or name != text.lower().strip("[]"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a name of a host, without a port")
    return name


def _server(path: Path, given: argparse.Namespace) -> Server:
    hosts = {*LOCAL, *given.allow_host, hostname(socket.gethostname()), given.host.lower()} - {*ANY}
    ports = [PORT, 0] if given.port is None else [given.port]
    for port in ports[:-1]:
        with suppress(*UNUSABLE):
            return Server((given.host, port), Runs(path), str(path), hosts)
    try:
        return Server((given.host, ports[-1]), Runs(path), str(path), hosts)
    except UNUSABLE as error:
        raise UserError(
            f"serve: cannot listen on {given.host} port {ports[-1]}: {one_line(error)}"
        ) from None


def _link(server: Server, host: str) -> str:
    name = socket.gethostname() if host in ANY else f"[{host}]" if ":" in host else host
    return f"http://{name}:{server.server_address[1]}/#{server.token}"
