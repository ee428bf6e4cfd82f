"""Rows into a topic: keys, values, headers and tombstones; records that are too large, by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.pipelines.connectors.contract import Outage, RowsRefused
from ottla.pipelines.connectors.option import Mistake
from ottla.pipelines.connectors.sinks.topic import SINK
from ottla.testing.connectors import batch, made, numbers, place, sample_rows


def make_topic(bootstrap: str, name: str, partitions: int) -> str:
    config = {"max.message.bytes": "20000"}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made_topic in admin.create_topics([NewTopic(name, partitions, config=config)]).values():
        made_topic.result()
    return name


@pytest.fixture
def topic(bootstrap: str, unique: Any) -> str:
    return make_topic(bootstrap, unique(), 2)


@pytest.fixture
def narrow_topic(bootstrap: str, unique: Any) -> str:
    """Of one partition: of two records that are too large, the first one sent is refused first."""
    return make_topic(bootstrap, unique(), 1)


def records(bootstrap: str, topic: str) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "look"})
    try:
        described = consumer.list_topics(topic).topics[topic].partitions
        partitions = [TopicPartition(topic, number, 0) for number in described]
        ends = [consumer.get_watermark_offsets(each)[1] for each in partitions]
        consumer.assign(partitions)
        found: list[Any] = []
        while len(found) < sum(ends):
            found += consumer.consume(sum(ends), 1.0)
        return found
    finally:
        consumer.close()


def test_columns_become_key_value_and_headers_and_a_condition_a_tombstone(
    spark, bootstrap, topic, tmp_path
):
    schema = "id long, name string, marks map<string, string>"
    rows = sample_rows(spark, [(1, "a", {"k": "v"}), (2, None, None), (3, "c", {})], schema)
    sink = made(SINK, name=topic, key=["id"], headers="marks", delete_when="name is null")
    sink.prepare(spark, rows.schema, place(tmp_path, bootstrap))
    sink.probe(rows, batch(0))
    sink.write(rows, batch(0))
    found = {each.key(): each for each in records(bootstrap, topic)}
    assert sorted(found) == [b"1", b"2", b"3"]
    assert json.loads(found[b"1"].value()) == {"id": 1, "name": "a"}
    assert found[b"1"].headers() == [("k", b"v")]
    assert found[b"2"].value() is None
    assert found[b"3"].headers() in (None, [])


def test_records_that_are_too_large_are_named_with_all_that_are_no_smaller(
    spark, bootstrap, narrow_topic, tmp_path
):
    values = numbers(40)
    values[7] = (7, "x" * 30_000)
    values[23] = (23, "x" * 90_000)
    rows = sample_rows(spark, values, tasks=1)
    sink = made(SINK, name=narrow_topic, key=["id"])
    sink.prepare(spark, rows.schema, place(tmp_path, bootstrap))
    with pytest.raises(RowsRefused) as refused:
        sink.write(rows, batch(0))
    assert {row.kind for row in refused.value.rows} == {"MESSAGE_TOO_LARGE"}
    assert {json.loads(row.position)["offset"] for row in refused.value.rows} == {7, 23}
    sink.write(rows.where("length(name) < 100"), batch(0, replayed=True))
    found = {int(each.key()) for each in records(bootstrap, narrow_topic)}
    assert found == set(range(40)) - {7, 23}


def test_the_larger_of_two_may_be_refused_first_and_the_other_one_after_it(
    spark, bootstrap, topic, tmp_path
):
    values = numbers(40)
    for number, size in ((7, 30_000), (8, 40_000), (23, 90_000)):
        values[number] = (number, "x" * size)
    rows = sample_rows(spark, values, tasks=1)
    sink = made(SINK, name=topic, key=["id"])
    sink.prepare(spark, rows.schema, place(tmp_path, bootstrap))
    left, named = rows, set()
    while len(named) < 3:
        with pytest.raises(RowsRefused) as refused:
            sink.write(left, batch(0, replayed=bool(named)))
        told = {json.loads(row.position)["offset"] for row in refused.value.rows}
        assert 23 in told or 23 in named, "all that are no smaller are named"
        assert told
        assert not told & named, "each of them once"
        named |= told
        left = rows.where(f"id not in ({', '.join(map(str, sorted(named)))})")
    assert named == {7, 8, 23}
    sink.write(left, batch(0, replayed=True))
    assert {int(each.key()) for each in records(bootstrap, topic)} == set(range(40)) - named


def test_a_topic_that_is_not_there_is_told_before_the_first_batch(
    spark, bootstrap_no_auto_create, unique, tmp_path
):
    schema = sample_rows(spark, []).schema
    missing = made(SINK, name=unique())
    with pytest.raises(Outage, match=r"is not there: create it with `ottla topic create"):
        missing.prepare(spark, schema, place(tmp_path, bootstrap_no_auto_create))
    with pytest.raises(ValueError, match="there is no column number; there are id, name"):
        made(SINK, name="any", key=["number"]).prepare(spark, schema, place(tmp_path))
    with pytest.raises(Mistake, match="give key, too"):
        made(SINK, name="any", delete_when="true")
    with pytest.raises(Mistake, match=r"kafka\.acks"):
        made(SINK, name="any", kafka={"acks": "many"})


def test_a_record_that_is_too_large_by_its_headers_does_not_take_others_with_it(
    spark, bootstrap, topic, tmp_path
):
    values = [(n, {"h": "x" * (30_000 if n == 7 else 10)}) for n in range(40)]
    rows = sample_rows(spark, values, "id long, marks map<string, string>", tasks=1)
    sink = made(SINK, name=topic, headers="marks")
    sink.prepare(spark, rows.schema, place(tmp_path, bootstrap))
    with pytest.raises(RowsRefused) as refused:
        sink.write(rows, batch(0))
    assert [json.loads(row.position)["offset"] for row in refused.value.rows] == [7]
