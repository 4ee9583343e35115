# SPDX-License-Identifier: Apache-2.0
"""The store servers and connections of this process, kept from one session to the next.

A connection can take seconds if name resolution is slow, and a server costs nine file descriptors
and a thread. Each session uses a connection of its own: a wait on a shared one would block others.
"""

from __future__ import annotations

import os
import socket
import weakref
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store, TCPStore

# Long, because starved threads are slow; only background threads wait.
TIMEOUT = timedelta(seconds=30)
Address = tuple[tuple[str, ...], int]  # host names, and the port


class StoreConnections:
    """The stores of one process. Thread-safety: any thread, one at a time per connection."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._server: TCPStore | None = None
        self._to_servers: dict[Address, list[TCPStore]] = {}
        self._to_default: weakref.WeakKeyDictionary[Store, list[Store]] = (
            weakref.WeakKeyDictionary()
        )

    def serve(self, world_size: int) -> TCPStore:
        """This process's server, started on first use."""
        if self._server is None:
            listener = socket.socket()
            listener.bind(("" if _several_hosts(world_size) else "127.0.0.1", 0))
            self._server = TCPStore(
                "127.0.0.1",
                listener.getsockname()[1],
                is_master=True,
                wait_for_workers=False,
                timeout=TIMEOUT,
                use_libuv=True,
                master_listen_fd=listener.detach(),
            )
        return self._server

    def stop_serving(self) -> None:
        """The server has failed: the next session starts another."""
        self._server = None

    def connect(self, address: Address) -> TCPStore:
        """A connection to the server of another process."""
        idle = _popped(self._to_servers.setdefault(address, []))
        return _connect(address) if idle is None else idle

    def keep(self, address: Address, connection: TCPStore) -> None:
        """Keep a working connection that is not needed now."""
        self._to_servers.setdefault(address, []).append(connection)

    def connect_to_default(self, store: Store) -> Store:
        """A separate connection to the job's default store."""
        idle = _popped(self._to_default.setdefault(store, []))
        return store.clone() if idle is None else idle  # type: ignore[attr-defined, no-any-return]

    def keep_to_default(self, store: Store, connection: Store) -> None:
        self._to_default.setdefault(store, []).append(connection)


_store_connections: StoreConnections | None = None


def store_connections() -> StoreConnections:
    """The connections of this process. A forked child starts with none."""
    global _store_connections
    if _store_connections is None or _store_connections._pid != os.getpid():
        _store_connections = StoreConnections()
    return _store_connections


def own_address(port: int, world_size: int) -> dict[str, Any]:
    """The address at which other processes reach a port of this one."""
    return {"hosts": _own_names(world_size), "port": port}


def address_of(message: dict[str, Any]) -> Address:
    """The address in a message that ``own_address`` made on another rank."""
    return tuple(message["hosts"]), int(message["port"])


def _connect(address: Address) -> TCPStore:
    last: Exception | None = None
    hosts, port = address
    for host in hosts:
        try:
            return TCPStore(host, port, is_master=False, timeout=TIMEOUT, use_libuv=True)
        except Exception as error:
            last = error
    raise ConnectionError(f"cannot reach the aggregator: {last}")


def _popped(idle: list[Any]) -> Any:
    try:
        return idle.pop()
    except IndexError:
        return None


def _several_hosts(world_size: int) -> bool:
    local = os.environ.get("LOCAL_WORLD_SIZE")
    if local is not None:
        return int(local) < world_size
    return os.environ.get("MASTER_ADDR", "localhost") not in ("localhost", "127.0.0.1", "::1")


def _own_names(world_size: int) -> list[str]:
    if not _several_hosts(world_size):
        return ["127.0.0.1"]
    found = [socket.gethostname(), socket.getfqdn()]
    master = os.environ.get("MASTER_ADDR")
    if master:
        # The address of the interface that reaches the rendezvous host. Nothing is sent.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((master, 9))
                found.insert(0, str(probe.getsockname()[0]))
            except OSError:
                pass
    return list(dict.fromkeys(found))
