"""Channel without a connection: which memory it takes for what has arrived."""

from __future__ import annotations

import struct
import tracemalloc

from ottla.net.channel import Channel

LENGTH = 200 << 20


def arrive(channel: Channel, data: bytes) -> None:
    """What a transport does with bytes that come in."""
    rest = memoryview(data)
    while rest:
        room = channel.get_buffer(-1)
        count = min(len(room), len(rest))
        room[:count] = rest[:count]
        channel.buffer_updated(count)
        rest = rest[count:]


async def test_a_length_alone_buys_little_memory() -> None:
    channel = Channel("broker")
    tracemalloc.start()
    try:
        arrive(channel, struct.pack(">ii", LENGTH, 1) + bytes(100))
        _, announced = tracemalloc.get_traced_memory()
        arrive(channel, bytes(1 << 20))
        _, arrived = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert announced < 1 << 16
    assert arrived < 16 << 20
