"""Options of a table, from its properties into its schema and out again."""

from __future__ import annotations

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from ottla.pipelines.catalog import metadata, read_options, table_options
from ottla.pipelines.datasource import OttlaDataSource
from ottla.pipelines.errors import OptionError
from ottla.pipelines.option_table import Use

BROKERS = {"kafka.bootstrap.servers": "h:1"}


def properties(**options: str) -> dict[str, str]:
    """What Spark gives when a table is created."""
    given = BROKERS | {name.replace("_", "."): value for name, value in options.items()}
    return {
        "provider": "ottla",
        "owner": "me",
        "a": "property of somebody's own",
        **given,
        **{f"option.{name}": value for name, value in given.items()},
    }


def created(**options: str) -> StructType:
    schema = OttlaDataSource(properties(**options)).schema()
    # As the catalog keeps it.
    return StructType.fromJson(schema.jsonValue())


def test_only_a_table_has_a_provider():
    assert table_options(BROKERS | {"subscribe": "orders"}) is None
    assert table_options(properties(subscribe="orders")) == BROKERS | {"subscribe": "orders"}
    assert table_options({"provider": "ottla"}) == {}


def test_a_location_is_refused():
    with pytest.raises(OptionError, match="A topic has no LOCATION"):
        table_options(properties(subscribe="orders") | {"location": "file:/x"})


def test_a_table_keeps_its_options_for_whoever_reads_it():
    schema = created(
        subscribe="orders",
        topic="copy",
        maxOffsetsPerTrigger="5",
        kafka_acks="1",
        endingOffsets="latest",
    )
    reads = BROKERS | {"subscribe": "orders", "endingoffsets": "latest"}
    assert read_options({}, schema, Use.BATCH) == reads
    # A stream is told of what it refuses, too.
    assert read_options({}, schema, Use.STREAM) == reads | {"maxoffsetspertrigger": "5"}


def test_options_of_the_query_win():
    schema = created(subscribe="orders", startingOffsets="earliest")
    given = {"Assign": '{"clicks":[0]}', "startingOffsets": "latest"}
    assert read_options(given, schema, Use.STREAM) == BROKERS | {
        "assign": '{"clicks":[0]}',
        "startingoffsets": "latest",
    }


def test_secrets_and_what_has_no_effect_on_a_read_are_not_kept():
    kept = metadata(BROKERS | {"kafka.sasl.jaas.config": "secret", "kafka.acks": "1", "topic": "t"})
    assert kept == {"ottla.options": '{"kafka.bootstrap.servers": "h:1"}'}


def test_what_is_wrong_is_said_when_the_table_is_made():
    with pytest.raises(OptionError, match="Nothing says what to read"):
        created(topic="orders")
    with pytest.raises(OptionError, match="did you mean subscribe"):
        created(subscrib="orders")


def test_options_ride_on_the_value_or_on_the_first_column():
    for columns, carrier in (("key,value", "value"), ("offset,key", "offset")):
        schema = created(subscribe="orders", columns=columns)
        assert [field.name for field in schema if field.metadata] == [carrier]
        source = OttlaDataSource({})
        assert source.reader(schema) is not None
        assert source.streamReader(schema) is not None
    plain = OttlaDataSource(BROKERS | {"subscribe": "orders"}).schema()
    assert not any(field.metadata for field in plain), "only tables have them"


def test_a_write_takes_nothing_of_a_table():
    rows = created(subscribe="orders")
    for given in ({}, {"checkpointLocation": "c"}):
        with pytest.raises(OptionError, match="neither a table's options nor its name"):
            OttlaDataSource(given).writer(rows, overwrite=False)
    with pytest.raises(OptionError, match=r"kafka.bootstrap.servers is missing"):
        OttlaDataSource({"topic": "t"}).writer(rows, overwrite=False)


def test_a_table_with_columns_of_its_own_has_no_options():
    bare = StructType([StructField("value", BinaryType())])
    with pytest.raises(OptionError, match="since it was created with columns"):
        OttlaDataSource({}).reader(bare)
