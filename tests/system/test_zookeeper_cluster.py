"""Three broker processes and a real ZooKeeper: nothing acknowledged is lost, whoever dies.

Where a process is killed, sessions are so long that nobody waits for one to end: the death itself
must be noticed. Only a process that stands still is found out by its session.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.testing.process import BrokerProcess
from ottla.testing.zookeeper import ZooKeeperProcess

PARTITIONS = 3
TOPIC = "t"
SETTINGS = {
    "offsets.topic.num.partitions": 2,
    "offsets.topic.replication.factor": 3,
    "min.insync.replicas": 2,
    "group.initial.rebalance.delay.ms": 0,
}
PATIENT = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 1,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    # A client waits so long for a broker that stands still.
    "request.timeout.ms": 1_000,
    "socket.timeout.ms": 1_000,
    "log_level": 0,
}
MOST_UNDERWAY = 10_000
LONG_SESSION = 60_000
"""Longer than any wait here."""


LOADS: list[Load] = []
"""Those of the test that runs."""


class Brokers:
    """Three broker processes in one chroot."""

    def __init__(self, folder: Path, connect: str, session_ms: int) -> None:
        settings = {
            **SETTINGS,
            "zookeeper.connect": connect,
            "zookeeper.session.timeout.ms": session_ms,
        }
        self.brokers = {
            number: BrokerProcess(
                folder / f"broker-{number}", settings={**settings, "broker.id": number}
            )
            for number in range(3)
        }
        self.bootstrap = ",".join(broker.bootstrap for broker in self.brokers.values())
        for broker in self.brokers.values():
            broker.launch()
        for broker in self.brokers.values():
            broker.wait_listening()
        self.admin = AdminClient(
            {"bootstrap.servers": self.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 100}
        )

    def create_topic(self) -> None:
        topic = NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})
        for created in self.admin.create_topics([topic]).values():
            created.result(30)

    @property
    def controller(self) -> int:
        return int(self.admin.list_topics(timeout=10).controller_id)

    def state(self) -> dict[int, tuple[int, list[int]]]:
        """Leader and in-sync replicas of each partition."""
        partitions = self.admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions
        return {index: (each.leader, sorted(each.isrs)) for index, each in partitions.items()}

    def in_sync(self) -> bool:
        state = self.state()
        return len(state) == PARTITIONS and all(isr == [0, 1, 2] for _, isr in state.values())

    def leader(self, partition: int = 0) -> int:
        return self.state()[partition][0]

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.kill()


class Load:
    """Produces numbered records until stopped; remembers which were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, **PATIENT})
        self.acknowledged: set[bytes] = set()
        self.failures: list[str] = []
        self.longest_pause = 0.0
        self._last = time.monotonic()
        self._sent = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        LOADS.append(self)

    def _run(self) -> None:
        while not self._stop.is_set():
            if len(self._producer) < MOST_UNDERWAY:
                self._producer.produce(
                    TOPIC,
                    str(self._sent).encode(),
                    partition=self._sent % PARTITIONS,
                    on_delivery=self._delivered,
                )
                self._sent += 1
            self._producer.poll(0.002)

    def _delivered(self, error: object, message: Any) -> None:
        now = time.monotonic()
        self.longest_pause = max(self.longest_pause, now - self._last)
        self._last = now
        if error is not None:
            self.failures.append(str(error))
        else:
            self.acknowledged.add(message.value())

    def wait_for_more(self, count: int = 100) -> None:
        """Wait until records sent from now on are acknowledged, in every partition."""
        wanted = {str(self._sent + index).encode() for index in range(count)}
        deadline = time.monotonic() + 30
        while not wanted <= self.acknowledged:
            assert time.monotonic() < deadline, "the cluster takes no records any more"
            time.sleep(0.01)

    def stop(self) -> None:
        self.end()
        assert self._producer.flush(60) == 0

    def end(self) -> None:
        self._stop.set()
        self._thread.join()


def read_all(bootstrap: str, expected: int) -> Counter[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 0})
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    found: Counter[bytes] = Counter()
    deadline = time.monotonic() + 60
    try:
        while found.total() < expected and time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.2):
                if message.error() is None:
                    found[message.value()] += 1
    finally:
        consumer.close()
    return found


def check(brokers: Brokers, load: Load) -> None:
    """Every acknowledged record is there, and once."""
    load.stop()
    assert not load.failures
    found = read_all(brokers.bootstrap, len(load.acknowledged))
    assert load.acknowledged <= set(found), "acknowledged records are missing"
    assert max(found.values()) == 1, "records are there twice"


Start = Callable[..., Brokers]
Eventually = Callable[..., None]


@pytest.fixture
def start_cluster(tmp_path: Path, zookeeper: str, unique: Callable[[], str]) -> Iterator[Start]:
    started: list[Brokers] = []

    def start(*, connect: str = "", session_ms: int = LONG_SESSION) -> Brokers:
        brokers = Brokers(tmp_path, connect or f"{zookeeper}/{unique()}", session_ms)
        started.append(brokers)
        brokers.create_topic()
        return brokers

    yield start
    for load in LOADS:
        load.end()
    LOADS.clear()
    for brokers in started:
        brokers.close()


def commit_offset(bootstrap: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "log_level": 0})
    try:
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
    finally:
        consumer.close()


def committed_offset(bootstrap: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "log_level": 0})
    try:
        [found] = consumer.committed([TopicPartition(TOPIC, 0)], timeout=30)
        return int(found.offset)
    finally:
        consumer.close()


@pytest.mark.parametrize("role", ["leader", "controller", "follower"])
def test_a_broker_is_killed_under_load(
    start_cluster: Start, eventually: Eventually, role: str
) -> None:
    brokers = start_cluster()
    eventually(brokers.in_sync)
    load = Load(brokers.bootstrap)
    load.wait_for_more()
    commit_offset(brokers.bootstrap, 7)
    leader, controller = brokers.leader(), brokers.controller
    if role == "follower":
        victim = next(each for each in brokers.brokers if each not in (leader, controller))
    else:
        victim = leader if role == "leader" else controller
    brokers.brokers[victim].kill()
    load.wait_for_more()
    eventually(lambda: brokers.controller not in (-1, victim))
    assert brokers.leader() != victim
    assert committed_offset(brokers.bootstrap) == 7
    brokers.brokers[victim].start()
    eventually(brokers.in_sync, timeout=30)
    check(brokers, load)


def test_the_leader_stands_still_until_its_session_ends(
    start_cluster: Start, eventually: Eventually
) -> None:
    brokers = start_cluster(session_ms=1_500)
    eventually(brokers.in_sync)
    load = Load(brokers.bootstrap)
    load.wait_for_more()
    victim = brokers.leader()
    brokers.brokers[victim].signal(signal.SIGSTOP)
    try:
        load.wait_for_more()
    finally:
        brokers.brokers[victim].signal(signal.SIGCONT)
    eventually(brokers.in_sync, timeout=30)
    load.wait_for_more()
    check(brokers, load)


@pytest.mark.parametrize("session_ms", [1_500, LONG_SESSION], ids=["expired", "kept"])
def test_zookeeper_goes_away_and_comes_back(
    tmp_path: Path, start_cluster: Start, eventually: Eventually, session_ms: int
) -> None:
    with ZooKeeperProcess(tmp_path / "zookeeper") as server:
        server.start()
        brokers = start_cluster(connect=f"{server.address}/ottla", session_ms=session_ms)
        eventually(brokers.in_sync)
        load = Load(brokers.bootstrap)
        load.wait_for_more()
        before = brokers.state()
        server.kill()
        for broker in brokers.brokers.values():
            broker.wait_log("no connection to ZooKeeper")
        load.wait_for_more(1_000)  # what needs no change of metadata goes on
        assert brokers.state() == before
        marks = {number: broker.log_size() for number, broker in brokers.brokers.items()}
        server.start()
        for number, broker in brokers.brokers.items():
            broker.wait_log("connected to ZooKeeper again", since=marks[number], timeout=30)
        load.wait_for_more()
        eventually(lambda: brokers.controller >= 0)
        eventually(lambda: brokers.state() == before, timeout=30)
        another = NewTopic("another", 1, 3)
        eventually(lambda: _created(brokers.admin, another), timeout=30)
        assert brokers.state() == before
        check(brokers, load)
        brokers.close()


def _created(admin: AdminClient, topic: NewTopic) -> bool:
    [created] = admin.create_topics([topic], operation_timeout=10).values()
    try:
        created.result(30)
    except Exception:
        return topic.topic in admin.list_topics(timeout=10).topics
    return True


# --- a start that must fail -----------------------------------------------------------------------


def refusal(broker: BrokerProcess) -> str:
    """What a broker says that does not start."""
    since = broker.log_size()
    broker.launch()
    assert broker.wait() == 1
    return broker.wait_log("Error: ", since=since)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"zookeeper.connect": "host:port"}, "'host:port' is no ZooKeeper address"),
        ({"zookeeper.connect": "127.0.0.1:1"}, "no ZooKeeper answers at 127.0.0.1:1 within 0.5 s"),
    ],
)
def test_an_address_where_no_zookeeper_is(
    start_broker: Callable[..., BrokerProcess], settings: dict[str, str], reason: str
) -> None:
    settings = {**settings, "zookeeper.connection.timeout.ms": "500"}
    assert reason in refusal(start_broker(launch=False, settings=settings))


def test_a_wrong_chroot_and_the_data_of_another_cluster(
    start_broker: Callable[..., BrokerProcess], zookeeper: str, unique: Callable[[], str]
) -> None:
    ours, others = f"{zookeeper}/{unique()}", f"{zookeeper}/{unique()}"
    broker = start_broker("one", settings={"zookeeper.connect": ours})
    start_broker("two", settings={"zookeeper.connect": others}).terminate()
    cluster = _cluster_id(broker)
    broker.terminate()
    broker.settings["zookeeper.connect"] = f"{ours}-wrong"
    assert f"the data folders belong to cluster {cluster}" in refusal(broker)
    broker.settings["zookeeper.connect"] = others
    reason = refusal(broker)
    assert "this is cluster" in reason
    assert f"the data folders belong to cluster {cluster}" in reason
    broker.settings["zookeeper.connect"] = ours
    broker.start()
    assert _cluster_id(broker) == cluster


def test_a_broker_is_started_twice(
    start_broker: Callable[..., BrokerProcess], zookeeper: str, unique: Callable[[], str]
) -> None:
    settings = {"zookeeper.connect": f"{zookeeper}/{unique()}", "broker.id": "3"}
    first = start_broker("first", settings=settings)
    again = start_broker("again", launch=False, settings=settings, data_dir=first.data_dir)
    assert "in use" in refusal(again)
    elsewhere = start_broker("elsewhere", launch=False, settings=settings)
    expected = f"Another broker is registered with broker id 3, at {first.bootstrap}: give this"
    assert expected in refusal(elsewhere)
    assert _cluster_id(first)
    second = start_broker("second", settings={**settings, "broker.id": "4"})
    assert _cluster_id(first) == _cluster_id(second)


def _cluster_id(broker: BrokerProcess) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    return str(admin.describe_cluster(request_timeout=10).result().cluster_id)
