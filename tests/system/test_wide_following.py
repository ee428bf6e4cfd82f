"""A follower of many partitions: a round costs what has happened, on both sides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from ottla.handlers.fetch import reading
from ottla.model.ids import TopicPartition
from ottla.replication import follower
from ottla.replication.partition import Partition
from ottla.testing import Cluster, NewTopic

Eventually = Callable[..., object]

MANY = 60
QUIET = {"log_level": 0, "reconnect.backoff.max.ms": 100}


class Looks:
    """How often each partition was looked at, by leaders and by followers."""

    def __init__(self) -> None:
        self.of_leaders: Counter[TopicPartition] = Counter()
        self.of_followers: Counter[TopicPartition] = Counter()

    def clear(self) -> None:
        self.of_leaders.clear()
        self.of_followers.clear()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    found = Looks()
    read, wanted = reading._read_partition, follower._wanted

    def counted_read(index: int, partition: Partition, *more: object) -> object:
        found.of_leaders[partition.id] += 1
        return read(index, partition, *more)

    def counted_wanted(partition: Partition) -> follower.Wanted:
        found.of_followers[partition.id] += 1
        return wanted(partition)

    monkeypatch.setattr(reading, "_read_partition", counted_read)
    monkeypatch.setattr(follower, "_wanted", counted_wanted)
    return found


def test_only_what_is_written_to_is_looked_at(looks: Looks, eventually: Eventually) -> None:
    settings = {"replica.fetch.wait.max.ms": 50}
    with Cluster(3, settings, topics=[NewTopic("t", MANY, 3)]) as cluster:
        cluster.wait_in_sync("t")

        def quiet() -> bool:
            """Many rounds pass, and nobody looks at anything."""
            looks.clear()
            busy = TopicPartition("t", 7)
            for _ in range(5):
                produce(cluster.bootstrap, busy.partition)
            return set(looks.of_leaders) <= {busy} and set(looks.of_followers) <= {busy}

        eventually(quiet)
        assert looks.of_leaders
        assert looks.of_followers


def produce(bootstrap: str, partition: int) -> None:
    outcomes: list[str | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", **QUIET})
    producer.produce(
        "t",
        b"x",
        partition=partition,
        on_delivery=lambda error, _: outcomes.append(None if error is None else str(error)),
    )
    producer.flush(60)
    assert outcomes == [None]
