"""`ottla.Producer`, `Consumer`, `Admin` and the commands, against a real broker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import ottla
from ottla.client.descriptions import NewTopic
from ottla.client.errors import PartialFailureError
from ottla.client.partitioners import murmur2_partition
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

MakeTopic = Callable[..., str]
# An hour ago: older records would be retention's to delete whenever its turn comes.
THEN = int(time.time() * 1000) - 3_600_000


@pytest.fixture
def admin(bootstrap: str) -> ottla.Admin:
    return ottla.Admin(bootstrap)


@pytest.fixture
def make_topic(admin: ottla.Admin, unique: Any, eventually: Any) -> MakeTopic:
    """`make_topic(3, retention_ms="1")`: a topic whose partitions all answer."""

    def make(partitions: int = 1, **config: str) -> str:
        name: str = unique()
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin.create_topic(name, partitions=partitions, replication=1, config=settings)
        wanted: Any = {TopicPartition(name, number): "latest" for number in range(partitions)}

        def ready() -> bool:
            try:
                return len(admin.list_offsets(wanted)) == partitions
            except KafkaError:
                return False

        eventually(ready)
        return name

    return make


def fill(bootstrap: str, topic: str, count: int, **options: Any) -> None:
    """Records "0", "1", … a millisecond apart."""
    with ottla.Producer(bootstrap) as producer:
        for number in range(count):
            producer.post(topic, str(number), timestamp=THEN + number, **options)


def read(bootstrap: str, topic: str, start: Any = "earliest") -> list[ottla.Record[Any, Any]]:
    with ottla.Consumer(bootstrap) as consumer:
        consumer.assign(topic, start)
        return list(consumer.records(until_end=True))


# -- producing


def test_everything_about_a_record_arrives(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with ottla.Producer(bootstrap, key=ottla.STRING, value=ottla.JSON) as producer:
        delivery = producer.send(
            topic,
            {"größe": [1, None]},
            key="schlüssel",
            headers=[("h", b"\x00\xff"), ("h", "two"), ("n", None)],
            timestamp=datetime.fromtimestamp(THEN / 1000, UTC),
        ).result(30)
    assert delivery == ottla.Delivery(topic, 0, 0, THEN)
    with ottla.Consumer(bootstrap, key=ottla.STRING, value=ottla.JSON) as consumer:
        consumer.assign(topic, "earliest")
        [record] = consumer.records(until_end=True)
    assert record == ottla.Record(
        topic,
        0,
        0,
        THEN,
        "create",
        "schlüssel",
        {"größe": [1, None]},
        (("h", b"\x00\xff"), ("h", b"two"), ("n", None)),
        record.leader_epoch,
    )


def test_null_and_empty_are_different_things(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with ottla.Producer(bootstrap) as producer:
        producer.post(topic, None, key=None)
        producer.post(topic, b"", key=b"")
    assert [(record.key, record.value) for record in read(bootstrap, topic)] == [
        (None, None),
        (b"", b""),
    ]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["all", 1, 0])
def test_every_compression_and_acks(
    bootstrap: str, make_topic: MakeTopic, compression: Any, acks: Any
) -> None:
    topic = make_topic()
    with ottla.Producer(bootstrap, compression=compression, acks=acks) as producer:
        futures = [producer.send(topic, f"value {number}" * 10) for number in range(50)]
        offsets = [future.result(30).offset for future in futures]
    assert offsets == ([-1] * 50 if acks == 0 else list(range(50)))
    assert [record.offset for record in read(bootstrap, topic)] == list(range(50))


def test_keyed_records_land_where_java_puts_them(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(7)
    keys = [b"", b"a", b"foobar", "käse".encode(), b"user-42", bytes(range(256))]
    with ottla.Producer(bootstrap) as producer:
        landed = [producer.send(topic, "v", key=key).result(30).partition for key in keys]
    assert landed == [murmur2_partition(key, 7) for key in keys]
    assert landed[:5] == [2, 5, 0, 0, 1]  # as org.apache.kafka.common.utils.Utils says


def test_records_without_a_key_are_spread_evenly(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(4)
    fill(bootstrap, topic, 2_000)
    spread = Counter(record.partition for record in read(bootstrap, topic))
    assert set(spread) == {0, 1, 2, 3}
    assert min(spread.values()) > 350  # 500 expected; less happens once in 10^14 runs


def test_a_python_partitioner_decides(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(3)

    def by_length(key: bytes | None, partitions: int) -> int:
        return len(key or b"") % partitions

    with ottla.Producer(bootstrap, partitioner=by_length) as producer:
        for key in (None, "a", "bb", "ccc"):
            producer.post(topic, "v", key=key)
        assert producer.partitions(topic) == 3
    placed = {record.key: record.partition for record in read(bootstrap, topic)}
    assert placed == {None: 0, b"a": 1, b"bb": 2, b"ccc": 0}


def test_a_record_that_is_too_large_fails_alone(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(1, max_message_bytes="2000")
    with ottla.Producer(bootstrap) as producer:
        good = producer.send(topic, "small")
        assert good.result(30).offset == 0
        bad = producer.send(topic, os.urandom(5_000))
        with pytest.raises(KafkaError) as caught:
            bad.result(30)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert producer.send(topic, "small").result(30).offset == 1


def test_callbacks_are_told_and_leaving_the_block_loses_nothing(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    told: list[int] = []

    def on_delivery(delivery: ottla.Delivery | None, error: KafkaError | None) -> None:
        assert error is None
        assert delivery is not None
        told.append(delivery.offset)

    with ottla.Producer(bootstrap, linger=1.0) as producer:
        for number in range(1_000):
            producer.post(topic, str(number), on_delivery=on_delivery)
    assert told == list(range(1_000))
    assert [record.value for record in read(bootstrap, topic)] == [
        str(number).encode() for number in range(1_000)
    ]


def test_a_program_that_forgets_to_close_loses_nothing(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    program = (
        "import ottla, sys\n"
        "producer = ottla.Producer(sys.argv[1], linger=1.0)\n"
        "for number in range(100): producer.send(sys.argv[2], str(number))\n"
    )
    subprocess.run([sys.executable, "-c", program, bootstrap, topic], check=True, timeout=250)
    assert len(read(bootstrap, topic)) == 100


# -- consuming


def test_every_place_to_start(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    fill(bootstrap, topic, 10)
    for start, first in (
        ("earliest", 0),
        (4, 4),
        (-3, 7),
        (-100, 0),
        (datetime.fromtimestamp(THEN / 1000 + 0.006, UTC), 6),
    ):
        assert read(bootstrap, topic, start)[0].offset == first
    assert read(bootstrap, topic, "latest") == []
    assert read(bootstrap, topic, datetime.now(UTC)) == []


def test_latest_means_after_assign_has_returned(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    fill(bootstrap, topic, 10)
    with ottla.Consumer(bootstrap) as consumer:
        consumer.assign(topic, "latest")
        fill(bootstrap, topic, 1, key="new")
        record = consumer.poll(30)
        assert record is not None
        assert record.key == b"new"
        assert consumer.poll(0.2) is None


def test_seek_moves_forth_and_back(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    fill(bootstrap, topic, 10)
    with ottla.Consumer(bootstrap) as consumer:
        [partition] = consumer.assign(topic, "earliest")
        for target, offset in ((5, 5), ("earliest", 0), (-1, 9), (2, 2)):
            assert consumer.seek(partition, target) == offset
            record = consumer.poll(30)
            assert record is not None
            assert record.offset == offset
            assert consumer.position(partition) == offset + 1


def test_offsets_and_times_are_looked_up(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    fill(bootstrap, topic, 10, partition=1)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with ottla.Consumer(bootstrap) as consumer:
        assert consumer.partitions(topic) == (zero, one)
        assert consumer.offsets(topic, "latest") == {zero: 0, one: 10}
        assert consumer.offsets(topic, "earliest") == {zero: 0, one: 0}
        times = consumer.offsets_for_times({zero: THEN, one: THEN + 4})
        assert times == {zero: None, one: 4}


def test_a_paused_partition_rests(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    fill(bootstrap, topic, 5)
    with ottla.Consumer(bootstrap) as consumer:
        [partition] = consumer.assign(topic, "earliest")
        assert consumer.poll(30) is not None
        consumer.pause(partition)
        assert consumer.poll(0.3) is None
        consumer.resume(partition)
        assert [record.offset for record in consumer.records(limit=4)] == [1, 2, 3, 4]


def test_a_missing_topic_is_an_error(bootstrap: str, unique: Any) -> None:
    with ottla.Consumer(bootstrap) as consumer, pytest.raises(KafkaError) as caught:
        consumer.assign(unique())
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_offset_outside_of_the_log_can_be_an_error(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    fill(bootstrap, topic, 5)
    with ottla.Consumer(bootstrap, reset="error") as consumer:
        consumer.assign(topic, 1_000)
        with pytest.raises(KafkaError) as caught:
            consumer.poll(30)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


# -- asyncio


async def test_asyncio_produces_and_consumes(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = await asyncio.to_thread(make_topic, 2)
    async with ottla.AsyncProducer(bootstrap, value=ottla.JSON) as producer:
        first = await producer.send_and_wait(topic, {"number": 0}, key="k")
        futures = [await producer.send(topic, {"number": n}, key="k") for n in range(1, 500)]
        offsets = [delivery.offset for delivery in await asyncio.gather(*futures)]
    assert [first.offset, *offsets] == list(range(500))
    async with ottla.AsyncConsumer(bootstrap, value=ottla.JSON) as consumer:
        await consumer.assign(topic, "earliest")
        numbers = [record.value["number"] async for record in consumer.records(until_end=True)]
    assert numbers == list(range(500))


async def test_asyncio_administers(bootstrap: str, unique: Any) -> None:
    name = unique()
    async with ottla.AsyncAdmin(bootstrap) as admin:
        await admin.create_topic(name, partitions=2, replication=1)
        with pytest.raises(KafkaError) as caught:
            await admin.create_topic(name)
        assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
        await admin.delete_topics(name)


async def test_a_wait_that_is_cancelled_takes_no_record_along(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = await asyncio.to_thread(make_topic)
    async with ottla.AsyncConsumer(bootstrap) as consumer:
        await consumer.assign(topic, "earliest")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.poll(), 0.05)
        await asyncio.to_thread(fill, bootstrap, topic, 3)
        assert [record.offset for record in await consumer.take(1, 30)] == [0]


# -- administering


def test_a_topics_life(admin: ottla.Admin, unique: Any, eventually: Any) -> None:
    name = unique()
    admin.create_topic(name, partitions=2, replication=1, config={"retention.ms": "60000"})
    described = eventually(lambda: found(admin, name))
    assert [part.partition for part in described.partitions] == [0, 1]
    assert described.replication == 1
    assert len(described.id) == 22
    assert (name, 2) in {(topic.name, topic.partitions) for topic in admin.list_topics()}
    admin.create_partitions(name, 3)
    eventually(lambda: len(found(admin, name).partitions) == 3)
    admin.delete_topics(name)
    eventually(lambda: name not in {topic.name for topic in admin.list_topics()})
    with pytest.raises(KafkaError, match=f"there is no topic '{name}'"):
        admin.delete_topics(name)


def found(admin: ottla.Admin, name: str) -> Any:
    try:
        return admin.describe_topic(name)
    except KafkaError:
        return None


def test_some_topics_of_many_fail(admin: ottla.Admin, make_topic: MakeTopic, unique: Any) -> None:
    old, new = make_topic(), unique()
    with pytest.raises(PartialFailureError) as caught:
        admin.create_topics([NewTopic(old), NewTopic(new), NewTopic("not a name")])
    assert {name: error.code for name, error in caught.value.failures.items()} == {
        old: ErrorCode.TOPIC_ALREADY_EXISTS,
        "not a name": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }


def test_validate_only_creates_nothing(admin: ottla.Admin, unique: Any) -> None:
    name = unique()
    admin.create_topic(name, validate_only=True)
    with pytest.raises(KafkaError):
        admin.create_topic(name, config={"nonsense": "1"}, validate_only=True)
    assert name not in {topic.name for topic in admin.list_topics()}


def test_settings_are_changed_and_shown(
    admin: ottla.Admin, make_topic: MakeTopic, eventually: Any
) -> None:
    topic = make_topic(1, retention_ms="60000")
    admin.alter_configs(
        topic=topic,
        set={"max.message.bytes": "5000"},
        append={"cleanup.policy": "compact"},
        delete=["retention.ms"],
    )

    def own() -> dict[str, str | None]:
        entries = admin.describe_configs(topic=topic)
        return {entry.name: entry.value for entry in entries if entry.source == "topic"}

    expected = {"max.message.bytes": "5000", "cleanup.policy": "delete,compact"}
    eventually(lambda: own() == expected)
    with pytest.raises(KafkaError) as caught:
        admin.alter_configs(topic=topic, set={"retention.ms": "soon"})
    assert caught.value.code is ErrorCode.INVALID_CONFIG


def test_the_cluster_and_a_brokers_settings_are_shown(admin: ottla.Admin, bootstrap: str) -> None:
    cluster = admin.describe_cluster()
    assert cluster.id
    [node] = [node for node in cluster.nodes if str(node) == bootstrap]
    settings = {entry.name: entry for entry in admin.describe_configs(broker=node.id)}
    assert settings["log.retention.hours"].default
    assert settings["log.retention.hours"].value == "168"


def test_records_are_deleted_and_offsets_listed(
    admin: ottla.Admin, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    fill(bootstrap, topic, 10)
    partition = TopicPartition(topic, 0)
    assert admin.delete_records({partition: 4}) == {partition: 4}
    assert admin.list_offsets({partition: "earliest"})[partition].offset == 4
    assert admin.list_offsets({partition: "latest"})[partition].offset == 10
    newest = admin.list_offsets({partition: "max-timestamp"})[partition]
    assert (newest.offset, newest.timestamp) == (9, THEN + 9)
    moment = datetime.fromtimestamp(THEN / 1000 + 0.007, UTC)
    assert admin.list_offsets({partition: moment})[partition].offset == 7
    assert admin.delete_records({partition: "latest"}) == {partition: 10}


def test_a_partition_that_does_not_exist_is_an_error(
    admin: ottla.Admin, make_topic: MakeTopic
) -> None:
    with pytest.raises(KafkaError, match="no partition 7") as caught:
        admin.list_offsets({TopicPartition(make_topic(), 7): "latest"})
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# -- commands


class Command:
    """`ottla …` as a process of its own."""

    def __init__(self, bootstrap: str) -> None:
        self.environment = {**os.environ, "OTTLA_BOOTSTRAP": bootstrap}

    def __call__(
        self, *arguments: str, given: str = "", code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            [sys.executable, "-m", "ottla", *arguments],
            env=self.environment,
            input=given,
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert result.returncode == code, result.stderr
        return result

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "ottla", *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


@pytest.fixture
def command(bootstrap: str) -> Command:
    return Command(bootstrap)


@pytest.fixture
def running(command: Command) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Commands that go on until they are told to stop; killed when the test is over."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        started.append(command.start(*arguments))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_topics_by_command(command: Command, unique: Any, eventually: Any) -> None:
    name = unique()
    made = command("topic", "create", name, "--partitions", "2", "--config", "retention.ms=60000")
    assert made.stdout == f"created topic {name}\n"
    assert "--if-not-exists" in command("topic", "create", name, code=1).stderr
    command("topic", "create", name, "--if-not-exists")

    def described() -> Any:
        return json.loads(command("topic", "describe", name, "--json").stdout)[0]

    eventually(lambda: len(described()["partitions"]) == 2)
    assert described()["config"] == {"retention.ms": "60000"}
    assert {"name": name, "partitions": 2, "replication": 1, "internal": False} in json.loads(
        command("topic", "list", "--json").stdout
    )
    command("topic", "alter", name, "--partitions", "3", "--delete-config", "retention.ms")
    eventually(lambda: len(described()["partitions"]) == 3)
    eventually(lambda: described()["config"] == {})
    assert name in command("topic", "list").stdout
    command("topic", "delete", name)
    eventually(lambda: name not in command("topic", "list").stdout)
    assert f"there is no topic '{name}'" in command("topic", "delete", name, code=1).stderr


def test_lines_go_in_and_come_out(command: Command, make_topic: MakeTopic) -> None:
    topic = make_topic()
    sent = command("produce", topic, given="one\ntwo\n\nvier\n")
    assert sent.stderr.startswith(f"sent 4 records (10 bytes) to {topic}")
    read = command("consume", topic, "--from-beginning", "--exit-at-end")
    assert read.stdout == "one\ntwo\n\nvier\n"
    assert command("consume", topic, "--offset", "-1", "--exit-at-end").stdout == "vier\n"
    assert command("consume", topic, "--offset", "1", "--max", "1").stdout == "two\n"
    assert command("consume", topic, "--exit-at-end").stdout == ""


def test_what_consume_prints_produce_reads(command: Command, make_topic: MakeTopic) -> None:
    topic, copy = make_topic(), make_topic()
    shape = ["--headers-in-line", "--key-separator", r"\t", "--null", "null"]
    lines = "a:1,b:2\tkey\tvalue\n\tk\tnull\nh:\tnull\tv\n"
    command("produce", topic, *shape, given=lines)
    printed = command(
        "consume", topic, "--from-beginning", "--exit-at-end", "--key", "--headers"
    ).stdout
    assert printed == lines
    command("produce", copy, *shape, given=printed)
    text = command("consume", copy, "--from-beginning", "--exit-at-end", "--json").stdout
    records = [json.loads(line) for line in text.splitlines()]
    assert [(one["key"], one["value"], one["headers"]) for one in records] == [
        ("key", "value", [["a", "1"], ["b", "2"]]),
        ("k", None, []),
        (None, "v", [["h", ""]]),
    ]


def test_json_goes_from_topic_to_topic_without_a_loss(
    command: Command, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic, copy = make_topic(3), make_topic(3)
    with ottla.Producer(bootstrap) as producer:
        producer.post(topic, b"\xff\x00", key=b"\xfe", partition=2, timestamp=THEN)
        producer.post(topic, None, key="gone", partition=0, timestamp=THEN + 1)
        headers: Any = [("a", b"\xff"), ("a", None), ("é", "ü")]
        producer.post(topic, 'a "b"\n', partition=1, timestamp=THEN + 2, headers=headers)

    def content(name: str) -> Any:
        return sorted(
            (one.partition, one.offset, one.timestamp, one.key, one.value, one.headers)
            for one in read(bootstrap, name)
        )

    printed = command("consume", topic, "--from-beginning", "--exit-at-end", "--json").stdout
    command("produce", copy, "--format", "json", given=printed)
    assert content(copy) == content(topic)


def test_consume_starts_at_a_time_and_reads_some_partitions(
    command: Command, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(3)
    for partition in range(3):
        fill(bootstrap, topic, 5, partition=partition)
    shown = command(
        "consume", topic, "--timestamp", str(THEN + 3), "--partitions", "0,2", "--exit-at-end",
        "--format", "{partition}:{offset}",
    ).stdout  # fmt: skip
    assert sorted(shown.split()) == ["0:3", "0:4", "2:3", "2:4"]


def test_a_record_that_the_broker_refuses_fails_produce(
    command: Command, make_topic: MakeTopic
) -> None:
    topic = make_topic(1, max_message_bytes="1000")
    refused = command("produce", topic, given="a\n" + "x" * 5_000 + "\nc\n", code=1)
    assert refused.stderr.startswith("sent 1 record (1 byte)")
    assert "Error: line 2 has 5,000 bytes, more than" in refused.stderr
    # packed by random bytes that do not shrink: only the broker can tell
    noise = os.urandom(3_000).hex()
    options = ["--compression", "zstd"]
    refused = command("produce", topic, *options, given=f"a\n{noise}\nc\n", code=1)
    assert refused.stderr.startswith("sent 2 records (2 bytes)")
    assert "1 record of 3 not delivered: line 2 has 6,000 bytes, more than" in refused.stderr
    assert command("consume", topic, "--from-beginning", "--exit-at-end").stdout == "a\na\nc\n"
    # many small ones are not refused together
    many = "".join(f"{number}\n" for number in range(2_000))
    assert command("produce", topic, given=many).stderr.startswith("sent 2,000 records")


def test_consume_prints_what_comes_and_stops_on_ctrl_c(
    running: Any, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    fill(bootstrap, topic, 1)
    process = running("consume", topic, "--from-beginning")
    assert process.stdout.readline() == b"0\n"
    fill(bootstrap, topic, 1)
    assert process.stdout.readline() == b"0\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=250)
    assert (process.returncode, out, err) == (0, b"", b"")


def test_consume_stops_when_nobody_reads_its_output_any_more(
    running: Any, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    fill(bootstrap, topic, 1)
    process = running("consume", topic, "--from-beginning")
    assert process.stdout.readline() == b"0\n"
    process.stdout.close()
    assert process.wait(120) == 0  # although no further record comes
    assert process.stderr.read() == b""


def test_a_missing_topic_is_one_line_with_what_to_do(command: Command) -> None:
    name = "like-none-that-is-there"
    failed = command("consume", name, code=1)
    assert failed.stderr == (
        f"Error: there is no topic '{name}'; create it with `ottla topic create {name}`\n"
    )


def test_the_log_that_the_broker_wrote_can_be_dumped_and_verified(
    start_broker: Any,
) -> None:
    broker = start_broker()
    command = Command(broker.bootstrap)
    command("produce", "t", "--compression", "lz4", given="".join(f"{n}\n" for n in range(500)))
    broker.terminate()
    folder = broker.data_dir / "t-0"
    verified = command("log", "dump", "--verify", str(folder))
    assert "offsets 0 to 499" in verified.stdout
    text = command("log", "dump", "--json", "--records", str(folder)).stdout
    batches = [row for row in map(json.loads, text.splitlines()) if row["kind"] == "batch"]
    values = [record["value"] for batch in batches for record in batch["records"]]
    assert values == [str(number) for number in range(500)]
    # a batch that would not shrink, such as one of a single record, is sent as it is
    assert "lz4" in {batch["compression"] for batch in batches} <= {"lz4", "none"}


# -- groups


def test_a_group_goes_on_where_it_was(bootstrap: str, make_topic: MakeTopic, unique: Any) -> None:
    topic, group = make_topic(2), unique("group")
    fill(bootstrap, topic, 10)
    with ottla.Consumer(bootstrap, group=group, reset="earliest") as consumer:
        consumer.subscribe(topic)
        assert len(list(consumer.records(limit=6, idle=30))) == 6
        consumer.commit()
    with ottla.Consumer(bootstrap, group=group, reset="earliest") as consumer:
        consumer.subscribe(topic)
        assert len(list(consumer.records(until_end=True))) == 4


def test_a_record_whose_work_failed_comes_again(
    bootstrap: str, make_topic: MakeTopic, unique: Any
) -> None:
    topic, group = make_topic(), unique("group")
    fill(bootstrap, topic, 4)

    def work(fail_at: bytes | None) -> list[bytes]:
        seen: list[bytes] = []
        with ottla.Consumer(bootstrap, group=group, reset="earliest") as consumer:
            consumer.subscribe(topic)
            for record in consumer.records(limit=4, idle=30):
                assert record.value is not None
                seen.append(record.value)
                if record.value == fail_at:
                    raise ZeroDivisionError
                if record.value == b"3":
                    break
        return seen

    with pytest.raises(ZeroDivisionError):
        work(b"2")
    assert work(None) == [b"2", b"3"]


def test_a_commit_in_on_revoke_hands_over_what_was_processed(
    bootstrap: str, make_topic: MakeTopic, unique: Any, eventually: Any
) -> None:
    topic, group = make_topic(2), unique()
    for partition in range(2):
        fill(bootstrap, topic, 3, partition=partition)
    both = (TopicPartition(topic, 0), TopicPartition(topic, 1))
    options: Any = {"group": group, "reset": "earliest", "auto_commit": False}
    seen: list[Any] = []
    revoked: list[Any] = []
    with (
        ottla.Consumer(bootstrap, **options) as first,
        ottla.Consumer(bootstrap, **options) as other,
    ):

        def give_up(gone: Any) -> None:
            first.commit()
            revoked.append(gone)

        first.subscribe(topic, on_revoke=give_up)
        assert len(list(first.records(limit=6))) == 6
        assert first.committed(*both) == dict.fromkeys(both)
        other.subscribe(topic)

        def handed_over() -> bool:
            first.poll(0.05)
            seen.append(other.poll(0.05))
            return len(other.assignment()) == 1 == len(first.assignment())

        eventually(handed_over)
        assert revoked == [both]
        assert first.committed(*both) == dict.fromkeys(both, 3)
        assert set(seen) == {None}  # nothing is read twice


def test_a_commit_in_on_revoke_leaves_out_the_record_whose_work_failed(
    bootstrap: str, make_topic: MakeTopic, unique: Any
) -> None:
    topic, group = make_topic(), unique()
    fill(bootstrap, topic, 5)
    options: Any = {"group": group, "reset": "earliest", "auto_commit": False}

    def work() -> None:
        with ottla.Consumer(bootstrap, **options) as consumer:
            consumer.subscribe(topic, on_revoke=lambda _gone: consumer.commit())
            for record in consumer.records():
                1 / (2 - record.offset)

    with pytest.raises(ZeroDivisionError):
        work()
    with ottla.Consumer(bootstrap, **options) as later:
        assert later.committed((topic, 0)) == {TopicPartition(topic, 0): 2}


def test_what_cannot_be_decoded_comes_again_until_somebody_decides(
    bootstrap: str, make_topic: MakeTopic, unique: Any
) -> None:
    topic, group = make_topic(), unique("group")
    with ottla.Producer(bootstrap) as producer:
        for value in ("1", "{", "2"):
            producer.send(topic, value)

    def read_strictly() -> None:
        with ottla.Consumer(bootstrap, group=group, reset="earliest", value=ottla.JSON) as strict:
            strict.subscribe(topic)
            list(strict.records(idle=30))

    for _ in range(2):
        with pytest.raises(ottla.RecordDecodeError):
            read_strictly()
    dead: list[bytes | None] = []
    with ottla.Consumer(
        bootstrap,
        group=group,
        value=ottla.JSON,
        on_error=lambda record, error: dead.append(record.value),
    ) as careful:
        careful.subscribe(topic)
        assert [record.value for record in careful.records(until_end=True)] == [2]
    assert dead == [b"{"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_consume_commits_what_it_printed_when_it_is_stopped(
    command: Command,
    running: Callable[..., subprocess.Popen[bytes]],
    bootstrap: str,
    make_topic: MakeTopic,
    unique: Any,
    number: int,
) -> None:
    topic, group = make_topic(), unique("group")
    fill(bootstrap, topic, 3)
    process = running("consume", topic, "--group", group)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == [b"0\n", b"1\n", b"2\n"]
    process.send_signal(number)
    assert process.wait(30) == 0
    with ottla.Consumer(bootstrap, group=group) as consumer:
        assert consumer.committed((topic, 0)) == {TopicPartition(topic, 0): 3}


def test_admin_sees_moves_and_deletes_groups(
    admin: ottla.Admin, bootstrap: str, make_topic: MakeTopic, unique: Any
) -> None:
    topic, group = make_topic(), unique("group")
    first = TopicPartition(topic, 0)
    fill(bootstrap, topic, 10)
    with ottla.Consumer(bootstrap, group=group, reset="earliest") as consumer:
        consumer.subscribe(topic)
        assert len(list(consumer.records(limit=4, idle=30))) == 4
        consumer.commit()
        described = admin.describe_group(group)
        assert [member.assignment for member in described.members] == [(first,)]
        with pytest.raises(KafkaError, match="has 1 members; stop them first"):
            admin.reset_group_offsets(group, topic, "earliest")
        with pytest.raises(PartialFailureError, match="NON_EMPTY_GROUP"):
            admin.delete_groups(group)
    assert group in {listed.name for listed in admin.list_groups(states=["Empty"])}
    assert group in {listed.name for listed in admin.list_groups(states="empty", types="classic")}
    assert {tp: at.offset for tp, at in admin.group_offsets(group).items()} == {first: 4}
    [row] = admin.group_lag(group)
    assert (row.committed, row.end, row.lag) == (4, 10, 6)
    assert admin.reset_group_offsets(group, topic, -2, validate_only=True) == {first: 2}
    assert admin.group_offsets(group)[first].offset == 4
    assert admin.reset_group_offsets(group, [(topic, 0)], "latest") == {first: 10}
    admin.alter_group_offsets(group, {first: 7})
    assert admin.group_offsets(group)[first].offset == 7
    admin.delete_group_offsets(group, [first])
    assert admin.group_offsets(group) == {}
    admin.delete_groups(group)
    with pytest.raises(KafkaError) as caught:
        admin.describe_group(group)
    assert caught.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_admin_shows_the_data_folders(admin: ottla.Admin, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    folders = [each for found in admin.describe_log_dirs().values() for each in found]
    here = {(part.topic, part.partition) for folder in folders for part in folder.replicas}
    assert {(topic, 0), (topic, 1)} <= here


def test_a_group_by_command(
    command: Command, bootstrap: str, make_topic: MakeTopic, unique: Any
) -> None:
    topic, group = make_topic(), unique("group")
    fill(bootstrap, topic, 3)
    first = command("consume", topic, "--group", group, "--max", "2")
    assert first.stdout == "0\n1\n"
    assert command("consume", topic, "--group", group, "--exit-at-end").stdout == "2\n"


class Interrupt(BaseException):
    """What Ctrl-C is to a program that goes on afterwards."""


@pytest.mark.parametrize("joins", [False, True], ids=["assigned", "in a group"])
def test_a_signal_in_the_middle_of_a_wait_takes_no_record_with_it(
    bootstrap: str, make_topic: MakeTopic, joins: bool
) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupt

    topic = make_topic()
    options: Any = {"group": topic, "reset": "earliest"} if joins else {}
    before = signal.signal(signal.SIGUSR1, interrupt)
    got: list[int] = []
    try:
        with (
            ottla.Consumer(bootstrap, **options) as consumer,
            ottla.Producer(bootstrap) as producer,
        ):
            if joins:
                consumer.subscribe(topic)
            else:
                consumer.assign(topic, "earliest")

            def shoot() -> None:
                time.sleep(0.02)  # so that the consumer most probably waits; it need not
                os.kill(os.getpid(), signal.SIGUSR1)
                producer.send(topic, "x").result(30)

            for _ in range(10):
                shooting = threading.Thread(target=shoot)
                try:
                    shooting.start()
                    while True:
                        got += [record.offset for record in consumer.take(1, 0.1)]
                except Interrupt:
                    shooting.join()
            while len(got) < 10 and (record := consumer.poll(60)) is not None:
                got.append(record.offset)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert got == list(range(10))
