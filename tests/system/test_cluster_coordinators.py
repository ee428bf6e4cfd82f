"""Committed offsets in a cluster: they survive their coordinator, and none that is old is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.coordinator.host import Slot
from ottla.errors import ErrorCode
from ottla.replication.lease import LEASE_MS
from ottla.runtime.waiters import Deferred
from ottla.testing import Broker, Cluster, NewTopic

OFFSETS = "__consumer_offsets"
GROUP = "readers"
ONE_PARTITION = {"offsets.topic.num.partitions": 1}
TOPICS = [NewTopic("t", 1, 1)]
IN_DOUBT = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
Wires = Callable[..., Any]


class Offsets:
    """One group's offset of one partition, asked for and committed at any broker."""

    def __init__(self, wire: Wires) -> None:
        self._wire = wire
        self._open: dict[str, Any] = {}

    def _at(self, broker: Broker) -> Any:
        if broker.bootstrap not in self._open:
            self._open[broker.bootstrap] = self._wire(broker.bootstrap)
        return self._open[broker.bootstrap]

    def commit(self, broker: Broker, offset: int) -> ErrorCode:
        partitions = [{"partition_index": 0, "committed_offset": offset}]
        answer = self._at(broker).ask(
            "offset_commit",
            8,
            group_id=GROUP,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[{"name": "t", "partitions": partitions}],
        )
        return ErrorCode.of(answer.topics[0].partitions[0].error_code)

    def ask(self, broker: Broker) -> None:
        """Ask for the offset, without waiting for the answer: `answer` does."""
        topics = [{"name": "t", "partition_indexes": [0]}]
        self._at(broker).send("offset_fetch", 8, groups=[{"group_id": GROUP, "topics": topics}])

    def answer(self, broker: Broker) -> int | ErrorCode:
        (answer,) = self._at(broker).receive().groups
        if answer.error_code:
            return ErrorCode.of(answer.error_code)
        offset: int = answer.topics[0].partitions[0].committed_offset
        return offset

    def fetch(self, broker: Broker) -> int | ErrorCode:
        self.ask(broker)
        return self.answer(broker)

    def commit_somewhere(
        self, cluster: Cluster, offset: int, *, beside: Broker | None = None
    ) -> None:
        """Commit at the coordinator, whoever that is; `beside` is left alone."""
        deadline = time.monotonic() + 120
        while True:
            for broker in cluster.running:
                if broker is not beside and self.commit(broker, offset) is ErrorCode.NONE:
                    return
            assert time.monotonic() < deadline, "nobody takes a commit"
            time.sleep(0.01)

    def fetch_certainly(self, broker: Broker) -> int:
        """The offset, asked for again while the coordinator is in doubt."""
        deadline = time.monotonic() + 120
        while True:
            answer = self.fetch(broker)
            if not isinstance(answer, ErrorCode):
                return answer
            assert answer in IN_DOUBT
            assert time.monotonic() < deadline, f"only {answer.name}"
            time.sleep(0.01)


@pytest.fixture
def offsets(wire: Wires) -> Offsets:
    return Offsets(wire)


def begin(cluster: Cluster, offsets: Offsets, wire: Wires) -> Broker:
    """Offset 10 is committed; returns the coordinator."""
    wire(cluster.bootstrap.split(",")[0]).ask(
        "find_coordinator", 4, key_type=0, coordinator_keys=[GROUP]
    )
    cluster.wait_until(lambda: OFFSETS in cluster.running[0]._services().image.topics)
    cluster.wait_in_sync(OFFSETS)
    offsets.commit_somewhere(cluster, 10)
    coordinator = cluster.leader(OFFSETS, 0)
    assert offsets.fetch_certainly(coordinator) == 10
    return coordinator


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(3, config=ONE_PARTITION, topics=TOPICS) as cluster:
        yield cluster


def number_of(cluster: Cluster, broker: Broker) -> int:
    return next(number for number, each in cluster.brokers.items() if each is broker)


def led_elsewhere(cluster: Cluster, broker: Broker) -> Callable[[], bool]:
    number = number_of(cluster, broker)
    other = next(each for each in cluster if each is not broker)
    return lambda: other._services().image.topics[OFFSETS].partitions[0].leader not in (number, -1)


def test_a_coordinator_that_is_cut_off_from_the_store_tells_no_old_offset(
    cluster: Cluster, offsets: Offsets, wire: Wires
) -> None:
    coordinator = begin(cluster, offsets, wire)
    with cluster.cut_off(number_of(cluster, coordinator)):
        cluster.wait_until(led_elsewhere(cluster, coordinator))
        offsets.commit_somewhere(cluster, 20, beside=coordinator)
        assert offsets.fetch(coordinator) in IN_DOUBT
        assert offsets.fetch(coordinator) in IN_DOUBT
    assert offsets.fetch_certainly(cluster.leader(OFFSETS, 0)) == 20


def test_a_coordinator_that_is_cut_off_from_the_store_acknowledges_no_commit(
    cluster: Cluster, offsets: Offsets, wire: Wires
) -> None:
    coordinator = begin(cluster, offsets, wire)
    with cluster.cut_off(number_of(cluster, coordinator)):
        cluster.wait_until(led_elsewhere(cluster, coordinator))
        assert offsets.commit(coordinator, 15) in IN_DOUBT
        offsets.commit_somewhere(cluster, 20, beside=coordinator)
    assert offsets.fetch_certainly(cluster.leader(OFFSETS, 0)) == 20


def test_a_coordinator_that_stood_still_tells_no_old_offset(
    cluster: Cluster, offsets: Offsets, wire: Wires
) -> None:
    coordinator = begin(cluster, offsets, wire)
    with cluster.paused(number_of(cluster, coordinator)):
        cluster.wait_until(led_elsewhere(cluster, coordinator))
        offsets.commit_somewhere(cluster, 20, beside=coordinator)
        # It finds the question when it goes on, before it has heard of anything else.
        offsets.ask(coordinator)
    answer = offsets.answer(coordinator)
    assert answer == 20 or answer in IN_DOUBT


class Member:
    """One who consumes alone in a group, by the classic protocol or by that of KIP-848."""

    def __init__(self, protocol: str, broker: Broker, wire: Wires) -> None:
        self._classic = protocol == "classic"
        self._connection = wire(broker.bootstrap)
        self._group = f"{GROUP} of {protocol}"
        self._id = "a" * 22
        self._epoch = 0
        if self._classic:
            self._join()
        else:
            answer = self._tell(rebalance_timeout=60_000, subscribed_topic_names=["t"])
            assert answer.error_code == 0
            self._epoch = answer.member_epoch

    def _join(self) -> None:
        joined = self._connection.ask(
            "join_group",
            3,
            group_id=self._group,
            session_timeout=60_000,
            rebalance_timeout=60_000,
            member_id="",
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b""}],
        )
        assert joined.error_code == 0
        self._id, self._epoch = joined.member_id, joined.generation_id
        synced = self._connection.ask(
            "sync_group",
            3,
            group_id=self._group,
            generation_id=self._epoch,
            member_id=self._id,
            assignments=[{"member_id": self._id, "assignment": b"t-0"}],
        )
        assert synced.error_code == 0

    def _tell(self, **more: Any) -> Any:
        if self._classic:
            return self._connection.ask(
                "heartbeat",
                3,
                group_id=self._group,
                generation_id=self._epoch,
                member_id=self._id,
            )
        return self._connection.ask(
            "consumer_group_heartbeat",
            1,
            group_id=self._group,
            member_id=self._id,
            member_epoch=self._epoch,
            topic_partitions=[],
            **more,
        )

    def heartbeat(self) -> ErrorCode:
        return ErrorCode.of(self._tell().error_code)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_coordinator_that_was_replaced_confirms_no_member(
    cluster: Cluster, offsets: Offsets, wire: Wires, protocol: str
) -> None:
    """Its partitions may be another's by now, who is a member where the group is."""
    coordinator = begin(cluster, offsets, wire)
    member = Member(protocol, coordinator, wire)
    assert member.heartbeat() is ErrorCode.NONE
    with cluster.cut_off(number_of(cluster, coordinator)):
        cluster.wait_until(led_elsewhere(cluster, coordinator))
        offsets.commit_somewhere(cluster, 20, beside=coordinator)
        assert member.heartbeat() is ErrorCode.NOT_COORDINATOR


def test_a_coordinator_whose_replica_was_given_to_another_broker_confirms_no_member(
    offsets: Offsets, wire: Wires
) -> None:
    """A commit takes all replicas: so the others can do nothing without it, until they are more."""
    settings = {**ONE_PARTITION, "offsets.topic.replication.factor": 2}
    with Cluster(3, settings, topics=TOPICS) as cluster:
        coordinator = begin(cluster, offsets, wire)
        member = Member("classic", coordinator, wire)
        cut_off = number_of(cluster, coordinator)
        with cluster.cut_off(cut_off):
            cluster.wait_until(led_elsewhere(cluster, coordinator))
            other = next(each for each in cluster if each is not coordinator)
            others = [number for number in cluster.brokers if number != cut_off]
            moved = {"partition_index": 0, "replicas": others}
            answer = wire(other.bootstrap).ask(
                "alter_partition_reassignments",
                0,
                topics=[{"name": OFFSETS, "partitions": [moved]}],
            )
            assert answer.responses[0].partitions[0].error_code == 0
            offsets.commit_somewhere(cluster, 20, beside=coordinator)
            assert member.heartbeat() is ErrorCode.NOT_COORDINATOR


def test_a_follower_that_says_nothing_any_more_leaves_a_coordinator_in_doubt_for_a_while_only(
    offsets: Offsets, wire: Wires
) -> None:
    """It lives, and does not reach the leader; nothing is written that it would lag behind."""
    # Much longer than the coordinator lets a question wait while it is in doubt.
    settings = {**ONE_PARTITION, "min.insync.replicas": 1, "replica.lag.time.max.ms": 8_000}
    with Cluster(3, settings, topics=TOPICS) as cluster:
        coordinator = begin(cluster, offsets, wire)
        member = Member("consumer", coordinator, wire)
        silent = number_of(cluster, next(each for each in cluster if each is not coordinator))
        coordinator.faults.drop("fetch", client_id=f"broker-{silent}", times=None)
        cluster.wait_until(lambda: member.heartbeat() is ErrorCode.NOT_COORDINATOR)
        cluster.wait_until(lambda: member.heartbeat() is ErrorCode.NONE)
        assert offsets.fetch_certainly(coordinator) == 10
        assert silent not in cluster.state(OFFSETS, 0).isr


class Rebalancing:
    """Two who consume together by the classic protocol, each on its own connection."""

    def __init__(self, broker: Broker, wire: Wires) -> None:
        self._connections = [wire(broker.bootstrap) for _ in range(2)]
        self._members = ["", ""]
        self._generation = 0
        self._send_join(0)
        self._receive_join(0)
        assert self.sync(0, leads=True) is ErrorCode.NONE
        self._send_join(1)
        self._send_join(0, b"another")
        for index in range(2):
            self._receive_join(index)
        assert self.sync(0, leads=True) is ErrorCode.NONE
        assert self.sync(1) is ErrorCode.NONE

    def _send_join(self, index: int, metadata: bytes = b"") -> None:
        self._connections[index].send(
            "join_group",
            3,
            group_id=GROUP,
            session_timeout=60_000,
            rebalance_timeout=50_000,
            member_id=self._members[index],
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": metadata}],
        )

    def _receive_join(self, index: int) -> None:
        joined = self._connections[index].receive()
        assert joined.error_code == 0
        self._members[index], self._generation = joined.member_id, joined.generation_id

    def join_again(self) -> None:
        """Both do; nobody has asked for an assignment of this generation yet."""
        for index in (1, 0):
            self._send_join(index, b"again")
        for index in (1, 0):
            self._receive_join(index)

    def join_alone(self, index: int, metadata: bytes) -> ErrorCode:
        """One joins again, and the other does not come."""
        self._send_join(index, metadata)
        return ErrorCode.of(self._connections[index].receive().error_code)

    def commit_later(self, index: int) -> ErrorCode:
        """Commit as a member of the next generation, which has begun where the group is now."""
        partitions = [{"partition_index": 0, "committed_offset": 20}]
        answer = self._connections[index].ask(
            "offset_commit",
            8,
            group_id=GROUP,
            generation_id_or_member_epoch=self._generation + 1,
            member_id=self._members[index],
            topics=[{"name": "t", "partitions": partitions}],
        )
        return ErrorCode.of(answer.topics[0].partitions[0].error_code)

    def sync(self, index: int, *, leads: bool = False) -> ErrorCode:
        given = [{"member_id": each, "assignment": each.encode()} for each in self._members if each]
        answer = self._connections[index].ask(
            "sync_group",
            3,
            group_id=GROUP,
            generation_id=self._generation,
            member_id=self._members[index],
            assignments=given if leads else [],
        )
        return ErrorCode.of(answer.error_code)


def test_a_coordinator_that_was_replaced_gives_nobody_partitions(
    cluster: Cluster, offsets: Offsets, wire: Wires
) -> None:
    """Nor does it refuse those whom it does not know, or let a member wait for others, and keep
    what it has meanwhile: these may have gone to where the group is now, and may have got it."""
    coordinator = begin(cluster, offsets, wire)
    members = Rebalancing(coordinator, wire)
    assert members.sync(1) is ErrorCode.NONE, "it did not get the answer, and asks again"
    with cluster.cut_off(number_of(cluster, coordinator)):
        cluster.wait_until(led_elsewhere(cluster, coordinator))
        found = [members.sync(1), members.commit_later(1), members.join_alone(1, b"a third")]
    assert found == [ErrorCode.NOT_COORDINATOR] * 3


def test_nobody_waits_for_an_assignment_at_a_coordinator_that_was_replaced(
    cluster: Cluster, offsets: Offsets, wire: Wires
) -> None:
    """Who would assign may have gone to where the group is now."""
    coordinator = begin(cluster, offsets, wire)
    members = Rebalancing(coordinator, wire)
    members.join_again()
    with cluster.cut_off(number_of(cluster, coordinator)):
        cluster.wait_until(led_elsewhere(cluster, coordinator))
        assert members.sync(1) is ErrorCode.NOT_COORDINATOR


def wait_idle(cluster: Cluster, coordinator: Broker, seconds: float = 2.0) -> None:
    """Until the followers have been at rest for so long: no fetch of theirs names the partition."""
    partition = coordinator._services().replicas.by_name(OFFSETS, 0)
    since: dict[int, float] = {}

    def idle() -> bool:
        for number, follower in partition.in_sync.followers.items():
            if follower._round is None:
                since.clear()
                return False
            since.setdefault(number, follower.fetched_ms)
        return all(
            partition.in_sync.followers[number].fetched_ms - began >= seconds * 1000
            for number, began in since.items()
        )

    cluster.wait_until(idle)


def test_a_coordinator_with_idle_followers_tells_no_old_offset_when_it_is_cut_off(
    cluster: Cluster, offsets: Offsets, wire: Wires
) -> None:
    coordinator = begin(cluster, offsets, wire)
    wait_idle(cluster, coordinator)
    with cluster.cut_off(number_of(cluster, coordinator)):
        cluster.wait_until(led_elsewhere(cluster, coordinator))
        offsets.commit_somewhere(cluster, 20, beside=coordinator)
        assert offsets.fetch(coordinator) in IN_DOUBT
        assert offsets.fetch(coordinator) in IN_DOUBT
    assert offsets.fetch_certainly(cluster.leader(OFFSETS, 0)) == 20


def test_a_coordinator_with_idle_followers_tells_no_old_offset_after_it_stood_still(
    cluster: Cluster, offsets: Offsets, wire: Wires
) -> None:
    coordinator = begin(cluster, offsets, wire)
    wait_idle(cluster, coordinator)
    with cluster.paused(number_of(cluster, coordinator)):
        cluster.wait_until(led_elsewhere(cluster, coordinator))
        offsets.commit_somewhere(cluster, 20, beside=coordinator)
        offsets.ask(coordinator)
    answer = offsets.answer(coordinator)
    assert answer == 20 or answer in IN_DOUBT


@pytest.fixture
def patient_cluster() -> Iterator[Cluster]:
    """Followers would wait for records for much longer than they are let."""
    patient = {"replica.fetch.wait.max.ms": 20_000}
    with Cluster(3, config={**ONE_PARTITION, **patient}, topics=TOPICS) as cluster:
        yield cluster


def test_an_idle_cluster_tells_offsets_without_waiting(
    patient_cluster: Cluster, offsets: Offsets, wire: Wires, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = patient_cluster
    coordinator = begin(cluster, offsets, wire)
    partition = coordinator._services().replicas.by_name(OFFSETS, 0)
    followers = partition.in_sync.followers.values()
    answers: list[object] = []
    run = Slot.run_certainly

    def noted(self: Any, command: Any) -> Any:
        answers.append(run(self, command))
        return answers[-1]

    monkeypatch.setattr(Slot, "run_certainly", noted)

    def told_at_once() -> bool:
        """For longer than a follower vouches by one fetch; a busy machine may take a few tries."""
        wait_idle(cluster, coordinator, seconds=0.0)
        answers.clear()
        until = time.monotonic() + 2 * LEASE_MS / 1000
        while time.monotonic() < until:
            assert offsets.fetch_certainly(coordinator) == 10
        resting = all(each._round is not None for each in followers)
        return resting and not any(isinstance(each, Deferred) for each in answers)

    cluster.wait_until(told_at_once)
    assert answers


def test_offsets_are_told_and_committed_after_the_coordinator_has_died(
    cluster: Cluster, offsets: Offsets, wire: Wires
) -> None:
    begin(cluster, offsets, wire).crash()
    assert offsets.fetch_certainly(cluster.leader(OFFSETS, 0)) == 10
    offsets.commit_somewhere(cluster, 20)
    assert offsets.fetch_certainly(cluster.leader(OFFSETS, 0)) == 20


def test_a_commit_that_cannot_be_kept_is_refused_and_holds_up_nothing_else_of_its_group(
    cluster: Cluster, offsets: Offsets, wire: Wires
) -> None:
    coordinator = begin(cluster, offsets, wire)
    followers = [each for each in cluster if each is not coordinator]
    for follower in followers:
        follower.crash()
    led = coordinator._services().replicas.by_name(OFFSETS, 0)
    cluster.wait_until(lambda: led.state.isr == (number_of(cluster, coordinator),))
    end = led.log.log_end_offset
    # It is in doubt whether it is the coordinator, too, a second after they have last fetched.
    refused = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
    assert offsets.commit(coordinator, 20) in refused
    assert led.log.log_end_offset == end
    (described,) = wire(coordinator.bootstrap).ask("describe_groups", 5, groups=[GROUP]).groups
    assert ErrorCode.of(described.error_code) is ErrorCode.NONE
    for follower in followers:
        follower.start()
    assert offsets.fetch_certainly(cluster.leader(OFFSETS, 0)) == 10


def test_offsets_are_told_while_a_follower_stands_still_or_the_store_is_away(
    cluster: Cluster, offsets: Offsets, wire: Wires
) -> None:
    coordinator = begin(cluster, offsets, wire)
    follower = next(each for each in cluster if each is not coordinator)
    until = time.monotonic() + 1.5
    with cluster.paused(number_of(cluster, follower)):
        while time.monotonic() < until:
            assert offsets.fetch(coordinator) == 10
    cluster.wait_in_sync(OFFSETS)
    coordinator = cluster.leader(OFFSETS, 0)
    cluster.stop_metadata()
    until = time.monotonic() + 3.0
    while time.monotonic() < until:
        assert offsets.fetch(coordinator) == 10
    cluster.start_metadata()


def test_who_is_alone_tells_offsets_while_its_session_is_certainly_alive(
    offsets: Offsets, wire: Wires
) -> None:
    with Cluster(1, config=ONE_PARTITION, topics=TOPICS, session_seconds=1.0) as cluster:
        (broker,) = cluster
        begin(cluster, offsets, wire)
        cluster.stop_metadata()
        cluster.wait_until(lambda: offsets.fetch(broker) in IN_DOUBT)
        cluster.start_metadata()
        assert offsets.fetch_certainly(broker) == 10
