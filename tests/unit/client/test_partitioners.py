from __future__ import annotations

from typing import Any

import confluent_kafka as rd
import pytest

from ottla.client import partitioners
from ottla.client.partitioners import ask, check_name, murmur2, murmur2_partition

# Printed by org.apache.kafka.common.utils.Utils.murmur2 of kafka-clients 4.2.0.
JAVA_HASHES = [
    (b"", 275646681),
    (b"a", -1563381124),
    (b"ab", 316155434),
    (b"abc", 479470107),
    (b"abcd", -1323649548),
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    ("käse".encode(), -1070276755),
    (b"user-42", 1459644460),
    (bytes(range(256)), -1948347274),
    (b"\xff\xff\xff", 1548199422),
]

# ... and Utils.toPositive of them, modulo 7 and 12.
JAVA_PARTITIONS = [
    (b"", 2, 9),
    (b"a", 5, 4),
    (b"foobar", 0, 6),
    (b"user-42", 1, 4),
    ("käse".encode(), 0, 1),
]


@pytest.mark.parametrize(("key", "expected"), JAVA_HASHES)
def test_murmur2_is_javas(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected


@pytest.mark.parametrize(("key", "of_seven", "of_twelve"), JAVA_PARTITIONS)
def test_a_key_goes_to_the_partition_where_java_puts_it(
    key: bytes, of_seven: int, of_twelve: int
) -> None:
    assert murmur2_partition(key, 7) == of_seven
    assert murmur2_partition(key, 12) == of_twelve


@pytest.mark.parametrize("size", range(40))
def test_librdkafka_hashes_as_we_do(size: int) -> None:
    key = bytes((size * 37 + position * 11) % 256 for position in range(size))
    assert rd.murmur2(key, 1_000) == murmur2_partition(key, 1_000)


@pytest.mark.parametrize("name", partitioners.NAMES)
def test_librdkafka_knows_every_name(name: str) -> None:
    assert check_name(name) == name
    rd.Producer({"partitioner": name})


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match=r"no partitioner 'murmur3'.*murmur2_random"):
        check_name("murmur3")


def test_a_callable_is_asked_with_the_key_and_the_number_of_partitions() -> None:
    asked: list[Any] = []

    def last(key: bytes | None, partitions: int) -> int:
        asked.append((key, partitions))
        return partitions - 1

    assert ask(last, b"k", 3) == 2
    assert asked == [(b"k", 3)]


@pytest.mark.parametrize("chosen", [-1, 3])
def test_a_callable_that_leaves_the_topic_is_refused(chosen: int) -> None:
    with pytest.raises(ValueError, match=f"chose partition {chosen}, but the topic has 3: 0 to 2"):
        ask(lambda key, partitions: chosen, None, 3)


@pytest.mark.parametrize("chosen", [None, "1", 1.0, True])
def test_a_callable_that_returns_no_number_is_refused(chosen: Any) -> None:
    with pytest.raises(TypeError, match="must return a partition from 0 to 2"):
        ask(lambda key, partitions: chosen, None, 3)
