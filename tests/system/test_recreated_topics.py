"""A topic deleted and made again under the same name: nothing of the old one touches the new one.

Kafka Streams does these steps to its repartition topics. What the old topic left in the data
folder's checkpoints must neither hide nor refuse the records of the new one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

SEGMENT = "00000000000000000000.log"
SETTINGS = {
    "log.initial.task.delay.ms": "0",
    "log.flush.offset.checkpoint.interval.ms": "1000",
    "log.flush.start.offset.checkpoint.interval.ms": "1000",
}


@pytest.fixture
def broker(start_broker):
    """One that writes its checkpoints every second: often enough to wait for, and not again before
    the few steps that follow are done."""
    return start_broker(settings=SETTINGS)


def entry(folder: Path, name: str) -> str | None:
    """What a checkpoint says about the partition."""
    try:
        lines = (folder / name).read_text().splitlines()
    except FileNotFoundError:
        return None
    return next((line.split()[2] for line in lines[2:] if line.startswith("again 0 ")), None)


def delete_topic(connection):
    (deleted,) = connection.ask(
        "delete_topics", 6, topics=[{"name": "again", "topic_id": None}], timeout=30_000
    ).responses
    assert deleted.error_code == 0


def write_ten(connection, raw, batch):
    for number in range(10):
        written = raw.produce(connection, "again", batch([b"%d" % number]), acks=-1)
        assert (written.error_code, written.base_offset) == (0, number)


def check_ten(connection, raw, batch):
    found = raw.fetch(connection, "again")
    assert (found.error_code, found.log_start_offset, found.high_watermark) == (0, 0, 10)
    for number in range(10):
        assert batch([b"%d" % number])[-4:] in found.records
    written = raw.produce(connection, "again", batch([b"goes on"]), acks=-1)
    assert (written.error_code, written.base_offset) == (0, 10)


def test_an_old_log_start_hides_no_record_of_the_new_topic(broker, wire, raw, batch, eventually):
    connection = wire(broker.bootstrap)
    raw.create_topic(connection, "again")
    assert raw.produce(connection, "again", batch([b"old"] * 1_500)).error_code == 0
    asked = [{"name": "again", "partitions": [{"partition_index": 0, "offset": 1_000}]}]
    connection.ask("delete_records", 2, topics=asked, timeout=10_000)
    checkpoint = "log-start-offset-checkpoint"
    eventually(lambda: entry(broker.data_dir, checkpoint) == "1000")
    delete_topic(connection)
    raw.create_topic(connection, "again")
    write_ten(connection, raw, batch)
    broker.kill()
    broker.start()
    check_ten(wire(broker.bootstrap), raw, batch)


def test_an_old_recovery_point_takes_no_torn_tail_of_the_new_topic_for_damage(
    broker, wire, raw, batch, eventually
):
    connection = wire(broker.bootstrap)
    raw.create_topic(connection, "again", flush_messages="1")
    assert raw.produce(connection, "again", batch([b"old"] * 1_500)).error_code == 0
    checkpoint = "recovery-point-offset-checkpoint"
    eventually(lambda: entry(broker.data_dir, checkpoint) == "1500")
    delete_topic(connection)
    raw.create_topic(connection, "again")
    write_ten(connection, raw, batch)
    broker.kill()
    with (broker.data_dir / "again-0" / SEGMENT).open("ab") as log:
        log.write(batch([b"never acknowledged" * 10])[:100])
    broker.start()
    check_ten(wire(broker.bootstrap), raw, batch)


def test_a_checkpoint_of_a_deleted_topic_is_rewritten_at_once(
    start_broker, wire, raw, batch, eventually
):
    # The next round by the clock is an hour away.
    settings = dict.fromkeys(SETTINGS, "3600000") | {"log.initial.task.delay.ms": "0"}
    broker = start_broker(settings=settings | {"log.flush.interval.messages": "1"})
    connection = wire(broker.bootstrap)
    raw.create_topic(connection, "again")
    assert raw.produce(connection, "again", batch([b"old"] * 1_500)).error_code == 0
    broker.terminate()
    checkpoint = "recovery-point-offset-checkpoint"
    assert entry(broker.data_dir, checkpoint) == "1500"
    broker.start()
    delete_topic(wire(broker.bootstrap))
    eventually(lambda: entry(broker.data_dir, checkpoint) is None)
