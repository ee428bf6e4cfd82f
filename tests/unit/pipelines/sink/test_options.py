"""What a write accepts, and the sentence for what it does not."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ottla.pipelines.errors import OptionError
from ottla.pipelines.sink.options import WriteOptions, check_schema
from ottla.pipelines.sink.writer import OttlaStreamWriter, OttlaWriter
from ottla.records.compression import Compression

BOOTSTRAP = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
ROUND_ROBIN = "org.apache.kafka.clients.producer.RoundRobinPartitioner"


def parse(**given: str) -> WriteOptions:
    return WriteOptions.parse(
        BOOTSTRAP | {name.replace("_", "."): value for name, value in given.items()}
    )


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_defaults_are_those_of_javas_producer():
    made = parse()
    assert (made.acks, made.idempotent, made.topic) == (-1, True, None)
    assert (made.request_timeout, made.delivery_timeout, made.max_block) == (30, 120, 60)
    assert (made.backoff, made.longest_backoff, made.retries) == (0.1, 1, 2**31 - 1)
    assert (made.compression, made.level, made.buffer_bytes) == (Compression.NONE, None, 32 << 20)
    assert made == WriteOptions("127.0.0.1:9092")


def test_names_come_in_any_case():
    made = WriteOptions.parse(
        {"KAFKA.Bootstrap.Servers": "h:1", "Topic": " t ", "DELIVERY": "Idempotent"}
    )
    assert (made.bootstrap, made.topic, made.idempotent) == ("h:1", "t", True)


def test_every_setting_that_is_honoured_arrives():
    made = parse(
        topic="t",
        kafka_acks="1",
        kafka_compression_type="zstd",
        kafka_compression_zstd_level="7",
        kafka_batch_size="1000",
        kafka_buffer_memory="5000",
        kafka_max_request_size="700",
        kafka_partitioner_ignore_keys="true",
        kafka_client_id="me",
        kafka_request_timeout_ms="1500",
        kafka_delivery_timeout_ms="2500",
        kafka_max_block_ms="500",
        kafka_retries="3",
        kafka_retry_backoff_ms="20",
        kafka_retry_backoff_max_ms="40",
    )
    assert made == WriteOptions(
        "127.0.0.1:9092",
        "t",
        idempotent=False,
        acks=1,
        compression=Compression.ZSTD,
        level=7,
        batch_bytes=700,
        chunk_bytes=1000,
        buffer_bytes=5000,
        request_bytes=700,
        record_bytes=700,
        ignore_keys=True,
        client_id="me",
        request_timeout=1.5,
        delivery_timeout=2.5,
        max_block=0.5,
        retries=3,
        backoff=0.02,
        longest_backoff=0.04,
        max_block_given=True,
        delivery_timeout_given=True,
    )


def test_the_level_of_another_codec_is_left_alone():
    assert parse(kafka_compression_type="lz4", kafka_compression_zstd_level="7").level is None


def test_round_robin_is_a_chunk_of_one_row_without_keys():
    made = parse(kafka_partitioner_class=ROUND_ROBIN)
    assert (made.chunk_bytes, made.ignore_keys) == (1, True)


def test_a_longer_request_timeout_lengthens_the_delivery():
    assert parse(kafka_request_timeout_ms="200000").delivery_timeout == 200


def test_idempotence_is_on_unless_turned_off():
    assert parse(kafka_enable_idempotence="true").idempotent
    assert not parse(kafka_enable_idempotence="false").idempotent
    assert not parse(delivery="at_least_once").idempotent
    assert parse(kafka_max_in_flight_requests_per_connection="10").idempotent


@pytest.mark.parametrize(
    "given", [{"kafka_acks": "1"}, {"kafka_acks": "0"}, {"kafka_retries": "0"}]
)
def test_what_idempotence_cannot_go_with_turns_it_off_as_in_java(given: dict[str, str]):
    assert not parse(**given).idempotent
    assert parse(**given).notices == ()
    assert not parse(**given, kafka_enable_idempotence="false").idempotent
    for asked in ({"kafka_enable_idempotence": "true"}, {"delivery": "idempotent"}):
        with pytest.raises(OptionError, match="needs kafka"):
            parse(**given, **asked)


def test_settings_without_effect_are_accepted_with_a_notice():
    made = parse(kafka_linger_ms="5", checkpointLocation="c")
    assert any("kafka.linger.ms has no effect" in notice for notice in made.notices)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"topic": ""}, "topic is empty"),
        ({"delivery": "exactly_once"}, "delivery=exactly_once is not right: give at_least_once"),
        ({"delivery": "idempotent", "kafka.acks": "1"}, "needs kafka.acks=all, not 1"),
        ({"delivery": "idempotent", "kafka.retries": "0"}, "needs kafka.retries above 0"),
        (
            {"delivery": "at_least_once", "kafka.enable.idempotence": "true"},
            "delivery=at_least_once contradicts kafka.enable.idempotence=true",
        ),
        ({"kafka.acks": "2"}, "kafka.acks=2 is not right"),
        ({"kafka.compression.type": "brotli"}, "kafka.compression.type=brotli is not right"),
        ({"kafka.delivery.timeout.ms": "10"}, "is below kafka.request.timeout.ms=30000"),
        ({"kafka.partitioner.class": "com.example.Mine"}, "is a class of Java that cannot run"),
        ({"kafka.transactional.id": "x"}, "kafka.transactional.id is refused"),
        ({"kafka.key.serializer": "x"}, "kafka.key.serializer is refused"),
        ({"topics": "x"}, "did you mean topic?"),
        ({"path": "x"}, "path is refused"),
    ],
    ids=str,
)
def test_what_cannot_be_followed_is_one_sentence(given: dict[str, str], words: str):
    with pytest.raises(OptionError) as caught:
        WriteOptions.parse(BOOTSTRAP | given)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_broker_has_to_be_named():
    with pytest.raises(OptionError, match=r"kafka.bootstrap.servers is missing"):
        WriteOptions.parse({"topic": "t"})


TO_T = WriteOptions("h:1", "t")
HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))


@pytest.mark.parametrize(
    "columns",
    [
        {"value": StringType()},
        {"value": BinaryType(), "key": StringType()},
        {"value": BinaryType(), "partition": IntegerType(), "timestamp": TimestampType()},
        {"value": BinaryType(), "key": BinaryType(), "headers": HEADERS, "other": LongType()},
    ],
    ids=", ".join,
)
def test_columns_of_records_are_taken(columns: dict[str, DataType]):
    check_schema(schema(**columns), TO_T)
    with pytest.raises(ValueError, match="give the option topic or a column topic"):
        check_schema(schema(**columns), WriteOptions("h:1"))
    check_schema(schema(**columns, topic=StringType()), WriteOptions("h:1"))


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("value", IntegerType(), "has the type int: it must be string or binary"),
        ("key", LongType(), "has the type bigint: it must be string or binary"),
        ("topic", BinaryType(), "has the type binary: it must be string"),
        ("partition", LongType(), "has the type bigint: it must be int"),
        ("timestamp", StringType(), "has the type string: it must be timestamp"),
        ("headers", MapType(StringType(), BinaryType()), "it must be array<struct<key:string"),
        ("headers", ArrayType(StringType()), "it must be array<struct<key:string"),
    ],
    ids=str,
)
def test_columns_of_another_type_are_refused_by_name(name: str, kind: DataType, words: str):
    with pytest.raises(ValueError, match=f"the column {name} has the type") as caught:
        check_schema(
            schema(**{"value": StringType(), name: kind}),
            replace(TO_T, keep_timestamps=name == "timestamp"),
        )
    assert words in str(caught.value)


def test_a_value_there_must_be():
    with pytest.raises(ValueError, match=r"the column value is missing.* there are key"):
        check_schema(schema(key=StringType()), TO_T)


def test_the_column_timestamp_matters_only_where_timestamps_are_kept():
    check_schema(schema(value=StringType(), timestamp=StringType()), TO_T)
    with pytest.raises(ValueError, match="keepTimestamps=true needs a column timestamp"):
        check_schema(schema(value=StringType()), replace(TO_T, keep_timestamps=True))


def test_overwrite_is_refused_and_complete_is_not():
    columns = schema(value=StringType())
    options = BOOTSTRAP | {"topic": "t"}
    with pytest.raises(OptionError, match=r'use mode\("append"\)'):
        OttlaWriter(columns, options, True)
    OttlaStreamWriter(columns, options, True)


def test_writers_travel_to_the_tasks():
    made = OttlaWriter(schema(value=StringType()), BOOTSTRAP | {"topic": "t"}, False)
    assert pickle.loads(pickle.dumps(made))._settings == made._settings
