"""A topic to compact, filled as fast as the broker takes it: batches of keyed records, prepared.

All records have the same size, so that a batch is a template into which only its keys are put (and
its checksum): gigabytes are made in seconds. Every key comes once in each pass, in another order
each time, so what a compaction has to keep is known: one record of each key, the last one's.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import TYPE_CHECKING

import numpy as np
from crc32c import crc32c

from bench.load import frames

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

BATCH_RECORDS = 2_000
_KEY_BYTES = 8
_CHECKSUM_AT = 17
_IN_FLIGHT = 8
_PATIENCE = 120.0


class Template:
    """A batch of records that differ in their keys alone."""

    def __init__(self, records: int, value: bytes, timestamp: int) -> None:
        body = bytearray()
        places = []
        for delta in range(records):
            record = frames.record(delta, bytes(_KEY_BYTES), value)
            tail = len(frames.varint(len(value))) + len(value) + 1
            places.append(frames.RECORDS_FROM + len(body) + len(record) - tail - _KEY_BYTES)
            body += record
        self._batch = np.frombuffer(
            bytearray(frames.batch_of(bytes(body), records, timestamp)), dtype=np.uint8
        )
        self._places = np.array(places)[:, None] + np.arange(_KEY_BYTES)

    def __len__(self) -> int:
        return len(self._batch)

    def batch(self, keys: NDArray[np.uint64]) -> bytes:
        """The batch of these keys, one for each of its records."""
        self._batch[self._places] = keys.astype(">u8").view(np.uint8).reshape(-1, _KEY_BYTES)
        made = bytearray(self._batch.tobytes())
        struct.pack_into(">I", made, _CHECKSUM_AT, crc32c(memoryview(made)[frames.COVERED_FROM :]))
        return bytes(made)


def key_order(keys: int, passes: int, seed: int = 1) -> Iterator[NDArray[np.uint64]]:
    """The keys of one batch after the other: all of them, shuffled, once in each pass."""
    if keys % BATCH_RECORDS:
        raise ValueError(f"{keys} keys are no whole batches of {BATCH_RECORDS}")
    drawn = np.random.default_rng(seed)
    for _ in range(passes):
        order = drawn.permutation(keys).astype(np.uint64)
        yield from np.split(order, keys // BATCH_RECORDS)


def fill(bootstrap: str, topic: str, keys: int, passes: int, value_bytes: int) -> dict[str, float]:
    """All passes into partition 0 over one connection; every batch is acknowledged in the end."""
    drawn = np.random.default_rng(2)
    template = Template(BATCH_RECORDS, drawn.bytes(value_bytes), int(time.time() * 1000))
    host, _, port = bootstrap.rpartition(":")
    sent = unanswered = 0
    began = time.perf_counter()
    with socket.create_connection((host, int(port)), _PATIENCE) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for batch_keys in key_order(keys, passes):
            sock.sendall(frames.produce(topic, 0, template.batch(batch_keys)))
            sent += BATCH_RECORDS
            unanswered += 1
            if unanswered == _IN_FLIGHT:
                frames.check_produce_response(frames.read_frame(sock))
                unanswered -= 1
        for _ in range(unanswered):
            frames.check_produce_response(frames.read_frame(sock))
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "records": sent, "bytes": len(template) * (sent // BATCH_RECORDS)}
