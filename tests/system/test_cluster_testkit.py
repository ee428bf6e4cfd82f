"""What a test asks of one broker of a cluster, which leads some partitions and not others."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.testing import Cluster, NewTopic

# Led by 1, 2 and 3.
SPREAD = NewTopic("t", assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, topics=[SPREAD]) as cluster:
        yield cluster


def test_each_leader_takes_and_gives_the_records_of_its_own_partitions(cluster: Cluster) -> None:
    for index, number in enumerate((1, 2, 3)):
        (delivery,) = cluster[number].produce("t", f"of {number}", partition=index)
        assert (delivery.partition, delivery.offset) == (index, 0)
        (record,) = cluster[number].consume("t", 1, partition=index)
        assert record.value == f"of {number}".encode()


def test_who_does_not_lead_a_partition_tells_who_does(cluster: Cluster) -> None:
    def not_led(index: int, leader: int) -> str:
        return re.escape(f"broker 1 does not lead t-{index}, broker {leader} does")

    with pytest.raises(KafkaError, match=not_led(1, 2)) as refused:
        cluster[1].produce("t", "x", partition=1)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    with pytest.raises(KafkaError, match=not_led(2, 3)):
        cluster[1].consume("t", partition=2)
    with pytest.raises(KafkaError, match=not_led(1, 2)):
        cluster[1].consume("t")
    before = len(cluster[1].consume("t", partition=0))
    with pytest.raises(KafkaError, match=not_led(1, 2)):
        cluster[1].produce("t", "x", "y", "z")  # for all three: the first one is not written alone
    assert len(cluster[1].consume("t", partition=0)) == before
    with pytest.raises(KafkaError, match="t has no partition 3"):
        cluster[1].produce("t", "x", partition=3)


def test_who_and_what_is_not_there_is_named(cluster: Cluster) -> None:
    with pytest.raises(KeyError, match="there is no broker 9; this cluster has 1, 2, 3"):
        cluster[9]
    with pytest.raises(KeyError, match="there is no topic 'nowhere'; make it with `create`"):
        cluster.leader("nowhere", 0)


def test_what_is_waited_for_every_broker_knows_then(cluster: Cluster) -> None:
    late = cluster[3]
    stands_still, goes_on = threading.Event(), threading.Event()

    def stand_still() -> None:
        stands_still.set()
        goes_on.wait()

    late._on_loop(stand_still)
    stands_still.wait()
    try:
        cluster[1]._create([NewTopic("new", assignment=[[1]])])
        waiting = threading.Thread(target=cluster.wait_until, args=(lambda: True,), daemon=True)
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
    finally:
        goes_on.set()
    waiting.join()
    assert "new" in late.topics()
