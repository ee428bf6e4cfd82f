"""Topics as tables on a real Spark: every option of a batch read, and what is refused."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from ottla.client.descriptions import NewTopic
from ottla.client.direct import DirectAdmin
from ottla.client.producer import Producer
from ottla.errors import ErrorCode
from ottla.model.ids import TopicPartition

EPOCH_MS = 1_700_000_000_000
PER_PARTITION = 50


@pytest.fixture(scope="module")
def topic(bootstrap: str) -> str:
    """Three partitions of fifty records; the timestamp of each is its offset in seconds."""
    name = "batch-read"
    with DirectAdmin(bootstrap) as admin:
        refused = admin.create_topics([NewTopic(name, 3, 1, {"retention.ms": "-1"})])
    if refused:
        # A worker may come back to this file, for tests that another one was to run.
        assert refused[name].code is ErrorCode.TOPIC_ALREADY_EXISTS
        return name
    with Producer(bootstrap) as producer:
        for partition in range(3):
            for number in range(PER_PARTITION):
                producer.post(
                    name,
                    f"{partition}:{number}".encode(),
                    key=None if number % 10 == 0 else str(number).encode(),
                    partition=partition,
                    headers=[("n", str(number).encode())] if number % 2 else None,
                    timestamp=EPOCH_MS + number * 1000,
                )
    return name


@pytest.fixture
def read(spark: Any, bootstrap: str, topic: str) -> Callable[..., Any]:
    """`read(startingOffsets=…)`: the topic as a DataFrame; `None` leaves an option out."""

    def load(**options: Any) -> Any:
        given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic} | options
        reader = spark.read.format("ottla")
        for name, value in given.items():
            if value is not None:
                reader = reader.option(name.replace("__", "."), value)
        return reader.load()

    return load


def places(frame: Any) -> set[tuple[int, int]]:
    rows = [(row.partition, row.offset) for row in frame.select("partition", "offset").collect()]
    assert len(rows) == len(set(rows)), "a row came twice"
    return set(rows)


def stretch(*spans: tuple[int, int, int]) -> set[tuple[int, int]]:
    return {(partition, offset) for partition, a, b in spans for offset in range(a, b)}


ALL = stretch((0, 0, 50), (1, 0, 50), (2, 0, 50))


def test_a_topic_has_the_columns_of_sparks_connector(read: Callable[..., Any], topic: str) -> None:
    frame = read()
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )
    rows = {(row.partition, row.offset): row for row in frame.collect()}
    assert rows.keys() == ALL
    row = rows[1, 7]
    assert (row.key, row.value, row.topic, row.timestampType) == (b"7", b"1:7", topic, 0)
    assert row.timestamp.astimezone(UTC) == datetime.fromtimestamp(EPOCH_MS / 1000 + 7, UTC)
    assert rows[1, 10].key is None


def test_headers_are_a_column_on_demand(read: Callable[..., Any]) -> None:
    rows = read(includeHeaders="true").where("partition = 0 and offset < 2").collect()
    assert sorted((row.offset, [tuple(h) for h in row.headers]) for row in rows) == [
        (0, []),
        (1, [("n", b"1")]),
    ]


def test_only_the_columns_that_are_named_are_read(read: Callable[..., Any]) -> None:
    frame = read(columns="headers,offset,partition")
    assert frame.columns == ["headers", "offset", "partition"]
    assert frame.schema == read(includeHeaders="true").select(*frame.columns).schema
    assert places(frame) == ALL
    [row] = frame.where("partition = 2 and offset = 3").collect()
    assert [tuple(header) for header in row.headers] == [("n", b"3")]
    assert read(columns="offset").count() == len(ALL)
    values = {bytes(row.value) for row in read(columns="value").collect()}
    assert values == {f"{partition}:{offset}".encode() for partition, offset in ALL}
    with pytest.raises(Exception, match="columns names 'ofset', which a topic does not have"):
        read(columns="ofset")


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_filters_narrow_what_is_read_and_change_no_answer(
    read: Callable[..., Any], pushdown: str
) -> None:
    moment = f"timestamp'{datetime.fromtimestamp(EPOCH_MS / 1000 + 30, UTC).isoformat()}'"
    for condition, expected in [
        ("partition = 1 and offset >= 40", stretch((1, 40, 50))),
        ("partition in (0, 2) and offset < 3", stretch((0, 0, 3), (2, 0, 3))),
        (f"timestamp >= {moment}", stretch((0, 30, 50), (1, 30, 50), (2, 30, 50))),
        ("offset = 5 or partition = 0", stretch((0, 0, 50), (1, 5, 6), (2, 5, 6))),
        ("topic = 'another'", set()),
        ("timestamp > timestamp'2100-01-01'", set()),
    ]:
        # A DataFrame each: Spark keeps what was pushed into one for its next query.
        assert places(read(pushdown=pushdown).where(condition)) == expected, condition
    narrow = read(pushdown=pushdown).where("partition = 1")
    assert narrow.rdd.getNumPartitions() == (1 if pushdown == "true" else 3)


def test_one_partition_is_cut_into_many_tasks(read: Callable[..., Any]) -> None:
    many = read(minPartitions="9")
    assert many.rdd.getNumPartitions() == 9
    assert places(many) == ALL
    capped = read(maxRecordsPerPartition="20")
    assert capped.rdd.getNumPartitions() == 9
    assert places(capped) == ALL


def test_positions_say_where_a_batch_begins_and_ends(read: Callable[..., Any], topic: str) -> None:
    def each(*numbers: int) -> str:
        return json.dumps({topic: {str(p): n for p, n in enumerate(numbers)}})

    late = EPOCH_MS + 45_000
    for options, expected in [
        (
            {"startingOffsets": each(-2, 10, 50), "endingOffsets": each(5, -1, -1)},
            stretch((0, 0, 5), (1, 10, 50)),
        ),
        ({"startingTimestamp": str(late)}, stretch(*((p, 45, 50) for p in range(3)))),
        ({"endingTimestamp": str(EPOCH_MS + 4_500)}, stretch(*((p, 0, 5) for p in range(3)))),
        (
            {
                "startingOffsetsByTimestamp": each(late, late + 2_000, late),
                "endingOffsetsByTimestamp": each(late + 1_000, late + 9_000_000, late),
            },
            stretch((0, 45, 46), (1, 47, 50)),
        ),
        (
            {
                "startingTimestamp": str(EPOCH_MS * 2),
                "startingOffsetsByTimestampStrategy": "latest",
            },
            set(),
        ),
    ]:
        assert places(read(**options)) == expected, options


def test_topics_are_chosen_by_pattern_and_by_partition(
    read: Callable[..., Any], bootstrap: str, topic: str, unique: Callable[..., str]
) -> None:
    prefix = unique("pattern")
    with DirectAdmin(bootstrap) as admin:
        for name in (f"{prefix}-a", f"{prefix}-b", f"not-{prefix}-a"):
            admin.create_topic(NewTopic(name, 1, 1))
    with Producer(bootstrap) as producer:
        for name in (f"{prefix}-a", f"{prefix}-b", f"not-{prefix}-a"):
            producer.post(name, b"x")
    found = read(subscribe=None, subscribePattern=f"{prefix}-.*").select("topic").collect()
    assert sorted(row.topic for row in found) == [f"{prefix}-a", f"{prefix}-b"]
    assigned = read(subscribe=None, assign=json.dumps({topic: [0, 2]}))
    assert places(assigned) == stretch((0, 0, 50), (2, 0, 50))
    assert places(read(subscribe=None, subscribePattern=f"{prefix}-none")) == set()


def test_settings_of_kafka_reach_the_brokers(read: Callable[..., Any]) -> None:
    frame = read(
        **{
            "kafka.client.id": "batch-test",
            "kafka.isolation.level": "read_uncommitted",
            "kafka.max.partition.fetch.bytes": "200",
            "kafka.fetch.max.bytes": "400",
            "kafka.check.crcs": "false",
            "kafka.request.timeout.ms": "20000",
            "kafkaConsumer.pollTimeoutMs": "30000",
            "fetchOffset.numRetries": "1",
            "fetchOffset.retryIntervalMs": "5",
            "failOnDataLoss": "aged_out=skip,deleted=fail",
            "groupIdPrefix": "unused-by-batches",
        }
    )
    assert places(frame) == ALL


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribe": None}, "give one of the options subscribe, subscribePattern and assign"),
        ({"subscribe": "no-such-topic"}, "there is no such topic"),
        ({"startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({"startingOffsets": '{"batch-read":{"0":'}, "startingOffsets is malformed"),
        ({"startingOffsets": '{"batch-read":{"0":1}}'}, "name every partition"),
        ({"startingOffsets": '{"batch-read":{"0":1,"1":1,"2":99}}'}, "ends at 50"),
        ({"startingOffsets": "latest"}, "startingOffsets=latest leaves nothing"),
        ({"startingTimestamp": str(EPOCH_MS * 2)}, "no record so late"),
        ({"assign": '{"batch-read":[0]}'}, "contradict each other"),
        ({"subscribe": None, "assign": '{"batch-read":[7]}'}, "partitions 0 to 2"),
        ({"kafka.bootstrap.servers": None}, "kafka.bootstrap.servers is missing"),
        ({"kafka.auto.offset.reset": "latest"}, "kafka.auto.offset.reset is refused"),
        ({"failOnDataLoss": "perhaps"}, "aged_out=skip,deleted=fail"),
        ({"minPartitions": "0"}, "minPartitions=0 is not right"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_option(
    read: Callable[..., Any], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(Exception, match="OptionError") as raised:
        read(**options).count()
    assert says in str(raised.value)


def test_a_schema_of_ones_own_is_refused(spark: Any, bootstrap: str, topic: str) -> None:
    reader = spark.read.format("ottla").schema("value string")
    reader = reader.option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    with pytest.raises(Exception, match="a schema cannot be given"):
        reader.load().count()


def test_records_deleted_before_a_batch_began_are_said_to_be(
    read: Callable[..., Any], bootstrap: str, unique: Callable[..., str]
) -> None:
    name = unique("deleted")
    with DirectAdmin(bootstrap) as admin:
        admin.create_topic(NewTopic(name, 1, 1, {"retention.ms": "-1"}))
    with Producer(bootstrap, config={"linger.ms": 50}) as producer:
        for number in range(20):
            producer.post(name, str(number).encode(), partition=0)
    with DirectAdmin(bootstrap) as admin:
        admin.delete_records({TopicPartition(name, 0): 5})
    options = {"subscribe": name, "startingOffsets": json.dumps({name: {"0": 2}})}
    with pytest.raises(Exception, match="DataLossError") as raised:
        read(**options).count()
    assert "Offsets 2 to 4" in str(raised.value)
    assert "(3 records) were deleted" in str(raised.value)
    assert places(read(failOnDataLoss="deleted=skip", **options)) == stretch((0, 5, 20))
    assert places(read(subscribe=name)) == stretch((0, 5, 20))


def test_making_a_reader_connects_to_nobody(spark: Any) -> None:
    from pyspark.sql.datasource import CaseInsensitiveDict

    from pyspark_ottla import DefaultSource

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        address = "{}:{}".format(*server.getsockname())
        options = CaseInsensitiveDict(
            {"kafka.bootstrap.servers": address, "subscribe": "orders", "pushdown": "true"}
        )
        source = DefaultSource(options)
        source.reader(source.schema())
        source.streamReader(source.schema())
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_batch_gives_up_on_a_cluster_that_nobody_answers_for(read: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "{}:{}".format(*server.getsockname())
    options = {
        "kafka.bootstrap.servers": address,
        "fetchOffset.numRetries": "0",
        "kafkaConsumer.pollTimeoutMs": "3000",
    }
    with pytest.raises(Exception, match="refused"):
        read(**options).count()
