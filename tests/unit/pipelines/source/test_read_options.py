"""What a read is told: typed, checked, and contradictions named."""

from __future__ import annotations

import pickle
import re

import pytest

from ottla.model.ids import TopicPartition
from ottla.pipelines.errors import OptionError
from ottla.pipelines.source.column_choice import ALL, USUAL
from ottla.pipelines.source.loss import Action, LossPolicy
from ottla.pipelines.source.options import ReadOptions
from ottla.pipelines.source.positions import AtOffsets, AtTimestamp, AtTimestamps, Edge
from ottla.pipelines.source.strategy import Assign, Pattern, Subscribe

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
BROKERS = {"kafka.bootstrap.servers": "h:1"}


def read(*, streaming: bool = True, **given: str) -> ReadOptions:
    return ReadOptions.of(BROKERS | {"subscribe": "orders"} | given, streaming=streaming)


def refused(given: dict[str, str], *, streaming: bool = True) -> OptionError:
    with pytest.raises(OptionError) as caught:
        ReadOptions.of(BROKERS | given, streaming=streaming)
    sentence = str(caught.value)
    assert sentence.endswith((".", "?", "*"))
    assert re.search(r"[.?] [A-Z]", sentence) is None, "one sentence"
    return caught.value


def orders(**given: str) -> dict[str, str]:
    return {"subscribe": "orders"} | given


def test_the_defaults_of_a_stream_are_sparks() -> None:
    found = read()
    assert found.strategy == Subscribe(("orders",))
    assert found.starting is Edge.LATEST
    assert found.loss == LossPolicy()
    assert found.max_offsets_per_trigger is None
    assert found.max_trigger_delay == 900
    assert found.poll_timeout == 120
    assert (found.fetch_offset_retries, found.fetch_offset_retry_interval) == (3, 0.01)
    assert found.metadata_cache is None
    assert found.columns == USUAL
    assert not found.pushdown
    assert found.notices == ()


def test_the_defaults_of_a_batch_are_sparks() -> None:
    found = read(streaming=False)
    assert found.starting is Edge.EARLIEST
    assert found.ending is Edge.LATEST


def test_only_committed_records_are_read_unless_said_otherwise() -> None:
    assert read().read_committed
    assert not read(**{"kafka.isolation.level": "read_uncommitted"}).read_committed


def test_every_option_arrives() -> None:
    found = read(
        maxOffsetsPerTrigger="100",
        minOffsetsPerTrigger="10",
        maxTriggerDelay="30s",
        minPartitions="4",
        maxRecordsPerPartition="1000",
        failOnDataLoss="aged_out=skip",
        includeHeaders="true",
        startingOffsetsByTimestampStrategy="Latest",
        **{
            "kafkaConsumer.pollTimeoutMs": "500",
            "fetchOffset.numRetries": "0",
            "fetchOffset.retryIntervalMs": "20",
            "partition.metadata.cache.ttl.ms": "3000",
        },
    )
    assert (found.min_offsets_per_trigger, found.max_offsets_per_trigger) == (10, 100)
    assert found.max_trigger_delay == 30
    assert (found.min_partitions, found.max_records_per_partition) == (4, 1000)
    assert found.loss.aged_out is Action.SKIP
    assert found.columns == ALL
    assert found.latest_if_too_late
    assert (found.poll_timeout, found.fetch_offset_retries) == (0.5, 0)
    assert (found.fetch_offset_retry_interval, found.metadata_cache) == (0.02, 3.0)
    assert read(streaming=False, pushdown="true").pushdown


def test_columns_are_read_in_the_order_in_which_they_are_named() -> None:
    assert read(columns="Value, timestamptype").columns == ("value", "timestampType")
    assert read(columns="headers", includeHeaders="true").columns == ("headers",)
    # The group shows how far a query is, whatever it looks at.
    assert read(columns="key").group_id == read().group_id


def test_options_travel_pickled() -> None:
    found = read(startingOffsets='{"orders":{"0":1}}', minPartitions="3")
    assert pickle.loads(pickle.dumps(found)) == found


def test_the_kinds_of_strategy() -> None:
    assert read(subscribe=" b ,a,, b").strategy == Subscribe(("a", "b"))
    pattern = ReadOptions.of(BROKERS | {"subscribePattern": " or.*"}, streaming=True).strategy
    assert pattern == Pattern("or.*")
    assign = ReadOptions.of(BROKERS | {"assign": '{"orders":[1,0]}'}, streaming=False).strategy
    assert assign == Assign((A, B))


def test_a_pattern_matches_whole_names_and_never_internal_topics() -> None:
    pattern = Pattern.parse(".*offsets|orders")
    assert pattern.covers("orders")
    assert not pattern.covers("orders-2")
    assert pattern.covers("my_offsets")
    assert not pattern.covers("__consumer_offsets")


@pytest.mark.parametrize(
    ("given", "option", "words"),
    [
        ({}, "subscribe", ["subscribe", "subscribePattern", "assign"]),
        (orders(assign='{"orders":[0]}'), "assign", ["subscribe and assign contradict"]),
        ({"subscribe": " , "}, "subscribe", ["names no topic"]),
        (orders(columns="key,"), "columns", ["names ''", "key, value, topic, partition, offset"]),
        (orders(columns="key,KEY"), "columns", ["names key twice"]),
        (
            orders(columns="key", includeHeaders="true"),
            "columns",
            ["includeHeaders=true contradicts columns=key", "name headers there"],
        ),
        ({"subscribe": "a b"}, "subscribe", ["'a b' contains", "correct the name"]),
        ({"subscribePattern": " "}, "subscribePattern", ["is empty"]),
        ({"subscribePattern": "("}, "subscribePattern", ["no regular expression"]),
        ({"assign": "orders"}, "assign", ["no JSON from character 1 on"]),
        ({"assign": "[1]"}, "assign", ["no JSON object"]),
        ({"assign": "{}"}, "assign", ["names no partition"]),
        ({"assign": '{"orders":1}'}, "assign", ["'orders' does not hold a list"]),
        ({"assign": '{"orders":[]}'}, "assign", ["'orders' holds no partition"]),
        ({"assign": '{"orders":[0,-1]}'}, "assign", ["at 'orders'[1] it has -1"]),
        ({"assign": '{"a/b":[0]}'}, "assign", ["'a/b' contains"]),
        (orders(**{"kafka.bootstrap.servers": " "}), "kafka.bootstrap.servers", ["is missing"]),
        (orders(startingoffset="x"), "startingoffset", ["did you mean startingOffsets?"]),
        (orders(minPartitions="0"), "minPartitions", ["minPartitions=0", "above 0"]),
        (orders(minPartitions="-4"), "minPartitions", ["minPartitions=-4", "above 0"]),
        (orders(maxRecordsPerPartition="x"), "maxRecordsPerPartition", ["above 0"]),
        (orders(maxOffsetsPerTrigger="1.5"), "maxOffsetsPerTrigger", ["above 0"]),
        (orders(maxTriggerDelay="soon"), "maxTriggerDelay", ["500ms, 30s"]),
        (orders(includeHeaders="1"), "includeHeaders", ["true or false"]),
        (orders(failOnDataLoss="maybe"), "failOnDataLoss", ["aged_out=skip"]),
        (
            orders(**{"partition.metadata.cache.ttl.ms": "0"}),
            "partition.metadata.cache.ttl.ms",
            ["above 0, or -1"],
        ),
        (
            orders(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="9"),
            "minOffsetsPerTrigger",
            ["minOffsetsPerTrigger=10", "maxOffsetsPerTrigger=9"],
        ),
        (
            orders(startingOffsetsByTimestampStrategy="first"),
            "startingOffsetsByTimestampStrategy",
            ["error or latest"],
        ),
        (orders(endingOffsets="latest"), "endingOffsets", ["a stream has no end"]),
        (orders(endingTimestamp="1"), "endingTimestamp", ["a stream has no end"]),
        (orders(startingTimestamp="today"), "startingTimestamp", ["milliseconds since 1970"]),
        (orders(startingTimestamp="-1"), "startingTimestamp", ["milliseconds since 1970"]),
        (orders(startingOffsets="first"), "startingOffsets", ["earliest, latest, or offsets"]),
        (orders(**{"kafka.auto.offset.reset": "latest"}), "kafka.auto.offset.reset", ["refused"]),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    given: dict[str, str], option: str, words: list[str]
) -> None:
    error = refused(given)
    assert error.option == option
    for word in [option, *words]:
        assert word in str(error)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"orders":{"0":23,]}', "no JSON from character 19 on"),
        ('{"orders":{"0":23}', "no JSON from character 19 on"),
        ('{"orders":23}', "'orders' does not hold an object"),
        ('{"orders":{"x":23}}', "'x' under 'orders' is not the number of a partition"),
        ('{"orders":{"99999999999":1}}', "is not the number of a partition"),
        ('{"orders":{"0":"23"}}', "at 'orders', partition 0 it has \"23\""),
        ('{"orders":{"0":2.5}}', "at 'orders', partition 0 it has 2.5"),
        ('{"orders":{"0":true}}', "at 'orders', partition 0 it has true"),
        ('{"orders":{"0":-3}}', "at 'orders', partition 0 it has -3"),
        ('{"orders":{"0":1,"0":2}}', "'0' stands there twice"),
        ('{"orders":{"1":1,"01":2}}', "partition 1 of 'orders' stands there twice"),
        ('{"orders":{}}', "it names no partition"),
        ('{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_malformed_offsets_are_refused_with_the_place(text: str, where: str) -> None:
    error = refused(orders(startingOffsets=text))
    assert where in str(error)
    assert 'give something like {"orders":{"0":23,"1":-2}}' in str(error)


def test_timestamps_per_partition_are_numbers_too() -> None:
    error = refused(orders(startingOffsetsByTimestamp='{"orders":{"0":"noon"}}'))
    assert error.option == "startingOffsetsByTimestamp"
    assert 'it has "noon", which is not milliseconds since 1970' in str(error)
    assert "it has -1" in str(refused(orders(startingOffsetsByTimestamp='{"orders":{"0":-1}}')))


def test_positions_are_preferred_as_spark_prefers_them() -> None:
    given = {
        "startingOffsets": '{"orders":{"1":-2,"0":5}}',
        "startingOffsetsByTimestamp": '{"orders":{"0":1000,"1":2000}}',
        "startingTimestamp": "3000",
    }
    assert read(**given).starting == AtTimestamp("startingTimestamp", 3000)
    del given["startingTimestamp"]
    by_partition = AtTimestamps("startingOffsetsByTimestamp", {A: 1000, B: 2000})
    assert read(**given).starting == by_partition
    del given["startingOffsetsByTimestamp"]
    assert read(**given).starting == AtOffsets("startingOffsets", {A: 5, B: -2})
    assert read(startingOffsets=" Earliest ").starting is Edge.EARLIEST


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"startingOffsets": "latest"}, ["startingOffsets=latest leaves nothing"]),
        ({"endingOffsets": "earliest"}, ["endingOffsets=earliest leaves nothing"]),
        ({"startingOffsets": '{"orders":{"0":-1}}'}, ["startingOffsets has -1", "or -2."]),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, ["endingOffsets has -2", "or -1."]),
        (
            {"startingOffsets": '{"orders":{"0":9}}', "endingOffsets": '{"orders":{"0":8}}'},
            ["startingOffsets has 9", "endingOffsets has 8", "partition 0 of topic orders"],
        ),
        (
            {"startingOffsets": '{"orders":{"0":9,"1":1}}', "endingOffsets": '{"orders":{"0":9}}'},
            ["startingOffsets names partition 1", "endingOffsets does not"],
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"orders":{"0":9}}',
                "endingOffsetsByTimestamp": '{"orders":{"0":8}}',
            },
            ["startingOffsetsByTimestamp has 9", "endingOffsetsByTimestamp has 8"],
        ),
        (
            {"startingTimestamp": "9", "endingTimestamp": "8"},
            ["startingTimestamp=9", "endingTimestamp=8"],
        ),
        ({"startingOffsets": '{"clicks":{"0":9}}'}, ["topic clicks", "subscribe says orders"]),
        (
            {"subscribe": "orders,clicks", "endingOffsets": '{"clicks":{"0":9}}'},
            ["subscribe says clicks,orders", "nothing for topic orders"],
        ),
    ],
)
def test_a_batch_that_cannot_be_is_refused(given: dict[str, str], words: list[str]) -> None:
    sentence = str(refused({"subscribe": "orders"} | given, streaming=False))
    for word in words:
        assert word in sentence


def test_an_end_that_is_the_latest_is_after_every_beginning() -> None:
    found = read(
        streaming=False,
        startingOffsets='{"orders":{"0":9,"1":-2}}',
        endingOffsets='{"orders":{"0":-1,"1":3}}',
    )
    assert found.ending == AtOffsets("endingOffsets", {A: -1, B: 3})


def test_a_stream_may_begin_at_the_latest_offset_of_one_partition() -> None:
    assert read(startingOffsets='{"orders":{"0":-1}}').starting == AtOffsets(
        "startingOffsets", {A: -1}
    )


def test_the_group_stays_the_same_when_only_the_pace_changes() -> None:
    group = read().group_id
    assert group.startswith("spark-kafka-source-")
    assert read(maxOffsetsPerTrigger="5", minPartitions="9").group_id == group
    assert read(startingOffsets="earliest").group_id != group
    assert read(subscribe="clicks").group_id != group
    assert read(groupIdPrefix="mine").group_id.startswith("mine-")


def test_the_group_does_not_depend_on_how_the_json_is_written() -> None:
    one = read(startingOffsets='{"orders":{"0":1,"1":2}}')
    other = read(startingOffsets='{"orders": {"1": 2, "0": 1}}')
    assert one.group_id == other.group_id


def test_a_group_that_is_given_is_taken() -> None:
    found = read(**{"kafka.group.id": "mine", "groupIdPrefix": "x"})
    assert found.group_id == "mine"
    assert found.notices == ("groupIdPrefix has no effect, kafka.group.id is given.",)


def test_an_empty_value_is_not_taken_for_the_default() -> None:
    assert str(refused(orders(startingOffsets=" "))).startswith("startingOffsets='' is not right")
    assert refused(orders(failOnDataLoss="")).option == "failOnDataLoss"
