"""A log that may have lost its end gets a new leader epoch, and clients notice (KIP-320)."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from ottla.testing import Broker

FENCED_LEADER_EPOCH = 74
MARK = ".kafka_cleanshutdown"
SEGMENT = "00000000000000000000.log"
KEPT = 12


def cut(path, batches=KEPT):
    """Leave so many batches, and not a byte more: nothing looks torn."""
    data, position = path.read_bytes(), 0
    for _ in range(batches):
        position += 12 + struct.unpack_from(">i", data, position + 8)[0]
    path.write_bytes(data[:position])


def fill(connection, raw, batch, topic="t", values=range(20), partition=0):
    for value in values:
        written = raw.produce(connection, topic, batch([b"%d" % value]), partition)
        assert written.error_code == 0


def epochs(connection, topic="t"):
    """The leader epochs of a topic's partitions, as the metadata says."""
    (answer,) = connection.ask("metadata", 9, topics=[{"name": topic}]).topics
    return [
        each.leader_epoch
        for each in sorted(answer.partitions, key=lambda each: each.partition_index)
    ]


def end_of_epoch(connection, epoch, current):
    asked = [{"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}]
    (topic,) = connection.ask(
        "offset_for_leader_epoch", 4, replica_id=-1, topics=[{"topic": "t", "partitions": asked}]
    ).topics
    (found,) = topic.partitions
    return found.error_code, found.leader_epoch, found.end_offset


def fetch_error(connection, epoch):
    wanted = {"partition": 0, "current_leader_epoch": epoch, "partition_max_bytes": 1000}
    asked = [{"topic": "t", "partitions": [wanted]}]
    answer = connection.ask("fetch", 12, max_wait=0, max_bytes=1000, topics=asked)
    return answer.responses[0].partitions[0].error_code


@pytest.fixture
def killed(start_broker, wire, raw, batch):
    """A broker that was killed, with 20 batches of one record each in `t`."""
    broker = start_broker()
    connection = wire(broker.bootstrap)
    raw.create_topic(connection, "t")
    fill(connection, raw, batch)
    broker.kill()
    return broker


def test_a_cut_log_says_where_the_old_epoch_ended(killed, wire, raw, batch):
    cut(killed.data_dir / "t-0" / SEGMENT)
    killed.start()
    connection = wire(killed.bootstrap)
    assert epochs(connection) == [1]
    assert fetch_error(connection, 0) == FENCED_LEADER_EPOCH
    assert end_of_epoch(connection, 0, current=1) == (0, 0, KEPT), "before the first record"
    fill(connection, raw, batch, values=range(5))
    assert end_of_epoch(connection, 0, current=1) == (0, 0, KEPT)
    assert end_of_epoch(connection, 1, current=1) == (0, 1, KEPT + 5)


def test_an_epoch_without_a_record_ends_where_the_one_before_it_did(killed, wire, raw, batch):
    for _ in range(2):
        killed.start()
        killed.kill()
    cut(killed.data_dir / "t-0" / SEGMENT)
    killed.start()
    connection = wire(killed.bootstrap)
    assert epochs(connection) == [3]
    for epoch in (0, 1, 2):
        assert end_of_epoch(connection, epoch, current=3) == (0, 0, KEPT)
    fill(connection, raw, batch, values=range(1))
    assert end_of_epoch(connection, 2, current=3) == (0, 0, KEPT)


def test_a_clean_restart_keeps_the_epoch(killed, wire):
    killed.start()
    killed.restart()
    assert epochs(wire(killed.bootstrap)) == [1]


def test_metadata_older_than_the_log_gets_an_epoch_above_it(killed, wire, raw, batch, tmp_path):
    killed.start()
    assert killed.terminate() == 0
    shutil.copytree(killed.data_dir / "metadata", tmp_path / "copy")
    for _ in range(2):
        killed.start()
        killed.kill()
    killed.start()
    fill(wire(killed.bootstrap), raw, batch, values=range(1))
    assert epochs(wire(killed.bootstrap)) == [3]
    assert killed.terminate() == 0
    shutil.rmtree(killed.data_dir / "metadata")
    shutil.copytree(tmp_path / "copy", killed.data_dir / "metadata")
    killed.start()
    assert epochs(wire(killed.bootstrap)) == [4]


def test_an_epoch_that_none_can_follow_is_not_believed(killed, wire, raw):
    killed.start()
    assert killed.terminate() == 0
    (killed.data_dir / "t-0" / "leader-epoch-checkpoint").write_text("0\n1\n99999999999 0\n")
    killed.start()
    connection = wire(killed.bootstrap)
    assert epochs(connection) == [1]
    assert raw.fetch(connection, "t").high_watermark == 20


def test_a_rescue_begins_above_epochs_that_no_record_tells_of(killed, wire):
    for _ in range(3):
        killed.start()
        killed.kill()
    shutil.rmtree(killed.data_dir / "metadata")
    command = [sys.executable, "-m", "ottla", "metadata", "rescue", "--yes", "--data-dir"]
    subprocess.run([*command, str(killed.data_dir)], check=True, capture_output=True)
    killed.start()
    assert fetch_error(wire(killed.bootstrap), 3) == FENCED_LEADER_EPOCH, "else it waits for ever"


def test_each_folder_counts_for_itself(start_broker, wire, raw, tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    broker = start_broker(settings={"log.dirs": ",".join(map(str, folders))})
    raw.create_topic(wire(broker.bootstrap), "t", 4)
    for partition in range(4):  # makes its files
        assert raw.fetch(wire(broker.bootstrap), "t", partition=partition).error_code == 0
    assert broker.terminate() == 0
    (folders[1] / MARK).unlink()
    broker.start()
    wanted = [int((folders[1] / f"t-{partition}").exists()) for partition in range(4)]
    assert sum(wanted) == 2
    assert epochs(wire(broker.bootstrap)) == wanted


def test_partitions_of_a_folder_that_was_left_out_begin_anew(start_broker, wire, raw, tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    broker = start_broker(settings={"log.dirs": ",".join(map(str, folders))})
    raw.create_topic(wire(broker.bootstrap), "t", 4)
    for partition in range(4):  # makes its files
        assert raw.fetch(wire(broker.bootstrap), "t", partition=partition).error_code == 0
    assert broker.terminate() == 0
    wanted = [int((folders[1] / f"t-{partition}").exists()) for partition in range(4)]
    assert sum(wanted) == 2
    broker.settings["log.dirs"] = str(folders[0])
    broker.start()
    assert epochs(wire(broker.bootstrap)) == wanted


def test_a_consumer_that_was_ahead_notices(killed, wire, raw, batch):
    killed.start()
    consumer = Consumer(
        {
            "bootstrap.servers": killed.bootstrap,
            "group.id": "g",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": False,
            "reconnect.backoff.max.ms": 100,
            "topic.metadata.refresh.interval.ms": 500,
            "log_level": 2,
        }
    )
    try:
        consumer.assign([TopicPartition("t", 0, 0)])
        read = [consumer.poll(60) for _ in range(20)]
        assert [message.value() for message in read] == [b"%d" % each for each in range(20)]
        killed.kill()
        cut(killed.data_dir / "t-0" / SEGMENT)
        killed.start()
        connection = wire(killed.bootstrap)
        fill(connection, raw, batch, values=range(100, 120))
        while True:
            message = consumer.poll(120)
            assert message is not None, "it waits as if nothing had happened"
            assert message.error() is not None, f"it went on with {message.value()!r}"
            if message.error().code() == KafkaError._AUTO_OFFSET_RESET:
                assert "truncation detected at offset 20" in message.error().str()
                break
    finally:
        consumer.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_repair_that_truncates_begins_a_new_epoch(killed, wire, clean):
    killed.start()
    assert killed.terminate() == 0
    log = killed.data_dir / "t-0" / SEGMENT
    data = bytearray(log.read_bytes())
    data[len(data) // 2 + 40] ^= 0xFF
    log.write_bytes(data)
    if not clean:
        (killed.data_dir / MARK).unlink()
    subprocess.run(
        [sys.executable, "-m", "ottla", "log", "repair", "--truncate", "--yes", str(log.parent)],
        check=True,
        capture_output=True,
    )
    killed.start()
    connection = wire(killed.bootstrap)
    assert epochs(connection) == [2]
    error, epoch, end = end_of_epoch(connection, 0, current=2)
    assert (error, epoch) == (0, 0)
    assert 0 < end < 20


def test_a_partition_that_a_power_cut_took_whole_begins_a_new_epoch():
    with Broker(topics=["t"]) as broker:
        broker.produce("t", *(b"%d" % each for each in range(5)), partition=0)
        broker.crash(power_loss=True)
        broker.start()
        assert broker.consume("t") == []
        (state,) = broker._services().image.topics["t"].partitions
        assert state.leader_epoch == 1
