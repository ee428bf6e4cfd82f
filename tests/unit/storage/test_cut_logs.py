"""Logs that were cut from outside and grow again, past what the checkpoints of old say."""

from __future__ import annotations

from ottla.config.topic import TopicConfig
from ottla.storage.log import Log
from ottla.storage.paths import log_name
from ottla.storage.repair import repair
from ottla.testing.logs import FOLDER, FolderBench

RETENTION_MS = 1000
TOPIC_ID = b"\x01" * 16


def settings() -> TopicConfig:
    return TopicConfig(
        cleanup_policy=frozenset({"compact"}),
        internal_segment_bytes=100_000,
        delete_retention_ms=RETENTION_MS,
    )


def clean_again(bench: FolderBench, log: Log) -> None:
    bench.put(log, (b"again", b"v"))
    log.roll()
    bench.clean(log)
    bench.clock.advance(RETENTION_MS)


async def test_what_is_written_after_a_repair_is_cleaned_although_a_checkpoint_says_it_was() -> (
    None
):
    bench = FolderBench(settings())
    log = await bench.open(TOPIC_ID)
    for number in range(20):
        bench.put(log, (b"%d" % number, b"v"))
    log.roll()
    bench.clean(log)
    await bench.directories.close()

    path = f"{FOLDER}/{log_name(0)}"
    file = bench.fs.open(path)
    file.truncate(file.size() // 2)
    file.close()
    assert repair(bench.fs, FOLDER, truncate=True)
    bench = FolderBench(bench.config, fs=bench.fs.killed(), clock=bench.clock)
    log = await bench.open(TOPIC_ID)
    assert log.log_end_offset == 10
    bench.put(log, (b"k", b"old"))
    bench.put(log, (b"k", None))
    for number in range(20):
        bench.put(log, (b"%d" % number, b"v"))
    await bench.abandon()

    bench = FolderBench(bench.config, fs=bench.fs.killed(), clock=bench.clock)
    log = await bench.open(TOPIC_ID)
    for _ in range(3):
        clean_again(bench, log)
    assert b"k" not in [record.key for record in bench.records(log)]


async def test_a_cut_log_may_be_torn_where_the_old_one_was_flushed() -> None:
    bench = FolderBench(settings())
    log = await bench.open(TOPIC_ID)
    for number in range(20):
        bench.put(log, (b"%d" % number, b"v"))
    bench.flush(log)
    await bench.directories.close()

    path = f"{FOLDER}/{log_name(0)}"
    file = bench.fs.open(path)
    file.truncate(file.size() // 2)
    file.close()
    assert repair(bench.fs, FOLDER, truncate=True)
    bench = FolderBench(bench.config, fs=bench.fs.killed(), clock=bench.clock)
    log = await bench.open(TOPIC_ID)
    bench.put(log, (b"a", b"v"))
    bench.put(log, (b"b", b"torn"))
    await bench.abandon()

    bench = FolderBench(bench.config, fs=bench.fs.killed(), clock=bench.clock)
    file = bench.fs.open(path)
    file.truncate(file.size() - 3)
    file.close()
    log = await bench.open(TOPIC_ID)
    assert log.log_end_offset == 11
