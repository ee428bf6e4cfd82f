"""A cluster finds back by itself: groups get their coordinator, followers catch up, and nothing
that was acknowledged is lost on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ottla.controller.service import ConfigChange, ResourceKind
from ottla.handlers import fetch
from ottla.handlers.fetch.waiting import Waiting
from ottla.testing import Broker, Cluster, NewTopic

Eventually = Callable[..., object]

QUIET = {"log_level": 0, "reconnect.backoff.max.ms": 100}


def produce(bootstrap: str, *values: bytes, partition: int = 0, acks: str = "all") -> None:
    """Produce one batch; it was acknowledged when this returns."""
    outcomes: list[str | None] = []

    def delivered(error: object, _: object) -> None:
        outcomes.append(None if error is None else str(error))

    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": acks, "linger.ms": 50,
         "message.timeout.ms": 120_000, **QUIET}
    )  # fmt: skip
    for value in values:
        producer.produce("t", value, partition=partition, on_delivery=delivered)
    producer.flush(130)
    assert outcomes == [None] * len(values)


def consume(bootstrap: str, start: int, count: int) -> list[bytes | None]:
    """Values from an offset on; what librdkafka tells of brokers that are gone is passed over."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", **QUIET})
    consumer.assign([TopicPartition("t", 0, start)])
    values: list[bytes | None] = []
    deadline = time.monotonic() + 120
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.close()
    return values


def commit(bootstrap: str, offset: int) -> bool:
    """Whether a group's offset could be committed, and is found again."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", **QUIET})
    try:
        consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
        [found] = consumer.committed([TopicPartition("t", 0)], timeout=10)
    except KafkaException:
        return False
    finally:
        consumer.close()
    return bool(found.offset == offset)


# ---------------------------------------------------------------------- coordinators


def test_a_broker_that_was_restarted_coordinates_its_groups_again(eventually: Eventually) -> None:
    with Broker(topics=["t"]) as broker:
        eventually(lambda: commit(broker.bootstrap, 1))
        broker.restart()
        eventually(lambda: commit(broker.bootstrap, 2))


def test_groups_go_on_after_their_coordinator_has_lost_its_registration(
    eventually: Eventually,
) -> None:
    with Cluster(3, topics=[NewTopic("t", 1, 3)]) as cluster:
        eventually(lambda: commit(cluster.bootstrap, 1))
        coordinator = cluster.leader("__consumer_offsets", 0)
        partition = coordinator._services().replicas.by_name("__consumer_offsets", 0)
        epoch = coordinator._services().replication.broker_epoch
        cluster.stop_metadata()
        cluster.start_metadata()
        cluster.wait_until(lambda: coordinator._services().replication.broker_epoch > epoch)
        cluster.wait_until(lambda: partition.leading)  # the same broker, under the same epoch
        eventually(lambda: commit(cluster.bootstrap, 3))


# ---------------------------------------------------------------------- leaders


@pytest.mark.parametrize("of_the_topic", [True, False])
def test_who_was_eligible_is_not_when_fewer_suffice_from_now_on(of_the_topic: bool) -> None:
    with Cluster(3, {"min.insync.replicas": 2}, topics=[NewTopic("t", 1, 2)]) as cluster:
        cluster.wait_in_sync("t")
        first, second = cluster.state("t", 0).replicas
        cluster[second].crash()
        cluster.wait_until(lambda: cluster.state("t", 0).elr == (second,))
        cluster.wait_until(lambda: cluster.controller is not None)
        controller = cluster.controller
        assert controller is not None
        kind, name = (ResourceKind.TOPIC, "t") if of_the_topic else (ResourceKind.BROKER, "")
        fewer = ConfigChange(kind, name, lambda config: {**config, "min.insync.replicas": "1"})
        [outcome] = controller._call(controller._services().controller.alter_configs([fewer]))
        assert outcome.error is None
        produce(cluster.bootstrap, b"only the leader has it")
        cluster[first].crash()
        cluster[second].start()
        cluster.wait_until(lambda: cluster.state("t", 0).isr == ())
        assert cluster.state("t", 0).leader == -1
        cluster[first].start()
        cluster.wait_in_sync("t")
        assert cluster.replica(second, "t", 0).log.log_end_offset == 1


def test_a_leader_whose_data_folder_fails_leaves_its_partitions_to_others() -> None:
    with Cluster(3, topics=[NewTopic("t", 1, 3)], folders=2) as cluster:
        cluster.wait_in_sync("t")
        produce(cluster.bootstrap, b"before")
        leader = cluster.state("t", 0).leader
        folder = cluster.replica(leader, "t", 0).log.folder.rpartition("/")[0]
        cluster[leader].faults.full_disk(folder=folder)
        produce(cluster.bootstrap, b"after")
        state = cluster.state("t", 0)
        assert state.leader != leader
        assert leader not in (*state.isr, *state.elr)
        assert cluster[leader].running


def test_nobody_waits_for_a_follower_whose_data_folder_has_failed() -> None:
    """It has given up its place, and fetches no more: it must not be taken for one that joins."""
    settings = {"replica.lag.time.max.ms": 60_000}
    with Cluster(3, settings, topics=[NewTopic("t", 1, 3)], folders=2) as cluster:
        cluster.wait_in_sync("t")
        produce(cluster.bootstrap, b"before")
        _, failing, _ = cluster.state("t", 0).replicas
        folder = cluster.replica(failing, "t", 0).log.folder.rpartition("/")[0]
        cluster[failing].faults.full_disk(folder=folder)
        produce(cluster.bootstrap, b"after")
        assert failing not in cluster.state("t", 0).isr


def test_a_damaged_log_does_not_lead() -> None:
    with Cluster(3, topics=[NewTopic("t", 1, 3)]) as cluster:
        cluster.wait_in_sync("t")
        for value in (b"a", b"b", b"c"):
            produce(cluster.bootstrap, value)
        leader = cluster.state("t", 0).leader
        segment = Path(cluster.replica(leader, "t", 0).log.folder) / f"{0:020d}.log"
        for broker in cluster:
            broker.crash()
        content = bytearray(segment.read_bytes())
        content[70] ^= 0xFF  # in the first batch: whole ones follow
        segment.write_bytes(content)
        cluster[leader].start()  # the first one: nobody else could lead yet
        for broker in cluster:
            if not broker.running:
                broker.start()
        produce(cluster.bootstrap, b"d")
        state = cluster.state("t", 0)
        assert state.leader != leader
        assert cluster.replica(state.leader, "t", 0).high_watermark == 4


def test_a_new_controller_watches_the_other_brokers() -> None:
    with Cluster(3) as cluster:
        cluster.wait_until(lambda: cluster.controller is not None)
        first = cluster.controller
        assert first is not None
        first.crash()

        def watched() -> set[int]:
            """Whom the controller would notice to die at once, and not when a session ends."""
            controller = cluster.controller
            if controller is None or controller._app is None:
                return set()
            return set(controller._app._detector._watched)

        cluster.wait_until(lambda: cluster.controller not in (None, first))
        second = cluster.controller
        [other] = [
            node_id for node_id, broker in cluster.brokers.items() if broker not in (first, second)
        ]
        cluster.wait_until(lambda: other in watched())


# ---------------------------------------------------------------------- followers


def test_a_leader_without_room_for_fetch_sessions_is_followed() -> None:
    settings = {"max.incremental.fetch.session.cache.slots": 0}
    with Cluster(3, settings, topics=[NewTopic("t", 6, 3)]) as cluster:
        cluster.wait_in_sync("t")
        for partition in (*range(6), *range(6)):
            produce(cluster.bootstrap, b"x", partition=partition)


@pytest.mark.parametrize(("slots", "many"), [(1000, 1000), (1000, 2), (0, 1000)])
def test_a_follower_does_not_sleep_on_what_its_own_fetch_has_led_to(
    monkeypatch: pytest.MonkeyPatch, slots: int, many: int
) -> None:
    """A commit leads to the next record in a log that the fetch has looked at already: a marker
    to the note of the coordinator that the transaction has ended."""
    slept_on: list[object] = []
    wait = Waiting._wait

    def looking(waiting: Waiting, missing: int) -> None:
        plan, replicas = waiting._plan, waiting._services.replicas
        wanted = plan.items if plan.session is None else plan.session.partitions
        for key, want in wanted.items() if plan.reader.follows else ():
            partition = plan.reader.find(key, replicas)
            if partition.log.log_end_offset > want.offset:
                slept_on.append((partition.id, want))
        wait(waiting, missing)

    settings = {
        "max.incremental.fetch.session.cache.slots": slots,
        "transaction.state.log.num.partitions": 1,
    }
    with Cluster(3, settings, topics=[NewTopic("t", 3, 3)]) as cluster:
        cluster.wait_in_sync("t")
        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "transactional.id": "moves", "linger.ms": 0,
             **QUIET}
        )  # fmt: skip
        producer.init_transactions(120)
        monkeypatch.setattr(fetch, "MANY", many)
        monkeypatch.setattr(Waiting, "_wait", looking)
        for number in range(24):
            producer.begin_transaction()
            producer.produce("t", b"x", partition=number % 3)
            producer.commit_transaction(120)
        monkeypatch.undo()
    assert not slept_on


@pytest.mark.parametrize("together", [True, False])
def test_a_follower_catches_up_with_a_log_that_starts_behind_its_end(together: bool) -> None:
    with Cluster(3, topics=[NewTopic("t", 1, 3)]) as cluster:
        cluster.wait_in_sync("t")
        leader, behind, _ = cluster.state("t", 0).replicas
        cluster[behind].crash()
        values = [str(number).encode() for number in range(10)]
        for batch in [values] if together else [[value] for value in values]:
            produce(cluster.bootstrap, *batch)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        [done] = admin.delete_records([TopicPartition("t", 0, 5)]).values()
        assert done.result(120).low_watermark == 5
        cluster[behind].start()
        cluster.wait_in_sync("t")
        replica = cluster.replica(behind, "t", 0)
        cluster.wait_until(lambda: replica.high_watermark == 10)
        cluster.wait_until(lambda: replica.log.log_start_offset == 5)
        cluster[leader].crash()
        cluster.wait_until(lambda: cluster.state("t", 0).leader == behind)
        assert consume(cluster.bootstrap, 5, 5) == values[5:]


@pytest.mark.parametrize("start", [8, 10])
def test_a_follower_whose_log_went_apart_inside_of_a_batch_that_was_deleted_in_part(
    start: int,
) -> None:
    """It ends in the middle of the leader's first batch, which the leader sends as a whole."""
    with Cluster(3, topics=[NewTopic("t", assignment=[[1, 2, 3]])]) as cluster:
        cluster.wait_in_sync("t")
        produce(cluster.bootstrap, *[b"%d" % each for each in range(5)])
        for each in (2, 3):
            cluster[each].crash()
        produce(cluster.bootstrap, *[b"only here"] * 5, acks="1")
        cluster[1].crash()
        for each in (2, 3):
            cluster[each].start()
        values = [b"%d" % each for each in range(5, 15)]
        produce(cluster.bootstrap, *values)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        [done] = admin.delete_records([TopicPartition("t", 0, start)]).values()
        assert done.result(120).low_watermark == start
        cluster[1].start()
        cluster.wait_in_sync("t")
        replica = cluster.replica(1, "t", 0)
        cluster.wait_until(lambda: replica.log.log_start_offset == start)
        for each in (2, 3):
            cluster[each].crash()
        cluster.wait_until(lambda: cluster.state("t", 0).leader == 1)
        assert consume(cluster.bootstrap, start, 15 - start) == values[start - 5 :]
