"""`CREATE TABLE … USING ottla` on a real Spark: select, insert, stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"auto.create.topics.enable": "false"}) as broker:
        yield broker


@pytest.fixture
def table(
    spark: Any, broker: Broker, unique: Callable[..., str]
) -> Iterator[Callable[..., tuple[str, str]]]:
    """`table(columns="key,value")`: the names of a new table and of its topic of two partitions."""
    made: list[str] = []

    def make(**options: str) -> tuple[str, str]:
        topic = unique()
        broker.create_topic(topic, 2)
        made.append(f"t{len(made)}_{topic.replace('-', '_')}")
        given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
        clauses = ", ".join(f"'{name}' = '{value}'" for name, value in (given | options).items())
        spark.sql(f"CREATE TABLE {made[-1]} USING ottla OPTIONS ({clauses})")
        return made[-1], topic

    yield make
    for name in made:
        spark.sql(f"DROP TABLE {name}")


def values(broker: Broker, topic: str) -> list[bytes]:
    return sorted(record.value or b"" for record in broker.consume(topic))


def test_a_table_is_selected_from(
    spark: Any, broker: Broker, table: Callable[..., tuple[str, str]]
) -> None:
    name, topic = table()
    broker.produce(topic, b"a", b"b", b"c", partition=0)
    broker.produce(topic, b"d", partition=1)
    rows = spark.sql(f"SELECT * FROM {name}").collect()
    assert sorted((row.partition, row.offset, bytes(row.value)) for row in rows) == [
        (0, 0, b"a"),
        (0, 1, b"b"),
        (0, 2, b"c"),
        (1, 0, b"d"),
    ]
    assert spark.table(name).count() == 4
    [found] = spark.sql(f"SELECT count(*) AS n FROM {name} WHERE partition = 1").collect()
    assert found.n == 1
    starting = f'{{"{topic}":{{"0":1,"1":-2}}}}'
    [found] = spark.sql(
        f"SELECT count(*) AS n FROM {name} WITH (startingOffsets = '{starting}')"
    ).collect()
    assert found.n == 3, "options of the query win"


def test_an_insert_brings_its_options_or_goes_to_a_view(
    spark: Any, broker: Broker, table: Callable[..., tuple[str, str]]
) -> None:
    one, first = table(columns="key,value")
    other, second = table(columns="key,value")
    server = f"'kafka.bootstrap.servers' = '{broker.bootstrap}'"
    spark.sql(
        f"INSERT INTO {one} WITH ({server}, topic = '{first}') (key, value) "
        "VALUES (CAST('k' AS binary), CAST('a' AS binary))"
    )
    assert [(record.key, record.value) for record in broker.consume(first)] == [(b"k", b"a")]
    # Rows of one table, with its options in their schema, are never written by those.
    for into in (one, other):
        with pytest.raises(Exception, match="neither a table's options nor its name"):
            spark.sql(f"INSERT INTO {into} SELECT key, value FROM {one}")
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW inserted USING ottla OPTIONS "
        f"({server}, subscribe = '{second}', topic = '{second}', columns = 'key,value')"
    )
    spark.sql(f"INSERT INTO inserted SELECT key, value FROM {one}")
    spark.sql(f"INSERT INTO inserted (value) SELECT value FROM {one}")
    assert values(broker, second) == [b"a", b"a"]
    assert values(broker, first) == [b"a"]
    assert spark.table(other).count() == 2
    with pytest.raises(Exception, match="records of a topic stay"):
        spark.sql(f"INSERT OVERWRITE inserted SELECT key, value FROM {one}")


def test_a_table_is_read_as_a_stream(
    spark: Any, broker: Broker, table: Callable[..., tuple[str, str]], ended: Any, tmp_path: Path
) -> None:
    name, topic = table(columns="offset,value")
    seen: list[tuple[int, bytes]] = []

    def read_on() -> None:
        writer = (
            spark.readStream.option("startingOffsets", "earliest")
            .table(name)
            .writeStream.foreachBatch(lambda frame, _: seen.extend(map(tuple, frame.collect())))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        ended(writer.start)

    broker.produce(topic, b"a", b"b", partition=0)
    read_on()
    broker.produce(topic, b"c", partition=0)
    read_on()
    assert sorted(seen) == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_what_is_wrong_with_a_table_is_said_when_it_is_made(
    spark: Any, broker: Broker, unique: Callable[..., str]
) -> None:
    options = f"'kafka.bootstrap.servers' = '{broker.bootstrap}'"
    name = f"bad_{unique().replace('-', '_')}"
    for clauses, words in [
        (f"OPTIONS ({options}, subscrib = 'orders')", "did you mean subscribe"),
        (f"OPTIONS ({options})", "Nothing says what to read"),
        (f"OPTIONS ({options}, subscribe = 'orders') LOCATION '/x'", "A topic has no LOCATION"),
        (
            f"OPTIONS ({options}, topic = 'orders') AS SELECT 'v' AS value",
            "neither a table's options nor its name",
        ),
    ]:
        with pytest.raises(Exception, match=words):
            spark.sql(f"CREATE TABLE {name} USING ottla {clauses}")
        assert not spark.catalog.tableExists(name)
