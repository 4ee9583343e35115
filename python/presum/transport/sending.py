# SPDX-License-Identifier: Apache-2.0
"""The background thread of a rank that does not record: it pushes packets."""

from __future__ import annotations

import time
from typing import Any

from torch.distributed import DistError

from presum._core import stamp
from presum.text import one_line
from presum.transport.channel import NO_VERDICT, PREFLIGHT_SECONDS, Channel
from presum.transport.connections import address_of, store_connections
from presum.transport.store_queue import ENDED, PACKETS_PER_WORKER, StoreQueue

LOOK_SECONDS = 2.0  # between checks whether packets are still taken
LOOK_SECONDS_AT_THE_END = 0.1
EXIT_SECONDS = 10.0  # for the rank that records to write and end, if the job is stalled
# For the verdict: longer than the rank that records waits for other ranks, and writes.
VERDICT_SECONDS = 2 * PREFLIGHT_SECONDS
VERDICT_POLL_SECONDS = 0.2


def send_until_closed(channel: Channel, message: dict[str, Any]) -> None:
    """``message``: the announcement of the rank that records."""
    channel.records = False
    if "off" in message:
        channel.outbox.close()  # that rank reports it
        return
    address = address_of(message)
    store = store_connections().connect(address)
    queue = StoreQueue(store, message["key"])
    (hosts, port), run, segment = address, message["run"], message["segment"]
    channel.heartbeat.reaches(list(hosts), port, queue.name, run, segment)
    try:
        _push(channel, queue, run, segment)
    except DistError as error:
        gone = "the rank that records cannot be reached"
        raise ConnectionError(f"{gone} ({one_line(error)})") from error
    if channel.preflight:
        channel.exit_code = _await_preflight(queue)
    store_connections().keep(address, store)


def _push(channel: Channel, queue: StoreQueue, run: int, segment: int) -> None:
    room = PACKETS_PER_WORKER * channel.world_size
    outbox, deadline = channel.outbox, float("inf")
    look = time.monotonic() + LOOK_SECONDS
    while time.monotonic() < deadline:
        if time.monotonic() > look:
            closing = channel.closing.is_set()
            look = time.monotonic() + (LOOK_SECONDS_AT_THE_END if closing else LOOK_SECONDS)
            _look_whether_taken(channel, queue)
        beat = channel.heartbeat.take()
        if beat is not None and queue.waiting() <= room:
            queue.push(stamp(beat, run, segment))
        packet = channel.take()
        if packet is None:
            if outbox.shut:
                return
            if channel.closing.is_set():
                if not len(outbox):
                    return
                now = time.monotonic()
                deadline, look = min(deadline, now + channel.seconds_to_wait()), min(look, now)
            channel.pause()
        elif queue.waiting() > room:
            outbox.dropped += 1
        else:
            queue.push(stamp(packet, run, segment, outbox.dropped))


def _look_whether_taken(channel: Channel, queue: StoreQueue) -> None:
    stalled = None if channel.on_stall == "report" else queue.stalled()
    if stalled is not None:
        # a launcher ends the rank that records together with the first rank
        if channel.on_stall == "exit":
            time.sleep(EXIT_SECONDS)
        channel.end_stalled(stalled)
    why = None if channel.outbox.shut else queue.given_up()
    if why is None:
        return
    channel.ended_without_us = why == ENDED  # that rank reports a failure
    channel.outbox.close()


def _await_preflight(queue: StoreQueue) -> int:
    deadline, code = time.monotonic() + VERDICT_SECONDS, None
    while time.monotonic() < deadline:
        code = queue.read_exit_code()
        if code is not None:
            return code
        if queue.given_up():
            code = queue.read_exit_code()  # it may have been published in between
            break
        time.sleep(VERDICT_POLL_SECONDS)
    return NO_VERDICT if code is None else code
