"""A broker that comes back without records which it once had does not lead as if it had them.

Its files are damaged, cut, restored from an old copy or removed while it is down, or its disk had
failed before. Whatever it was, the cluster must know before it counts on that broker again; and a
damaged log is fetched anew from whoever has it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.broker import app
from ottla.broker.lifecycle import Lifecycle
from ottla.broker.loaded_logs import set_aside_strays
from ottla.broker.start_failed import StartFailed
from ottla.errors import ErrorCode, KafkaError
from ottla.runtime.files import OsFileSystem
from ottla.storage.repair import repair
from ottla.testing import Cluster, NewTopic

QUIET = {"log_level": 0, "reconnect.backoff.max.ms": 100}
VALUES = [b"a", b"b", b"c"]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three brokers; a topic whose replicas all have the same three batches."""
    with Cluster(3, topics=[NewTopic("t", 1, 3)]) as cluster:
        cluster.wait_in_sync("t")
        for value in VALUES:
            produce(cluster, value)
        yield cluster


def produce(cluster: Cluster, value: bytes, acks: str = "all") -> None:
    """Produce one batch; it was acknowledged when this returns."""
    outcomes: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "acks": acks,
            "message.timeout.ms": 120_000,
            **QUIET,
        }
    )
    producer.produce("t", value, partition=0, on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(130)
    assert outcomes == [None]


def consume(cluster: Cluster, count: int) -> list[bytes | None]:
    """The first values; what librdkafka tells of brokers that are gone is passed over."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", **QUIET})
    consumer.assign([TopicPartition("t", 0, 0)])
    values: list[bytes | None] = []
    deadline = time.monotonic() + 120
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.close()
    return values


def folder(cluster: Cluster, node_id: int) -> Path:
    return Path(cluster[node_id].data_dirs[0]) / "t-0"


def segment(cluster: Cluster, node_id: int) -> Path:
    return folder(cluster, node_id) / f"{0:020d}.log"


def set_aside(cluster: Cluster, node_id: int) -> list[Path]:
    return sorted(folder(cluster, node_id).parent.glob("t-0.*-stray"))


def batches(content: bytes) -> list[int]:
    """Where each batch of a segment begins."""
    found = [0]
    while found[-1] < len(content):
        found.append(
            found[-1] + 12 + int.from_bytes(content[found[-1] + 8 : found[-1] + 12], "big")
        )
    return found[:-1]


def spoil(path: Path, *numbers: int, at: int = 65) -> None:
    """Flip a byte of some batches."""
    content = bytearray(path.read_bytes())
    starts = batches(bytes(content))
    for number in numbers:
        content[starts[number] + at] ^= 0x10
    path.write_bytes(content)


def crash_all(cluster: Cluster) -> None:
    """All brokers die at once: no controller sees one of them die before the others."""
    cluster.stop_metadata()
    for broker in cluster:
        broker.crash()
    cluster.start_metadata()


def others(cluster: Cluster, node_id: int) -> list[int]:
    return [each for each in cluster.brokers if each != node_id]


def check_replica(cluster: Cluster, node_id: int, count: int) -> None:
    """A replica has so many records, in the same bytes as its leader."""
    cluster.wait_in_sync("t")
    leader = cluster.state("t", 0).leader
    ends = {cluster.replica(each, "t", 0).log.log_end_offset for each in (leader, node_id)}
    assert ends == {count}
    assert segment(cluster, node_id).read_bytes() == segment(cluster, leader).read_bytes()


def wait_for_others(cluster: Cluster, node_id: int) -> None:
    """The broker alone does not lead; with another one everything goes on, without a loss."""

    def left_to_them() -> bool:
        state = cluster.state("t", 0)
        assert node_id not in (state.leader, *state.isr, *state.elr)
        return state.leader == -1 and set(state.elr) == set(others(cluster, node_id))

    cluster.wait_until(left_to_them)
    for each in others(cluster, node_id):
        cluster[each].start()
    produce(cluster, b"d")
    assert consume(cluster, 4) == [*VALUES, b"d"]
    check_replica(cluster, node_id, 4)


# ---------------------------------------------------------------------- records are gone


@pytest.mark.parametrize(
    ("numbers", "at"), [((2,), 65), ((1, 2), 65), ((2,), 9)], ids=["last", "two", "length"]
)
def test_who_has_lost_whole_batches_does_not_lead(
    cluster: Cluster, numbers: tuple[int, ...], at: int
) -> None:
    leader = cluster.state("t", 0).leader
    crash_all(cluster)
    spoil(segment(cluster, leader), *numbers, at=at)
    cluster[leader].start()
    assert cluster.replica(leader, "t", 0).log.log_end_offset == 3 - len(numbers)
    wait_for_others(cluster, leader)


def test_a_cut_that_looks_like_an_interrupted_write_is_not_trusted(cluster: Cluster) -> None:
    leader = cluster.state("t", 0).leader
    crash_all(cluster)
    path = segment(cluster, leader)
    path.write_bytes(path.read_bytes()[:-5])  # of a batch that was acknowledged
    cluster[leader].start()
    wait_for_others(cluster, leader)


def test_a_loss_is_remembered_by_who_dies_before_it_is_registered(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = cluster.state("t", 0).leader
    crash_all(cluster)
    spoil(segment(cluster, leader), 2)

    async def fail(self: Lifecycle, *, patience: float) -> None:
        raise KafkaError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, "not now")

    with monkeypatch.context() as patch:
        patch.setattr(Lifecycle, "start", fail)
        with pytest.raises(StartFailed):
            cluster[leader].start()
    cluster[leader].start()  # the log is whole now, and shorter
    wait_for_others(cluster, leader)


def test_a_loss_is_forgotten_when_the_controller_knows_of_it(cluster: Cluster) -> None:
    leader = cluster.state("t", 0).leader
    crash_all(cluster)
    spoil(segment(cluster, leader), 2)
    for each in (leader, *others(cluster, leader)):
        cluster[each].start()
    check_replica(cluster, leader, 3)
    crash_all(cluster)
    cluster[leader].start()
    cluster.wait_until(lambda: cluster.state("t", 0).leader == leader)


def test_only_the_partition_that_has_lost_records_waits(cluster: Cluster) -> None:
    leader = cluster.state("t", 0).leader
    order = [leader, *others(cluster, leader)]
    cluster.create(NewTopic("whole", assignment=[order]))
    cluster.wait_in_sync("whole")
    crash_all(cluster)
    spoil(segment(cluster, leader), 2)
    cluster[leader].start()
    cluster.wait_until(lambda: cluster.state("whole", 0).leader == leader)
    cluster.wait_until(lambda: cluster.state("t", 0).leader == -1)


def test_who_has_lost_the_folder_of_a_partition_does_not_lead(cluster: Cluster) -> None:
    leader = cluster.state("t", 0).leader
    cluster[leader].stop()  # with checkpoints that name the partition
    cluster[leader].start()
    cluster.wait_in_sync("t")
    crash_all(cluster)
    shutil.rmtree(folder(cluster, leader))
    cluster[leader].start()
    wait_for_others(cluster, leader)


def test_what_only_a_lost_disk_had_is_told(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create(NewTopic("alone", assignment=[[2], [3]]))
    cluster.wait_in_sync("alone")
    cluster[2].produce("alone", "a", partition=0)

    def come_back(*, empty: bool) -> str:
        cluster[2].crash()
        if empty:
            shutil.rmtree(cluster[2].data_dir)
        caplog.clear()
        cluster[2].start()
        cluster.wait_until(lambda: cluster.state("alone", 0).leader == 2)
        return "\n".join(each.getMessage() for each in caplog.records if each.levelname == "ERROR")

    assert come_back(empty=False) == ""
    assert come_back(empty=True).endswith("begin anew, and their records are lost: alone-0")
    assert come_back(empty=False) == "", "that was told"
    cluster.wait_in_sync("t")


def test_who_ends_below_its_own_high_watermark_does_not_lead(cluster: Cluster) -> None:
    leader = cluster.state("t", 0).leader
    cluster[leader].stop()
    cluster[leader].start()
    cluster.wait_in_sync("t")
    crash_all(cluster)
    path = segment(cluster, leader)
    content = path.read_bytes()
    path.write_bytes(content[: batches(content)[2]])  # whole batches: an older copy
    cluster[leader].start()
    wait_for_others(cluster, leader)


def test_who_ends_below_the_leaders_high_watermark_is_not_eligible() -> None:
    with Cluster(3, {"min.insync.replicas": 2}, topics=[NewTopic("t", 1, 2)]) as cluster:
        cluster.wait_in_sync("t")
        for value in VALUES:
            produce(cluster, value)
        first, second = cluster.state("t", 0).replicas
        cluster[second].crash()
        cluster.wait_until(lambda: cluster.state("t", 0).elr == (second,))
        path = segment(cluster, second)
        content = path.read_bytes()
        path.write_bytes(content[: batches(content)[1]])
        for checkpoint in folder(cluster, second).parent.glob("*-checkpoint*"):
            checkpoint.unlink()  # an old copy of the whole folder
        cluster[first].faults.error("NOT_LEADER_OR_FOLLOWER", "Fetch", times=None)
        cluster[second].start()
        assert cluster.state("t", 0).elr == ()
        cluster[first].crash()
        cluster.wait_until(lambda: cluster.state("t", 0).leader == -1)
        cluster[first].faults.heal()
        cluster[first].start()
        check_replica(cluster, second, 3)


def test_who_is_asked_leads_by_then_and_not_when_the_start_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A recovery may take minutes; the leader from before it may be dead."""
    topic = NewTopic("t", assignment=[[1, 2, 3]], config={"min.insync.replicas": "3"})
    with Cluster(3, topics=[topic]) as cluster:
        cluster.wait_in_sync("t")
        for value in VALUES:
            produce(cluster, value)
        cluster.wait_until(lambda: cluster.replica(3, "t", 0).high_watermark == 3)
        cluster[2].crash()
        cluster.wait_until(lambda: cluster.state("t", 0).elr == (2,))
        path = segment(cluster, 2)
        content = path.read_bytes()
        path.write_bytes(content[: batches(content)[1]])
        for checkpoint in folder(cluster, 2).parent.glob("*-checkpoint*"):
            checkpoint.unlink()  # an old copy of the whole folder
        cluster[3].faults.error("NOT_LEADER_OR_FOLLOWER", "Fetch", times=None)

        def meanwhile(*arguments: Any) -> None:
            set_aside_strays(*arguments)
            cluster[1].crash()
            cluster.wait_until(lambda: cluster.state("t", 0).leader == 3)

        with monkeypatch.context() as patch:
            patch.setattr(app, "set_aside_strays", meanwhile)
            cluster[2].start()
        assert 2 not in cluster.state("t", 0).elr
        cluster[3].faults.heal()
        cluster[1].start()
        check_replica(cluster, 2, 3)


def test_who_stopped_after_its_disk_had_failed_does_not_lead(cluster: Cluster) -> None:
    leader = cluster.state("t", 0).leader
    for each in others(cluster, leader):
        cluster[each].crash()
    cluster.wait_until(lambda: cluster.state("t", 0).isr == (leader,))
    services = cluster[leader]._services()
    log = cluster.replica(leader, "t", 0).log
    error = OSError(5, "Input/output error", log.folder)
    failed: Callable[[], object] = lambda: log.storage_failed(error, "flushing")  # noqa: E731 - runs on the broker's loop
    cluster[leader]._app._fail = lambda reason: None
    cluster[leader]._on_loop(failed)
    cluster.wait_until(lambda: services.image.broker_states[leader].failed)
    cluster[leader].crash()
    cluster[leader].start()  # the disk is as good as ever
    state = cluster.state("t", 0)
    assert (state.leader, state.isr) == (-1, ())
    for each in others(cluster, leader):
        cluster[each].start()
    check_replica(cluster, leader, 3)
    assert not services.image.broker_states[leader].lost


@pytest.fixture(params=[1, 2], ids=["one folder", "two folders"])
def last_in_sync(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """All brokers are dead. Broker 1 was in sync alone at last, with one record more."""
    topic = NewTopic("t", assignment=[[1, 2, 3]], config={"min.insync.replicas": "1"})
    with Cluster(3, topics=[topic], folders=request.param) as cluster:
        cluster.wait_in_sync("t")
        for value in VALUES:
            produce(cluster, value)
        for number, left in ((3, (1, 2)), (2, (1,))):
            cluster[number].crash()
            cluster.wait_until(lambda left=left: cluster.state("t", 0).isr == left)
        cluster[1].produce("t", b"d", partition=0)
        cluster[1].crash()
        yield cluster


@pytest.mark.parametrize("order", [(2, 3, 1), (1, 2, 3)], ids=["at the end", "at first"])
def test_the_last_one_in_sync_does_not_lead_with_an_emptied_disk(
    last_in_sync: Cluster, order: tuple[int, ...]
) -> None:
    """Nobody has the record that it alone had; what all of them had is still there."""
    cluster = last_in_sync
    [folder] = [each for each in cluster[1].data_dirs if (Path(each) / "t-0").exists()]
    shutil.rmtree(folder)
    for each in order:
        cluster[each].start()
    cluster.wait_in_sync("t")
    assert cluster.state("t", 0).leader in (2, 3)
    assert consume(cluster, 3) == VALUES
    assert cluster.replica(1, "t", 0).log.log_end_offset == 3


# ---------------------------------------------------------------------- fetched anew


def refuse_fetches(cluster: Cluster, node_id: int) -> None:
    """Nobody gives records to this follower."""

    def by_it(request: Any) -> bool:
        state = request.body.replica_state
        return state is not None and state.replica_id == node_id

    for each in others(cluster, node_id):
        cluster[each].faults.error(
            "NOT_LEADER_OR_FOLLOWER", "Fetch", topic="t", when=by_it, times=None
        )


def damage(cluster: Cluster, node_id: int) -> bytes:
    """Spoil the first batch of a broker that does not run; returns what the file is then."""
    spoil(segment(cluster, node_id), 0)
    return segment(cluster, node_id).read_bytes()


def test_a_damaged_log_is_fetched_anew(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    leader = cluster.state("t", 0).leader
    crash_all(cluster)
    content = damage(cluster, leader)
    for each in (leader, *others(cluster, leader)):  # the damaged one first
        cluster[each].start()
    check_replica(cluster, leader, 3)
    [kept] = set_aside(cluster, leader)
    assert (kept / f"{0:020d}.log").read_bytes() == content
    assert f"t-0: the damaged log is kept in {kept}; the partition is fetched anew" in caplog.text
    produce(cluster, b"d")
    assert consume(cluster, 4) == [*VALUES, b"d"]


def test_a_log_that_is_damaged_again_is_fetched_again(cluster: Cluster) -> None:
    follower = cluster.state("t", 0).replicas[1]
    contents = []
    for _ in range(2):
        cluster[follower].crash()
        contents.append(damage(cluster, follower))
        cluster[follower].start()
        check_replica(cluster, follower, 3)
    kept = {(each / f"{0:020d}.log").read_bytes() for each in set_aside(cluster, follower)}
    assert len(set_aside(cluster, follower)) == 2
    assert kept == set(contents)


def test_who_fetches_anew_does_not_lead_when_its_leader_dies(cluster: Cluster) -> None:
    follower = cluster.state("t", 0).replicas[1]
    cluster[follower].crash()
    damage(cluster, follower)
    refuse_fetches(cluster, follower)
    cluster[follower].start()
    cluster.wait_until(lambda: bool(set_aside(cluster, follower)))
    for each in others(cluster, follower):
        cluster[each].crash()
    cluster.wait_until(lambda: cluster.state("t", 0).leader == -1)
    first, second = others(cluster, follower)
    cluster[first].faults.heal()
    cluster[second].faults.heal()
    cluster[first].start()
    cluster.wait_until(lambda: set(cluster.state("t", 0).isr) == {first, follower})
    cluster[second].start()
    check_replica(cluster, follower, 3)


def test_who_dies_after_setting_its_log_aside_fetches_it_after_all(cluster: Cluster) -> None:
    follower = cluster.state("t", 0).replicas[1]
    cluster[follower].crash()
    damage(cluster, follower)
    refuse_fetches(cluster, follower)
    cluster[follower].start()
    cluster.wait_until(lambda: bool(set_aside(cluster, follower)))
    cluster[follower].crash()
    for each in others(cluster, follower):
        cluster[each].faults.heal()
    cluster[follower].start()
    check_replica(cluster, follower, 3)
    assert len(set_aside(cluster, follower)) == 1


def test_a_log_without_one_of_its_files_is_fetched_anew() -> None:
    config = {"segment.bytes": str(1 << 20)}
    with Cluster(3, topics=[NewTopic("t", 1, 3, config=config)]) as cluster:
        cluster.wait_in_sync("t")
        values = [bytes([number]) * 700_000 for number in range(3)]
        for value in values:
            produce(cluster, value)
        leader = cluster.state("t", 0).leader
        crash_all(cluster)
        for path in folder(cluster, leader).glob(f"{1:020d}.*"):
            path.unlink()
        for each in (leader, *others(cluster, leader)):
            cluster[each].start()
        cluster.wait_until(lambda: bool(set_aside(cluster, leader)))
        cluster.wait_in_sync("t")
        kept = {
            b"".join(path.read_bytes() for path in sorted(folder(cluster, each).glob("*.log")))
            for each in cluster.brokers
        }
        assert len(kept) == 1
        assert consume(cluster, 3) == values


def test_a_repaired_log_is_fetched_anew_where_another_replica_is_whole(cluster: Cluster) -> None:
    leader = cluster.state("t", 0).leader
    crash_all(cluster)
    damage(cluster, leader)
    assert repair(OsFileSystem(), str(folder(cluster, leader)))
    for each in (leader, *others(cluster, leader)):
        cluster[each].start()
    cluster.wait_until(lambda: bool(set_aside(cluster, leader)))
    check_replica(cluster, leader, 3)


def test_a_damaged_log_of_an_earlier_topic_is_no_hindrance() -> None:
    with Cluster(2, topics=[NewTopic("t", assignment=[[1]])]) as cluster:
        for value in VALUES:
            produce(cluster, value)
        cluster[1].crash()
        damage(cluster, 1)
        registry = cluster[2]._services().registry

        async def make_again() -> None:
            """The topic is deleted and made anew while its only replica is away."""
            old = registry.image.topics["t"]
            await registry.delete_topic(old.id)
            await registry.create_topics([replace(old, id=registry.new_id())])

        cluster[2]._call(make_again())
        cluster[1].start()
        produce(cluster, b"new")
        assert consume(cluster, 1) == [b"new"]
        assert len(set_aside(cluster, 1)) == 1


def test_the_last_replica_with_all_records_stays_offline(cluster: Cluster) -> None:
    """Nobody can give it what is damaged: somebody has to restore or repair it (ADR 3)."""
    last = cluster.state("t", 0).leader
    for each in others(cluster, last):
        cluster[each].crash()
    cluster.wait_until(lambda: cluster.state("t", 0).isr == (last,))
    cluster[last].crash()
    content = damage(cluster, last)
    # Those who were eligible have lost their records.
    for each in others(cluster, last):
        shutil.rmtree(cluster[each].data_dir)
    for each in (last, *others(cluster, last)):
        cluster[each].start()
    cluster.wait_until(lambda: len(cluster[last]._services().image.brokers) == 3)
    state = cluster.state("t", 0)
    assert (state.leader, state.isr, state.elr) == (-1, (), ())
    assert last in state.last_known_elr
    assert segment(cluster, last).read_bytes() == content
    assert not set_aside(cluster, last)
    with pytest.raises(KafkaError) as caught:
        cluster.replica(last, "t", 0)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
