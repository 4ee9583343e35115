# SPDX-License-Identifier: Apache-2.0
"""What the background thread of a rank does that does not record: it pushes packets."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import TCPStore

from presum._core import stamp
from presum.transport.channel import PREFLIGHT_SECONDS, Channel
from presum.transport.links import address_of, links
from presum.transport.queues import PACKETS_PER_WORKER, Queues

LOOK_SECONDS = 2.0  # between looks whether packets are still taken


def send_until_closed(channel: Channel, message: dict[str, Any]) -> None:
    """``message``: what the rank that records has announced."""
    channel.records = False
    if "off" in message:
        channel.outbox.shut = True  # said there
        return
    address = address_of(message)
    store = links().connect(address)
    queues = Queues(store, message["key"])
    _push(channel, queues, message["run"], message["segment"])
    if channel.preflight:
        _await_preflight(channel, queues, store)
    links().keep(address, store)


def _push(channel: Channel, queues: Queues, run: int, segment: int) -> None:
    room = PACKETS_PER_WORKER * channel.world_size
    outbox, deadline = channel.outbox, float("inf")
    look = time.monotonic() + LOOK_SECONDS
    while time.monotonic() < deadline:
        if time.monotonic() > look:
            look = time.monotonic() + LOOK_SECONDS
            outbox.shut = outbox.shut or queues.given_up()
        packet = channel.take()
        if packet is None:
            if outbox.shut:
                return
            if channel.closing.is_set():
                if not len(outbox):
                    return
                deadline = min(deadline, time.monotonic() + channel.patience())
            channel.pause()
        elif queues.waiting() > room:
            outbox.dropped += 1
        else:
            queues.push(stamp(packet, run, segment))
            outbox.sent += 1


def _await_preflight(channel: Channel, queues: Queues, store: TCPStore) -> None:
    store.wait([queues.exit_code], timedelta(seconds=PREFLIGHT_SECONDS))
    channel.exit_code = int(store.get(queues.exit_code))
    store.add(queues.exit_code_read, 1)
