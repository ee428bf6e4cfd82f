"""A consumer of thousands of partitions is woken like any other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.handlers.fetch import many
from ottla.testing import Broker

MANY = 1_500
WAIT_MS = 100_000


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    # Whoever only looks again after a while comes too late.
    monkeypatch.setattr(many, "LOOK_AGAIN", 3600)
    with Broker(topics={"wide": MANY}) as broker:
        yield broker


def fields(**more: Any) -> dict[str, Any]:
    return {"max_wait": WAIT_MS, "min_bytes": 1, "max_bytes": 1 << 20, "topics": [], **more}


def everything() -> list[dict[str, Any]]:
    wanted = {"fetch_offset": 0, "current_leader_epoch": -1, "partition_max_bytes": 1 << 20}
    parts = [{"partition": number, **wanted} for number in range(MANY)]
    return [{"topic": "wide", "partitions": parts}]


@pytest.mark.parametrize("session", [False, True])
def test_what_is_appended_to_one_of_many_partitions_is_read_at_once(
    broker: Broker, wire: Callable[..., Any], session: bool
) -> None:
    reader, other = wire(broker.bootstrap), wire(broker.bootstrap)
    if session:
        opening = fields(topics=everything(), session_epoch=0, max_wait=0)
        opened = reader.ask("fetch", 12, **opening)
        assert opened.session_id != 0
        reader.send("fetch", 12, **fields(session_id=opened.session_id, session_epoch=1))
    else:
        reader.send("fetch", 12, **fields(topics=everything(), session_epoch=-1))
    for _ in range(100):  # so many turns of the loop: the fetch waits by now
        other.ask("api_versions", 3)
    broker.produce("wide", "here", partition=MANY - 1)
    (topic,) = reader.receive().responses
    given = [each.partition_index for each in topic.partitions if each.records]
    assert given == [MANY - 1]


def test_a_reader_behind_the_last_segment_is_not_kept_waiting(
    broker: Broker, wire: Callable[..., Any]
) -> None:
    broker.produce("wide", "old", partition=7)
    broker.configure({"segment.ms": 1}, "wide")
    broker.apply_retention()
    broker.produce("wide", "new", partition=7)
    reader = wire(broker.bootstrap)
    wanted = fields(topics=everything(), session_epoch=-1, min_bytes=1 << 19)
    (topic,) = reader.ask("fetch", 12, **wanted).responses
    assert [each.partition_index for each in topic.partitions if each.records] == [7]
