"""The records of `__transaction_state`, byte for byte as Kafka writes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ottla.coordinator.transaction import journal
from ottla.coordinator.transaction.state import State, Transaction
from ottla.model.ids import TopicPartition

ONGOING = Transaction(
    "t1",
    producer_id=5,
    producer_epoch=3,
    timeout_ms=60_000,
    state=State.ONGOING,
    partitions=frozenset({TopicPartition("a", 0), TopicPartition("a", 2)}),
    started_ms=16,
    updated_ms=17,
)
KEY = bytes.fromhex("0000 0002 7431")
# producer id, epoch, time-out, state, one topic "a" with partitions 0 and 2, updated, started
OLD = bytes.fromhex(
    "0000 0000000000000005 0003 0000ea60 01 00000001 0001 61 00000002 00000000 00000002"
    "0000000000000011 0000000000000010"
)
NEW = bytes.fromhex(
    "0001 0000000000000005 0003 0000ea60 01 02 02 61 03 00000000 00000002 00"
    "0000000000000011 0000000000000010 01 02 02 0002"
)


def test_bytes_before_a_transaction_version_was_agreed_on() -> None:
    assert journal.transaction(ONGOING, 0) == (KEY, OLD)


def test_bytes_with_a_transaction_version() -> None:
    assert journal.transaction(replace(ONGOING, client_version=2), 2) == (KEY, NEW)


def test_an_empty_transaction_has_no_partitions_at_all() -> None:
    empty = Transaction("t1", 5, 3, 60_000, updated_ms=17)
    _, value = journal.transaction(empty, 0)
    assert value is not None
    assert value[17:21] == b"\xff\xff\xff\xff"


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("state", list(State))
def test_what_is_written_can_be_read(version: int, state: State) -> None:
    written = Transaction(
        "t1",
        5,
        3,
        60_000,
        state,
        frozenset() if state.is_idle else frozenset({TopicPartition("a", 0)}),
        -1 if state is State.EMPTY else 16,
        17,
        previous_producer_id=4,
        next_producer_id=6,
        client_version=2,
    )
    key, value = journal.transaction(written, version)
    assert value is not None
    assert journal.decode_key(key) == "t1"
    assert journal.decode_value("t1", value) == written


def test_a_tombstone_has_the_same_key() -> None:
    assert journal.tombstone("t1") == (KEY, None)
