"""A broker that was alone joins ZooKeeper with everything it has, once."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from ottla.cli.main import cli as command_line
from ottla.cluster import layout
from ottla.cluster.store import Create
from ottla.cluster.zookeeper.address import access_of, parse_address
from ottla.cluster.zookeeper.store import ZooKeeperStore
from ottla.testing.process import BrokerProcess

StartBroker = Callable[..., BrokerProcess]


def refusal(broker: BrokerProcess) -> str:
    """What a broker says that does not start."""
    since = broker.log_size()
    broker.launch()
    assert broker.wait() == 1
    return broker.wait_log("Error: ", since=since)


def admin_of(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


def create(broker: BrokerProcess, topic: NewTopic) -> None:
    admin = admin_of(broker)
    admin.create_topics([topic])[topic.topic].result(60)


def produce(broker: BrokerProcess, *values: str) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "log_level": 0}
    )
    for value in values:
        producer.produce("t", value, partition=0)
    assert producer.flush(120) == 0


def read(broker: BrokerProcess, count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition("t", 0, 0)])
        return [message.value() for message in consumer.consume(count, timeout=120)]
    finally:
        consumer.close()


def committed(broker: BrokerProcess, offset: int | None = None) -> int:
    """The group's offset, after it was committed if one is given."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    try:
        if offset is not None:
            consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
        return int(consumer.committed([TopicPartition("t", 0)], timeout=120)[0].offset)
    finally:
        consumer.close()


def identity(broker: BrokerProcess) -> tuple[str, str, str]:
    """Of the cluster, of the topic; and one of its settings."""
    admin = admin_of(broker)
    cluster = admin.describe_cluster(request_timeout=60).result().cluster_id
    topic = admin.describe_topics(TopicCollection(["t"]))["t"].result(60)
    resource = ConfigResource(ResourceType.TOPIC, "t")
    config = admin.describe_configs([resource])[resource].result(60)
    return cluster, str(topic.topic_id), config["retention.ms"].value


def test_a_broker_brings_its_topics_along(
    start_broker: StartBroker, zookeeper: str, unique: Callable[[], str]
) -> None:
    connect = f"{zookeeper}/{unique()}"
    alone = start_broker("alone")
    topic = NewTopic("t", 2, 1, config={"retention.ms": "123456789"})
    create(alone, topic)
    produce(alone, "1", "2")
    assert committed(alone, 1) == 1
    before = identity(alone)
    alone.terminate()
    copy = alone.folder.with_name("copy")
    shutil.copytree(alone.data_dir, copy / "data")

    joined = start_broker(
        "joined", settings={"zookeeper.connect": connect}, data_dir=alone.data_dir
    )
    joined.wait_log("was handed over to")
    assert identity(joined) == before
    assert read(joined, 2) == [b"1", b"2"]
    assert committed(joined) == 1
    produce(joined, "3")
    # A second one, with the same past, is refused; so is the first without ZooKeeper.
    rival = start_broker("copy", launch=False, settings={**joined.settings, "broker.id": 1})
    assert "was never handed over to it" in refusal(rival)
    joined.terminate()
    assert f"start the broker with zookeeper.connect={connect}" in refusal(alone)
    # It is done once: what was made since stays.
    create(joined.start(), NewTopic("later", 1, 1))
    joined.restart()
    assert set(admin_of(joined).list_topics(timeout=60).topics) >= {"t", "later"}
    assert read(joined, 3) == [b"1", b"2", b"3"]
    assert identity(joined) == before


def test_what_was_brought_back_in_part_is_no_backup(
    zookeeper: str, unique: Callable[[], str], tmp_path: Path
) -> None:
    connect = f"{zookeeper}/{unique()}"

    async def begin() -> None:
        """As an import that is killed when it has come so far."""
        store = await ZooKeeperStore.open(
            parse_address(connect),
            access_of({}, "the settings"),
            create=True,
            session_timeout=6,
            connect_timeout=60,
        )
        claim = Create(layout.HAND_OVER, layout.encode_hand_over(connect))
        await store.commit(Create(layout.CLUSTER, layout.encode_cluster("c")), claim)
        await store.close()

    asyncio.run(begin())
    file = tmp_path / "backup.json"
    file.write_text("the one that is being brought back")
    words = ["metadata", "export", str(file), "--zookeeper", connect]
    refused = CliRunner().invoke(command_line, words)
    assert refused.exit_code == 1
    assert "holds only a part of a cluster's metadata" in refused.output
    assert file.read_text() == "the one that is being brought back"


def test_folders_that_the_cluster_does_not_know_are_kept_and_named(
    start_broker: StartBroker, zookeeper: str, unique: Callable[[], str]
) -> None:
    settings = {"zookeeper.connect": f"{zookeeper}/{unique()}"}
    first = start_broker("first", settings={**settings, "broker.id": 1})
    second = start_broker("second", settings={**settings, "broker.id": 2})
    admin = admin_of(first)
    admin.create_topics([NewTopic("t", 1, replica_assignment=[[2]])])["t"].result(60)
    produce(first, "1")
    second.kill()
    admin.delete_topics(["t"])["t"].result(60)
    since = second.log_size()
    second.start()
    line = second.wait_log("belongs to no topic of this cluster", since=since)
    kept = line.rpartition(" ")[2]
    assert "t-0" in line
    assert any((second.data_dir / kept).glob("*.log"))
