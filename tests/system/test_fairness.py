"""Nobody waits for a stranger: what takes long, or waits for the disk, is not done on the loop.

The broker runs in the test's process, so that a test can hold its threads and look at who reads.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import cramjam
import crc32c
import pytest

from ottla.runtime.files import ColdRead, OsFile
from ottla.storage import reads
from ottla.testing import Broker
from ottla.testing.process import BrokerProcess

UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR = 3, 56
PARTITIONS = 50
RECORDS = 300_000
NOW = time.time_ns() // 1_000_000  # older records would be deleted


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics={"t": PARTITIONS, "other": 1}) as item:
        yield item


class Held:
    """Searches of batches that wait for a permit; remembers which threads they were in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[str] = []
        self.permits = threading.Semaphore(0)
        search = reads.first_at_or_after

        def held(*args: Any) -> Any:
            self.threads.append(threading.current_thread().name)
            self.permits.acquire()
            return search(*args)

        monkeypatch.setattr(reads, "first_at_or_after", held)

    def let(self, count: int) -> None:
        for _ in range(count):
            self.permits.release()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    item = Held(monkeypatch)
    yield item
    item.let(10_000)


def ask_by_time(connection: Any, partitions: range, timestamp: int, topic: str = "t") -> None:
    wanted = [{"partition_index": p, "timestamp": timestamp} for p in partitions]
    connection.send(
        "list_offsets", 7, replica_id=-1, topics=[{"name": topic, "partitions": wanted}]
    )


def found(connection: Any) -> list[tuple[int, int]]:
    (topic,) = connection.receive().topics
    return [(p.error_code, p.offset) for p in topic.partitions]


def look_ups_waiting(broker: Broker) -> int:
    async def look() -> int:
        return broker._services().workers.look_ups.waiting

    return broker._call(look())


def nobody_is_served(broker: Broker) -> bool:
    async def look() -> bool:
        return all(connection.idle for connection in broker._app.connections)

    return broker._call(look())


@pytest.fixture
def filled(broker: Broker, wire: Any, batch: Any, raw: SimpleNamespace) -> Broker:
    connection = wire(broker.bootstrap)
    for partition in range(PARTITIONS):
        records = batch(
            [b"a", b"b", b"c"], timestamps=[NOW + 1000, NOW + 2000, NOW + 3000], codec="zstd"
        )
        assert raw.produce(connection, "t", records, partition).error_code == 0
    return broker


def test_others_are_answered_while_one_searches_by_time(filled, wire, batch, raw, held):
    searching, other = wire(filled.bootstrap), wire(filled.bootstrap)
    ask_by_time(searching, range(PARTITIONS), NOW + 1500)
    searching.send("metadata", 12, topics=[])
    for _ in range(5):
        written = raw.produce(other, "other", batch([b"x"]))
        assert raw.fetch(other, "other", written.base_offset).records
    held.let(PARTITIONS)
    assert found(searching) == [(0, 1)] * PARTITIONS
    assert searching.receive().brokers, "the next request of the connection has waited"
    assert {name.rpartition("_")[0] for name in held.threads} == {"ottla-look-up"}


def test_who_asks_for_one_partition_does_not_wait_for_who_asks_for_many(
    filled, wire, held, eventually
):
    many, one = wire(filled.bootstrap), wire(filled.bootstrap)
    ask_by_time(many, range(PARTITIONS), NOW + 1500)
    eventually(lambda: held.threads)
    ask_by_time(one, range(1), NOW + 2500)
    eventually(lambda: len(held.threads) == 2)  # none of the many has had its turn yet
    held.let(1 + PARTITIONS)
    assert found(one) == [(0, 2)]
    assert found(many) == [(0, 1)] * PARTITIONS


def test_who_hangs_up_leaves_no_work_behind(filled, wire, held, eventually):
    strangers = [wire(filled.bootstrap) for _ in range(10)]
    for stranger in strangers:
        ask_by_time(stranger, range(PARTITIONS), NOW + 1500)
    eventually(lambda: look_ups_waiting(filled) == 8)
    for stranger in strangers:
        stranger.close()
    eventually(lambda: nobody_is_served(filled))
    held.let(2)
    friend = wire(filled.bootstrap)
    ask_by_time(friend, range(1), NOW + 1500)
    held.let(1)
    assert found(friend) == [(0, 1)]
    assert len(held.threads) == 3


def test_who_has_to_look_at_much_takes_turns(broker, wire, raw, batch, held, eventually):
    many, one = [wire(broker.bootstrap) for _ in range(2)], wire(broker.bootstrap)
    for _ in range(100):  # their headers promise a time that no record has
        lying = crowded_batch(3, NOW + 5000)
        assert raw.produce(one, "t", lying).error_code == 0
    assert raw.produce(one, "t", batch([b"x"], timestamps=[NOW + 6000])).error_code == 0
    # Here no batch is searched, so that nothing but the turns decides.
    broker.create_topic("stamped", 1, config={"message.timestamp.type": "LogAppendTime"})
    assert raw.produce(one, "stamped", batch([b"x"], timestamps=[NOW])).error_code == 0
    for each in many:
        ask_by_time(each, range(1), NOW + 5000)
    eventually(lambda: len(held.threads) == 2)
    ask_by_time(one, range(1), 0, "stamped")
    eventually(lambda: look_ups_waiting(broker) == 1)
    held.let(2 * reads.TURN_SEARCHES)  # of the two hundred that the others need
    assert found(one) == [(0, 0)]
    held.let(1000)
    assert [found(each) for each in many] == [[(0, 300)]] * 2


def test_a_topic_that_is_deleted_or_cut_meanwhile(filled, wire, held, eventually):
    connection = wire(filled.bootstrap)
    ask_by_time(connection, range(2), NOW + 1500)
    eventually(lambda: held.threads)
    (deleted,) = (
        wire(filled.bootstrap)
        .ask(
            "delete_records",
            2,
            timeout=1000,
            topics=[{"name": "t", "partitions": [{"partition_index": 0, "offset": 2}]}],
        )
        .topics
    )
    assert deleted.partitions[0].low_watermark == 2
    held.let(2)  # the first look, which finds what is gone, and the second
    eventually(lambda: len(held.threads) == 3)
    filled.delete_topic("t")
    held.let(5)
    assert found(connection) == [(0, 2), (UNKNOWN_TOPIC_OR_PARTITION, -1)]


def test_what_the_indexes_know_needs_no_search(filled, wire, held):
    connection = wire(filled.bootstrap)
    ask_by_time(connection, range(PARTITIONS), NOW + 3001)
    assert found(connection) == [(0, -1)] * PARTITIONS
    assert not held.threads


# --- what is not in memory ----------------------------------------------------------------------


class Cold:
    """A page cache that begins empty. Counts the loop's reads of what is not in it."""

    STRIDE = 4096

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_on = False
        self.waits: list[str] = []
        self._resident: set[tuple[str, int]] = set()
        pread, cached = OsFile.pread, OsFile.pread_cached

        def patient(file: OsFile, size: int, position: int) -> bytes:
            if self.is_on and not self._has(file, size, position):
                if threading.current_thread().name.startswith("ottla-broker"):
                    self.waits.append(f"{file.path} at {position}")
                self._resident |= self._pages(file, size, position)
            return pread(file, size, position)

        def impatient(file: OsFile, size: int, position: int) -> bytes:
            if self.is_on and not self._has(file, size, position):
                raise ColdRead(file.path)
            return cached(file, size, position)

        monkeypatch.setattr(OsFile, "pread", patient)
        monkeypatch.setattr(OsFile, "pread_cached", impatient)

    def _pages(self, file: OsFile, size: int, position: int) -> set[tuple[str, int]]:
        end = min(position + size, os.fstat(file.fileno()).st_size)
        first, last = position // self.STRIDE, max(position, end - 1) // self.STRIDE
        return {(file.path, page) for page in range(first, last + 1)}

    def _has(self, file: OsFile, size: int, position: int) -> bool:
        return self._pages(file, size, position) <= self._resident


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> Cold:
    return Cold(monkeypatch)


@pytest.mark.parametrize("isolation_level", [0, 1])
def test_reading_what_is_not_in_memory_does_not_hold_up_the_loop(
    isolation_level, cold, wire, batch, raw
):
    config = {"segment.bytes": 1 << 20, "index.interval.bytes": 100}
    with Broker(config={"log.segment.bytes": str(1 << 20)}) as broker:
        broker.create_topic("t", 1, config=config)
        connection = wire(broker.bootstrap)
        for number in range(400):
            records = batch([bytes(10_000)], timestamps=[NOW + number])
            assert raw.produce(connection, "t", records).error_code == 0
        cold.is_on = True
        for offset in (0, 50, 150, 250, 399):
            wanted = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 20_000}
            answer = connection.ask(
                "fetch",
                12,
                max_wait=0,
                min_bytes=1,
                max_bytes=20_000,
                isolation_level=isolation_level,
                topics=[{"topic": "t", "partitions": [wanted]}],
            )
            (part,) = answer.responses[0].partitions
            assert part.error_code == 0
            assert struct.unpack_from(">q", part.records)[0] == offset
        for offset in (0, 50, 150, 250, 399):
            ask_by_time(connection, range(1), NOW + offset)
            assert found(connection) == [(0, offset)]
        assert cold.waits == []


def test_a_volume_that_does_not_say_its_size_is_listed_as_failed(wire, monkeypatch):
    with Broker(folders=2, topics=["a", "b"]) as broker:
        sick, well = broker.data_dirs
        statvfs = os.statvfs

        def fails(path: Any) -> os.statvfs_result:
            if path == sick:
                raise OSError(errno.EIO, "Input/output error", path)
            return statvfs(path)

        monkeypatch.setattr(os, "statvfs", fails)
        answer = wire(broker.bootstrap).ask("describe_log_dirs", 4, topics=None)
        found = {item.log_dir: item for item in answer.results}
        assert (found[sick].error_code, found[sick].topics) == (KAFKA_STORAGE_ERROR, ())
        assert found[well].error_code == 0
        assert found[well].total_bytes > 0


# --- a hostile batch ----------------------------------------------------------------------------


def crowded_batch(count: int, moment: int) -> bytes:
    """A few kilobytes that stand for `count` empty records, none of them at its `moment`."""
    body = bytes(cramjam.zstd.compress(b"\x0c\x00\x00\x00\x01\x01\x00" * count))
    covered = struct.pack(">hiqqqhii", 4, count - 1, NOW, moment, -1, -1, -1, count) + body
    crc = crc32c.crc32c(covered)
    return struct.pack(">qiibI", 0, len(covered) + 9, -1, 2, crc) + covered


def test_batches_of_millions_of_records_searched_by_strangers(
    start_broker: Callable[..., BrokerProcess], wire, raw, batch, neighbour
):
    broker = start_broker()
    connection = wire(broker.bootstrap)
    raw.create_topic(connection, "t")
    hostile = crowded_batch(RECORDS, NOW + 5000)
    assert len(hostile) < 10_000
    assert raw.produce(connection, "t", hostile).error_code == 0
    assert raw.produce(connection, "t", batch([b"x"], timestamps=[NOW + 6000])).error_code == 0
    raw.create_topic(connection, "ordinary")
    assert raw.produce(connection, "ordinary", batch([b"x"], timestamps=[NOW])).error_code == 0
    friend = neighbour(broker)
    strangers = [wire(broker.bootstrap, timeout=60) for _ in range(3)]
    for stranger in strangers:
        ask_by_time(stranger, range(1), NOW + 5000)
    for _ in range(3):
        ask_by_time(connection, range(1), 0, "ordinary")
        assert found(connection) == [(0, 0)]
    friend.served(rounds=3)
    for stranger in strangers:
        assert found(stranger) == [(0, RECORDS)]
