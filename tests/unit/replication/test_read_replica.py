from __future__ import annotations

from ottla.model.broker import Broker, Endpoint
from ottla.model.topic import PartitionState
from ottla.replication.isr import InSyncReplicas, Rules
from ottla.replication.read_replica import nearest_replica

RACKS = {1: "a", 2: "b", 3: "b", 4: "c"}


def brokers(listener: str = "PLAINTEXT") -> dict[int, Broker]:
    endpoint = Endpoint(listener, "127.0.0.1", 9092)
    return {number: Broker(number, 1, {listener: endpoint}, rack) for number, rack in RACKS.items()}


def partition(isr: tuple[int, ...] = (1, 2, 3, 4)) -> InSyncReplicas:
    """Led by 1, the others have 10, 20 and 30 records."""
    in_sync = InSyncReplicas(1, PartitionState(1, 0, 0, (1, 2, 3, 4), isr), 0, Rules(1), 0.0)
    for number, end in ((2, 10), (3, 20), (4, 30)):
        in_sync.fetched(number, 1, end, 30, 1.0)
        in_sync.followers[number].start = 5
    return in_sync


def test_a_consumer_is_sent_to_its_rack_and_to_who_has_most() -> None:
    assert nearest_replica(partition(), 7, "c", brokers(), "PLAINTEXT") == 4
    assert nearest_replica(partition(), 7, "b", brokers(), "PLAINTEXT") == 3


def test_the_leader_serves_its_own_rack_and_racks_without_a_replica() -> None:
    assert nearest_replica(partition(), 7, "a", brokers(), "PLAINTEXT") is None
    assert nearest_replica(partition(), 7, "d", brokers(), "PLAINTEXT") is None


def test_only_those_count_that_are_in_sync_and_have_the_offset() -> None:
    assert nearest_replica(partition((1, 2, 4)), 7, "b", brokers(), "PLAINTEXT") == 2
    assert nearest_replica(partition(), 15, "b", brokers(), "PLAINTEXT") == 3
    assert nearest_replica(partition(), 21, "b", brokers(), "PLAINTEXT") is None
    assert nearest_replica(partition(), 4, "b", brokers(), "PLAINTEXT") is None
    unheard = InSyncReplicas(1, PartitionState(1, 0, 0, (1, 2), (1, 2)), 0, Rules(1), 0.0)
    assert nearest_replica(unheard, 0, "b", brokers(), "PLAINTEXT") is None


def test_who_cannot_be_reached_is_not_named() -> None:
    assert nearest_replica(partition(), 7, "c", brokers("INTERNAL"), "PLAINTEXT") is None
    gone = {number: broker for number, broker in brokers().items() if number != 4}
    assert nearest_replica(partition(), 7, "c", gone, "PLAINTEXT") is None
