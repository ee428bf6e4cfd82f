"""What consumers of the classic protocol embed: read and written as kio does."""

from __future__ import annotations

import io
import struct
from typing import Any

import pytest
from kio.index import load_entity_schema
from kio.serial import entity_writer
from kio.static.constants import EntityType

from ottla.coordinator.group.consumer_protocol import (
    read_assignment,
    read_assignment_user_data,
    read_subscription,
    read_topics,
    write_assignment,
)


def encoded(name: str, version: int, make: Any) -> bytes:
    schema: Any = load_entity_schema(name, version, EntityType.data)
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, make(schema))
    return struct.pack(">h", version) + buffer.getvalue()


@pytest.mark.parametrize("version", range(4))
def test_a_subscription_is_read(version: int) -> None:
    def make(schema: Any) -> Any:
        fields: dict[str, Any] = {"topics": ("a", "b"), "user_data": b"mine"}
        if version >= 1:
            owned = schema.__dataclass_fields__["owned_partitions"]
            assert owned
            module = __import__(schema.__module__, fromlist=["TopicPartition"])
            fields["owned_partitions"] = (module.TopicPartition(topic="a", partitions=(1, 2)),)
        if version >= 2:
            fields["generation_id"] = 5
        if version >= 3:
            fields["rack_id"] = "here"
        return schema(**fields)

    data = encoded("consumer_protocol_subscription", version, make)
    assert read_topics(data) == ["a", "b"]
    each = read_subscription(data)
    assert (each.version, each.topics, each.user_data) == (version, ("a", "b"), b"mine")
    assert each.owned == ((("a", (1, 2)),) if version >= 1 else ())
    assert each.generation == (5 if version >= 2 else -1)
    assert each.rack_id == ("here" if version >= 3 else None)


def test_of_a_version_not_invented_yet_the_topics_are_read() -> None:
    data = struct.pack(">hihcih", 9, 1, 1, b"a", -1, 77)
    assert read_topics(data) == ["a"]


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff", b"\0\0", b"\0\0\x7f\xff\xff\xff"])
def test_nonsense_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_topics(data)


@pytest.mark.parametrize("version", range(4))
def test_an_assignment_is_written_as_consumers_read_it(version: int) -> None:
    def make(schema: Any) -> Any:
        module = __import__(schema.__module__, fromlist=["TopicPartition"])
        return schema(
            assigned_partitions=(
                module.TopicPartition(topic="a", partitions=(0, 2)),
                module.TopicPartition(topic="b", partitions=()),
            ),
            user_data=None,
        )

    expected = encoded("consumer_protocol_assignment", version, make)
    assert write_assignment({"a": [0, 2], "b": []}, version) == expected
    assert read_assignment(expected) == {"a": [0, 2], "b": []}
    assert read_assignment_user_data(expected) is None
