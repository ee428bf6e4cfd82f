"""The metadata gone: no broker starts beside partitions it would forget, and it can be had back."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

OFFSETS = "__consumer_offsets"


class Pair:
    """A broker over two data folders, `a` (with the metadata) and `b`."""

    def __init__(self, start_broker, tmp_path: Path) -> None:
        self.a, self.b = tmp_path / "a", tmp_path / "b"
        settings = {"log.dirs": f"{self.a},{self.b}", "offsets.topic.num.partitions": 3}
        self.broker = start_broker(launch=False, settings=settings)
        self.folders = ["--data-dir", f"{self.a},{self.b}"]

    def refused(self) -> str:
        """Why the broker does not start; nothing in `b` may be touched by that."""
        before = sorted(each.name for each in self.b.iterdir())
        position = self.broker.log_size()
        self.broker.launch()
        assert self.broker.wait() == 1
        assert sorted(each.name for each in self.b.iterdir()) == before
        said = self.broker.log_since(position)
        assert "Traceback" not in said
        (line,) = (each for each in said.splitlines() if each.startswith("Error: "))
        return line

    def run(self, *line: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ottla", "metadata", *line, *self.folders]
        return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.fixture
def pair(start_broker, tmp_path):
    return Pair(start_broker, tmp_path)


@pytest.fixture
def used(pair, wire, raw):
    """The broker has stopped; `orders` holds 40 records by an idempotent producer, group `g` has
    committed 7 in its first partition."""
    pair.broker.start()
    raw.create_topic(wire(pair.broker.bootstrap), "orders", 4, retention_ms="86400000")
    assert send(pair.broker, range(40)) == 0
    consumer = group(pair.broker)
    consumer.commit(offsets=[TopicPartition("orders", 0, 7)], asynchronous=False)
    consumer.close()
    assert pair.broker.terminate() == 0
    return pair


def send(broker, values) -> int:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "log_level": 2}
    )
    failed = []
    for value in values:
        producer.produce(
            "orders",
            b"%d" % value,
            partition=value % 4,
            on_delivery=lambda error, _: error and failed.append(error),
        )
    assert producer.flush(60) == 0
    return len(failed)


def group(broker) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 2,
        }
    )


def everything(broker, count: int) -> list[int]:
    consumer = group(broker)
    try:
        consumer.assign([TopicPartition("orders", each, 0) for each in range(4)])
        read = [consumer.poll(60) for _ in range(count)]
        assert all(message is not None and not message.error() for message in read)
        assert consumer.poll(0.5) is None
        return sorted(int(message.value()) for message in read)
    finally:
        consumer.close()


def committed(broker) -> int:
    consumer = group(broker)
    try:
        (found,) = consumer.committed([TopicPartition("orders", 0)], timeout=60)
        return found.offset
    finally:
        consumer.close()


def topic_ids(connection) -> dict[str, object]:
    return {each.name: each.topic_id for each in connection.ask("metadata", 12, topics=None).topics}


def producer_id(connection) -> int:
    answer = connection.ask(
        "init_producer_id", 4, transactional_id=None, transaction_timeout=1000, producer_id=-1
    )
    assert answer.error_code == 0
    return answer.producer_id


def producer_ids_in(folder: Path) -> set[int]:
    """The producer ids in the batches of a partition."""
    found = set()
    for path in folder.glob("*.log"):
        data, position = path.read_bytes(), 0
        while position < len(data):
            found.add(struct.unpack_from(">q", data, position + 43)[0])
            position += 12 + struct.unpack_from(">i", data, position + 8)[0]
    return found


# -- starting --------------------------------------------------------------------------------


def test_a_folder_that_is_empty_where_the_metadata_was(used):
    shutil.rmtree(used.a)
    used.a.mkdir()
    said = used.refused()
    assert f"was in {used.a}/metadata" in said
    assert "mounted?" in said
    assert "ottla metadata rescue" in said
    assert not (used.a / "metadata").exists()


def test_a_folder_that_is_gone_with_the_metadata(used):
    shutil.rmtree(used.a)
    assert f"was in {used.a}/metadata" in used.refused()


def test_a_folder_with_the_metadata_that_cannot_be_opened(used):
    shutil.rmtree(used.a)
    used.a.write_text("not a folder")
    said = used.refused()
    assert f"was in {used.a}/metadata" in said
    assert "cannot be opened" in said


def test_a_folder_with_the_metadata_that_is_not_named(used):
    used.broker.settings["log.dirs"] = str(used.b)
    assert f"{used.a} is not in log.dirs" in used.refused()


def test_one_folder_whose_metadata_was_removed(used):
    used.broker.settings["log.dirs"] = str(used.a)
    shutil.rmtree(used.a / "metadata")
    assert "is not there any more" in used.refused()


def test_metadata_that_became_empty_is_missed_too(used):
    (journal,) = (used.a / "metadata").glob("journal-*")
    journal.write_bytes(b"")
    partitions = sorted(each.name for each in used.a.glob("orders-*"))
    said = used.refused()
    assert f"{used.a}/metadata is empty, and was not" in said
    assert "ottla metadata rescue" in said
    assert "--replace" in said
    assert sorted(each.name for each in used.a.glob("orders-*")) == partitions != []
    refused = used.run("export", str(used.a.parent / "backup.json"))
    assert refused.returncode == 1
    assert "is empty" in refused.stderr
    done = used.run("rescue", "--yes", "--replace")
    assert done.returncode == 0, done.stderr
    used.broker.start()
    assert everything(used.broker, 40) == list(range(40))


def test_a_metadata_folder_without_its_files_is_nothing_to_replace(used):
    for path in (used.a / "metadata").glob("[!.]*"):
        path.unlink()
    assert "is not there any more" in used.refused()
    done = used.run("rescue", "--yes")
    assert done.returncode == 0, done.stderr
    used.broker.start()
    assert everything(used.broker, 40) == list(range(40))


def test_partitions_without_any_note_are_not_forgotten_either(used):
    shutil.rmtree(used.a)
    (used.b / "ottla.metadata").unlink()
    said = used.refused()
    assert f"{used.b} holds" in said
    assert "of cluster" in said


def test_kafkas_metadata_is_not_taken_over_a_second_time(used):
    shutil.rmtree(used.a / "metadata")
    (used.a / "__cluster_metadata-0").mkdir()
    assert "is not there any more" in used.refused()


def test_a_new_folder_and_the_store_in_another_place_are_no_reason(used, wire, tmp_path):
    moved = tmp_path / "moved"
    used.a.rename(moved)
    used.broker.settings["log.dirs"] = f"{used.b},{tmp_path / 'new'},{moved}"
    used.broker.start()
    assert everything(used.broker, 40) == list(range(40))
    assert str(moved) in (used.b / "ottla.metadata").read_text()


def test_a_folder_that_is_empty_where_partitions_were(used, tmp_path):
    used.b.rename(tmp_path / "unmounted")
    used.b.mkdir()
    used.broker.launch()
    assert used.broker.wait() == 1
    assert f"{used.b} was in use by this broker and is empty" in used.broker.log_since(0)
    assert not [each for each in used.b.iterdir() if each.is_dir()]
    shutil.rmtree(used.b)
    (tmp_path / "unmounted").rename(used.b)
    used.broker.start()
    assert everything(used.broker, 40) == list(range(40))


# -- rescue ----------------------------------------------------------------------------------


def test_what_was_lost_is_rebuilt_from_the_partitions(used, wire):
    used.broker.start()
    ids = topic_ids(wire(used.broker.bootstrap))
    used.broker.kill()
    shutil.rmtree(used.a / "metadata")
    used.refused()

    looked = used.run("rescue")
    assert looked.returncode == 0
    assert "nothing was changed" in looked.stdout
    assert "cannot be recovered" in looked.stdout
    assert not (used.a / "metadata").exists()
    done = used.run("rescue", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["done"]
    assert {each["name"]: each["partitions"] for each in document["topics"]} == {
        OFFSETS: 3,
        "orders": 4,
    }

    used.broker.start()
    connection = wire(used.broker.bootstrap)
    assert topic_ids(connection) == ids
    assert everything(used.broker, 40) == list(range(40))
    assert committed(used.broker) == 7
    old = set().union(*map(producer_ids_in, (*used.a.glob("orders-*"), *used.b.glob("orders-*"))))
    assert producer_id(connection) > max(old)
    assert send(used.broker, range(40, 60)) == 0
    assert everything(used.broker, 60) == list(range(60))
    settings = connection.ask(
        "describe_configs",
        4,
        resources=[{"resource_type": 2, "resource_name": OFFSETS, "configuration_keys": None}],
    ).results[0]
    policy = next(each.value for each in settings.configs if each.name == "cleanup.policy")
    assert policy == "compact"


def test_a_lost_disk_costs_only_what_was_on_it(used, wire):
    left = {int(each.name.rpartition("-")[2]) for each in used.b.glob("orders-*")}
    shutil.rmtree(used.a)
    used.a.mkdir()
    done = used.run("rescue", "--yes", "--partitions", "orders=4")
    assert done.returncode == 0, done.stderr
    assert "no folder for partition(s)" in done.stdout
    used.broker.start()
    wanted = [each for each in range(40) if each % 4 in left]
    assert everything(used.broker, len(wanted)) == wanted


def test_a_running_broker_is_left_alone(used):
    used.broker.start()
    done = used.run("rescue", "--yes", "--replace")
    assert done.returncode == 1
    assert "a broker is running" in done.stderr
    assert used.broker.alive


# -- export and import -----------------------------------------------------------------------


def test_a_backup_brings_everything_back(used, wire, raw, tmp_path):
    file = str(tmp_path / "backup.json")
    used.broker.start()
    assert used.run("export", file).returncode == 0, "a running broker may be exported"
    raw.create_topic(wire(used.broker.bootstrap), "later")
    assert send(used.broker, range(40, 60)) == 0
    ids = topic_ids(wire(used.broker.bootstrap))
    assert used.broker.terminate() == 0
    shutil.rmtree(used.a / "metadata")

    done = used.run("import", file, "--yes")
    assert done.returncode == 0, done.stderr
    used.broker.start()
    connection = wire(used.broker.bootstrap)
    assert topic_ids(connection) == ids, "what came after the backup is taken from its folder"
    assert everything(used.broker, 60) == list(range(60))
    assert committed(used.broker) == 7
    settings = connection.ask(
        "describe_configs",
        4,
        resources=[{"resource_type": 2, "resource_name": "orders", "configuration_keys": None}],
    ).results[0]
    kept = next(each.value for each in settings.configs if each.name == "retention.ms")
    assert kept == "86400000"
    assert send(used.broker, range(60, 80)) == 0
    assert everything(used.broker, 80) == list(range(80))


def test_an_import_keeps_what_it_replaces(used, tmp_path):
    file = str(tmp_path / "backup.json")
    assert used.run("export", file).returncode == 0
    refused = used.run("import", file, "--yes")
    assert refused.returncode == 1
    assert "--replace" in refused.stderr
    before = {each.name: each.read_bytes() for each in (used.a / "metadata").iterdir()}
    assert used.run("import", file, "--yes", "--replace").returncode == 0
    (old,) = used.a.glob("metadata.*-old")
    assert {each.name: each.read_bytes() for each in old.iterdir()} == before
    used.broker.start()
    assert everything(used.broker, 40) == list(range(40))
