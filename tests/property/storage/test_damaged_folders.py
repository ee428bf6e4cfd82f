"""Whatever becomes of the files of one partition: the broker starts, and the others are served.

Bytes are flipped, cut off, appended or overwritten in any file of a partition's folder, files are
removed, emptied, or replaced by folders, after a clean stop or a kill. Loading never raises. The
damaged partition is served or is offline with a reason; its neighbour has every record and takes
more. The same for the data folder's checkpoints, after which both are served.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.config.topic import TopicConfig
from ottla.errors import KafkaError
from ottla.model.ids import TopicId, TopicPartition
from ottla.records.batch import InvalidBatch
from ottla.records.control import ControlType, end_marker
from ottla.storage import paths
from ottla.storage.log import Log
from ottla.storage.producers import Origin
from ottla.testing.files import MemoryFileSystem
from ottla.testing.logs import PARTITION, FolderBench

ID = TopicId(b"\x07" * 16)
NEIGHBOUR = TopicPartition("u", 0)
CONFIG = TopicConfig(segment_bytes=700, index_interval_bytes=100, retention_ms=-1)
PRODUCER, TRANSACTIONAL = 5, 6


@pytest.fixture(autouse=True, scope="module")
def silence() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def fill(bench: FolderBench, log: Log) -> None:
    """Several segments, two leader epochs, an idempotent producer, an aborted transaction."""
    for number in range(12):
        bench.append(
            log,
            b"%d" % number * 60,
            epoch=number // 6,
            producer_id=PRODUCER,
            producer_epoch=0,
            sequence=number,
        )
        if number % 4 == 0:
            bench.append(
                log,
                b"undone",
                epoch=number // 6,
                producer_id=TRANSACTIONAL,
                producer_epoch=0,
                sequence=number // 4,
                transactional=True,
            )
            marker = end_marker(
                ControlType.ABORT,
                producer_id=TRANSACTIONAL,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp=bench.clock.now_ms(),
            )
            log.append(
                memoryview(bytearray(marker)),
                leader_epoch=number // 6,
                now_ms=bench.clock.now_ms(),
                origin=Origin.COORDINATOR,
            )
        if number == 8:
            bench.flush(log)


@functools.cache
def disk(clean: bool) -> MemoryFileSystem:
    """A data folder with two partitions, as a clean stop or kill -9 leaves it."""

    async def make() -> MemoryFileSystem:
        bench = FolderBench(CONFIG)
        log = await bench.open(ID)
        other = bench.directories.create(NEIGHBOUR, ID, CONFIG)
        for each in (log, other):
            fill(bench, each)
            each.advance_start(2)
        await bench.directories.write_checkpoints()
        bench.append(log, b"behind the checkpoint", epoch=1)
        if clean:
            await bench.directories.close()
        await bench.abandon()
        return bench.fs

    return asyncio.run(make())


def names(fs: MemoryFileSystem, folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in fs.listdir(folder) if not fs.is_dir(f"{folder}/{name}")]


def flip(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 1, 5))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randint(0, len(data)) :]


def append(data: bytearray, rng: random.Random) -> None:
    data += rng.choice((bytes(rng.randint(1, 200)), rng.randbytes(rng.randint(1, 200))))


def overwrite(data: bytearray, rng: random.Random) -> None:
    start = rng.randint(0, len(data))
    data[start : start + 50] = rng.choice((bytes(50), b"\xff" * 50, rng.randbytes(50)))


def repeat(data: bytearray, rng: random.Random) -> None:
    start = rng.randint(0, len(data))
    data += data[start:]


def take_out(data: bytearray, rng: random.Random) -> None:
    start = rng.randint(0, len(data))
    del data[start : start + rng.randint(1, 100)]


def numbers(data: bytearray, rng: random.Random) -> None:
    """Text with another number in it, or none."""
    text = rng.choice((b"99999999999999999999999", b"-1", b"x", b"\xff\xfe", b"\n", b" "))
    start = rng.randint(0, len(data))
    data[start : start + 1] = text


EDITS: list[Callable[[bytearray, random.Random], None]] = [
    flip,
    cut,
    append,
    overwrite,
    repeat,
    take_out,
    numbers,
]


def damage(fs: MemoryFileSystem, path: str, rng: random.Random) -> None:
    """One of all the things that can become of a file."""
    kind = rng.randrange(len(EDITS) * 2 + 3)
    if kind == 0:
        fs.remove(path)
    elif kind == 1:
        fs.remove(path)
        fs.makedirs(f"{path}/inside")
    elif kind == 2:
        fs.rename(path, path + rng.choice((".swap", ".cleaned", ".deleted", ".tmp", "x")))
    else:
        data = bytearray(fs.read_bytes(path))
        rng.choice(EDITS)(data, rng)
        fs.write_atomic(path, bytes(data))


async def neighbour_is_served(bench: FolderBench) -> None:
    log = bench.directories.logs[NEIGHBOUR]
    values = [value for _, value in bench.contents(log)]
    assert b"11" * 60 in values
    assert bench.append(log, b"more", epoch=2).base_offset == log.log_end_offset - 1


@settings(max_examples=250, deadline=None)
@given(seed=st.integers(0, 2**32), clean=st.booleans(), pieces=st.integers(1, 3))
def test_damage_in_one_partition_stops_neither_the_broker_nor_its_neighbour(
    seed: int, clean: bool, pieces: int
) -> None:
    rng = random.Random(seed)
    fs = disk(clean).killed()
    for _ in range(pieces):
        damage(fs, rng.choice(names(fs, "/data/t-0")), rng)
    if rng.random() < 0.05:
        strange = rng.choice(
            (
                "99999999999999999999.log",
                "00000000000000000500.snapshot",
                "00000000000000000003.log",
            )
        )
        fs.write_atomic(f"/data/t-0/{strange}", rng.randbytes(rng.randint(0, 300)))

    async def start() -> None:
        bench = FolderBench(CONFIG, fs=fs)
        await bench.load()
        await neighbour_is_served(bench)
        log = bench.directories.logs.get(PARTITION)
        if log is None:
            assert bench.directories.offline_partitions[PARTITION]
        else:
            try:
                bench.contents(log)
                bench.append(log, b"more", epoch=2)
            except (KafkaError, InvalidBatch):
                pass  # a reader may come across what nobody had to look at in opening the log
        await bench.directories.close()
        await bench.load()
        await neighbour_is_served(bench)
        await bench.abandon()

    asyncio.run(start())


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), clean=st.booleans())
def test_damaged_checkpoints_take_no_partition_offline(seed: int, clean: bool) -> None:
    rng = random.Random(seed)
    fs = disk(clean).killed()
    files = [
        f"/data/{name}{suffix}"
        for name in paths.CHECKPOINTS
        for suffix in ("", paths.TOPIC_IDS_SUFFIX)
    ]
    for path in rng.sample(files, rng.randint(1, 3)):
        data = bytearray(fs.read_bytes(path))
        rng.choice((cut, append, numbers, take_out))(data, rng)
        fs.write_atomic(path, bytes(data))

    async def start() -> None:
        bench = FolderBench(CONFIG, fs=fs)
        await bench.load()
        assert bench.directories.logs.keys() == {PARTITION, NEIGHBOUR}
        await bench.abandon()

    asyncio.run(start())
