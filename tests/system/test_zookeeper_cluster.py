"""Three broker processes and a real ZooKeeper: nothing acknowledged is lost, whoever dies.

Where a process is killed, sessions are so long that nobody waits for one to end: the death itself
must be noticed. Only a process that stands still is found out by its session.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.client.wire import Wire
from ottla.errors import KafkaError
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.testing.process import LOOPBACK, BrokerProcess, free_port
from ottla.testing.thread import LoopThread
from ottla.testing.zookeeper import ZooKeeperProcess

PARTITIONS = 3
TOPIC = "t"
SETTINGS = {
    "offsets.topic.num.partitions": 2,
    "offsets.topic.replication.factor": 3,
    "min.insync.replicas": 2,
    "group.initial.rebalance.delay.ms": 0,
}
LONG_SESSION = 60_000
"""So long that nobody waits for its end."""

SHORT_SESSION = 6_000
"""One that ends while a test waits; a broker that gets no processor for a moment keeps it."""

OUTAGE_SECONDS = float(os.environ.get("OTTLA_TEST_OUTAGE_SECONDS", "15"))
"""How long ZooKeeper is away: longer than a session, so that one that is cut off ends it."""

OUTAGE_SESSION = 10_000
"""As long as brokers have to come back after it before they are taken for dead."""


Eventually = Callable[..., Any]


class Door:
    """The address of a broker, which can be shut: it refuses, and the broker lives."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self.watchers = 0  # who is connected and asks nothing: those who wait for its death
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._thread = LoopThread("door")

    def open(self) -> None:
        self._thread.call(self._open(), 10)

    def shut(self) -> None:
        self._thread.do(self._shut, 10)

    def close(self) -> None:
        self.shut()
        self._thread.close()

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._serve, LOOPBACK, self.port)

    def _shut(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = {writer}
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection(LOOPBACK, self._target)
            ends.add(far_writer)
            self._writers.add(far_writer)
            ways = [self._forward(reader, far_writer), self._back(far_reader, writer)]
            tasks = [asyncio.ensure_future(way) for way in ways]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            pass
        finally:
            for end in ends:
                end.transport.abort()
            self._writers -= ends

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.watchers += 1
        try:
            first = await reader.read(1 << 16)
        except OSError:
            return
        finally:
            self.watchers -= 1
        await _pass_on(reader, writer, first)

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _pass_on(reader, writer)


class FlakyDoor(Door):
    """Its first connections end, each after one more answer than the one before."""

    def __init__(self, target: int, cuts: int) -> None:
        super().__init__(target)
        self.made = 0
        self._cuts = cuts

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.made += 1
        if self.made > self._cuts:
            await _pass_on(reader, writer)
            return
        for _ in range(self.made):
            writer.write(await reader.read(1 << 16))
            await writer.drain()


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes = b""
) -> None:
    try:
        data = first or await reader.read(1 << 16)
        while data:
            writer.write(data)
            await writer.drain()
            data = await reader.read(1 << 16)
    except (OSError, RuntimeError):  # the latter is uvloop's, for a connection that is gone
        pass


State = dict[int, tuple[int, list[int]]]
"""Leader and in-sync replicas of each partition."""


def _state(broker: BrokerProcess) -> State:
    """What a broker itself answers."""
    try:
        with closing(Wire(LOOPBACK, broker.port, timeout=60, client_id="test")) as wire:
            asked = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
            [topic] = wire.ask(asked).topics
    except KafkaError as error:
        raise AssertionError("it does not answer yet") from error
    assert len(topic.partitions) == PARTITIONS, "it does not know the topic yet"
    return {
        each.partition_index: (each.leader_id, sorted(each.isr_nodes)) for each in topic.partitions
    }


class Brokers:
    """Three broker processes in one chroot; each behind a door if that is wanted."""

    def __init__(
        self,
        folder: Path,
        connect: str,
        session_ms: int | None,
        eventually: Eventually,
        *,
        doors: bool = False,
    ) -> None:
        self._eventually = eventually
        settings: dict[str, object] = {**SETTINGS, "zookeeper.connect": connect}
        if session_ms is not None:
            settings["zookeeper.session.timeout.ms"] = session_ms
        self.doors: dict[int, Door] = {}
        self.brokers = {
            number: BrokerProcess(
                folder / f"broker-{number}", settings={**settings, "broker.id": number}
            )
            for number in range(3)
        }
        self.bootstrap = ",".join(broker.bootstrap for broker in self.brokers.values())
        for number, broker in self.brokers.items():
            if doors:
                self.doors[number] = door = Door(broker.port)
                door.open()
                broker.settings["advertised.listeners"] = f"PLAINTEXT://{LOOPBACK}:{door.port}"
            broker.launch()
        for broker in self.brokers.values():
            broker.wait_listening()
        self.admin = AdminClient(
            {"bootstrap.servers": self.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 100}
        )

    def create_topic(self) -> None:
        topic = NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})
        for created in self.admin.create_topics([topic]).values():
            created.result(120)

    @property
    def controller(self) -> int:
        return int(self.admin.list_topics(timeout=60).controller_id)

    def states(self) -> list[State]:
        """As each broker that runs knows it: news reach one before the other."""
        return [_state(broker) for broker in self.brokers.values() if broker.alive]

    def state(self) -> State:
        """Wait until they all know the same."""

        def found() -> State | None:
            first, *others = self.states()
            return first if all(other == first for other in others) else None

        state: State = self._eventually(found)
        return state

    def in_sync(self) -> bool:
        return all(isr == [0, 1, 2] for state in self.states() for _, isr in state.values())

    def leader(self, partition: int = 0) -> int:
        return self.state()[partition][0]

    def logged(self, text: str) -> int:
        """How many lines of all brokers have it."""
        return sum(text in line for b in self.brokers.values() for line in b.log().splitlines())

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.kill()
        for door in self.doors.values():
            door.close()


Start = Callable[..., Brokers]
StartLoad = Callable[..., Any]


@pytest.fixture
def start_cluster(
    tmp_path: Path, zookeeper: str, unique: Callable[[], str], eventually: Eventually
) -> Iterator[Start]:
    started: list[Brokers] = []

    def start(
        *, connect: str = "", session_ms: int | None = LONG_SESSION, doors: bool = False
    ) -> Brokers:
        connect = connect or f"{zookeeper}/{unique()}"
        brokers = Brokers(tmp_path, connect, session_ms, eventually, doors=doors)
        started.append(brokers)
        brokers.create_topic()
        return brokers

    yield start
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
        [found] = consumer.committed([TopicPartition(TOPIC, 0)], timeout=120)
        return int(found.offset)
    finally:
        consumer.close()


@pytest.mark.parametrize("role", ["leader", "controller", "follower"])
def test_a_broker_is_killed_under_load(
    start_cluster: Start, start_load: StartLoad, eventually: Eventually, role: str
) -> None:
    brokers = start_cluster()
    eventually(brokers.in_sync)
    load = start_load(brokers.bootstrap)
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
    eventually(lambda: brokers.leader() != victim)
    assert committed_offset(brokers.bootstrap) == 7
    brokers.brokers[victim].start()
    eventually(brokers.in_sync)
    load.check()


def test_the_controller_is_killed_together_with_another_broker(
    start_cluster: Start, start_load: StartLoad, eventually: Eventually
) -> None:
    brokers = start_cluster()
    eventually(brokers.in_sync)
    load = start_load(brokers.bootstrap)
    load.wait_for_more()
    left = next(each for each in brokers.brokers if each != brokers.controller)
    killed = [broker for number, broker in brokers.brokers.items() if number != left]
    for broker in killed:
        broker.kill()
    eventually(lambda: {leader for leader, _ in brokers.state().values()} == {left})
    for broker in killed:
        broker.start()
    eventually(brokers.in_sync)
    load.wait_for_more()
    load.check()


def test_the_leader_stands_still_until_its_session_ends(
    start_cluster: Start, start_load: StartLoad, eventually: Eventually
) -> None:
    brokers = start_cluster(session_ms=SHORT_SESSION)
    eventually(brokers.in_sync)
    load = start_load(brokers.bootstrap)
    load.wait_for_more()
    victim = brokers.leader()
    brokers.brokers[victim].signal(signal.SIGSTOP)
    try:
        load.wait_for_more()
    finally:
        brokers.brokers[victim].signal(signal.SIGCONT)
    eventually(brokers.in_sync)
    load.wait_for_more()
    load.check()


@pytest.mark.parametrize("role", ["controller", "another"])
def test_an_address_refuses_while_its_broker_lives(
    start_cluster: Start, start_load: StartLoad, eventually: Eventually, role: str
) -> None:
    brokers = start_cluster(doors=True)
    eventually(brokers.in_sync)
    load = start_load(brokers.bootstrap)
    load.wait_for_more()
    controller = brokers.controller
    victim = controller if role == "controller" else (controller + 1) % 3
    fenced = f"the registration of broker {victim} was lost; it is registered anew"
    eventually(lambda: brokers.doors[victim].watchers == 2)
    brokers.doors[victim].shut()
    eventually(lambda: brokers.logged(fenced))
    eventually(lambda: brokers.logged(f"broker {victim} lives"))
    load.wait_for_more()  # others lead, though it is back before anybody has noticed
    brokers.doors[victim].open()
    eventually(brokers.in_sync)
    before = brokers.state()
    assert victim not in {leader for leader, _ in before.values()}

    # From now on only its session decides, and that goes on: nothing changes hands again.
    eventually(lambda: brokers.doors[victim].watchers == 2)
    brokers.doors[victim].shut()
    spared = f"broker {victim} refuses connections: only its session decides"
    eventually(lambda: brokers.logged(spared))
    load.wait_for_more()
    assert brokers.logged(fenced) == 1
    assert brokers.state() == before
    brokers.doors[victim].open()
    load.check()
    assert brokers.state() == before


def test_a_killed_broker_does_not_wait_for_its_own_session_to_end(
    start_broker: Callable[..., BrokerProcess], zookeeper: str, unique: Callable[[], str]
) -> None:
    # Nobody else is there to notice its death; it has the lock of its folder, so it may know.
    settings = {
        "zookeeper.connect": f"{zookeeper}/{unique()}",
        "zookeeper.session.timeout.ms": LONG_SESSION,
    }
    broker = start_broker(settings=settings)
    cluster = _cluster_id(broker)
    for _ in range(2):
        broker.kill()
        broker.start()
        assert _cluster_id(broker) == cluster


@pytest.mark.parametrize("way", ["killed", "cut off"])
def test_zookeeper_goes_away_and_comes_back(
    tmp_path: Path, start_cluster: Start, start_load: StartLoad, eventually: Eventually, way: str
) -> None:
    """A server that is killed keeps the sessions, one that nobody can reach ends them all."""
    with ZooKeeperProcess(tmp_path / "zookeeper") as server, closing(Door(server.port)) as door:
        server.start()
        door.open()
        connect = f"{LOOPBACK}:{door.port}/ottla"
        brokers = start_cluster(connect=connect, session_ms=OUTAGE_SESSION)
        eventually(brokers.in_sync)
        load = start_load(brokers.bootstrap)
        load.wait_for_more()
        commit_offset(brokers.bootstrap, 1)
        before = brokers.state()
        marks = {number: broker.log_size() for number, broker in brokers.brokers.items()}
        gone = time.monotonic()
        server.kill() if way == "killed" else door.shut()
        for number, broker in brokers.brokers.items():
            broker.wait_log("no connection to ZooKeeper", since=marks[number], timeout=60)
        # What needs no change of metadata goes on, all the time.
        offset = 1
        while time.monotonic() < gone + OUTAGE_SECONDS or offset < 3:
            offset += 1
            load.wait_for_more(300)
            commit_offset(brokers.bootstrap, offset)
            assert committed_offset(brokers.bootstrap) == offset
            assert brokers.state() == before
        for number, broker in brokers.brokers.items():
            lines = [line.split(": ", 1)[1] for line in _lines(broker.log_since(marks[number]))]
            assert len(lines) == len(set(lines)), "it says so once"
        server.start() if way == "killed" else door.open()
        for number, broker in brokers.brokers.items():
            broker.wait_log("connected to ZooKeeper again", since=marks[number], timeout=60)
            [seconds] = re.findall(r"again after ([0-9.]+) s", broker.log_since(marks[number]))
            assert float(seconds) > OUTAGE_SECONDS / 2, "of the whole outage"
        load.wait_for_more()
        eventually(lambda: brokers.controller >= 0)
        eventually(lambda: _created(brokers.admin, NewTopic("another", 1, 3)))
        # Sessions that have ended are made anew; for as long nobody is taken for dead.
        eventually(lambda: _is_over(gone + OUTAGE_SECONDS + 3 * OUTAGE_SESSION / 1000))
        assert brokers.state() == before
        assert not brokers.logged("is gone (epoch")
        assert committed_offset(brokers.bootstrap) == offset
        load.check()
        assert brokers.state() == before
        brokers.close()


def _lines(log: str) -> list[str]:
    return [line for line in log.splitlines() if " WARNING " in line or " ERROR " in line]


def _is_over(moment: float) -> bool:
    return time.monotonic() > moment


def _created(admin: AdminClient, topic: NewTopic) -> bool:
    [created] = admin.create_topics([topic], operation_timeout=10).values()
    try:
        created.result(30)
    except Exception:
        return topic.topic in admin.list_topics(timeout=60).topics
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


def test_a_start_that_waits_for_zookeeper_says_so(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    settings = {"zookeeper.connect": "127.0.0.1:1", "zookeeper.connection.timeout.ms": "3000"}
    broker = start_broker(launch=False, settings=settings)
    refusal(broker)
    assert "waiting for ZooKeeper at 127.0.0.1:1, for up to 3 s" in broker.log()


def test_a_wrong_chroot_and_the_data_of_another_cluster(
    start_broker: Callable[..., BrokerProcess], zookeeper: str, unique: Callable[[], str]
) -> None:
    ours, others = f"{zookeeper}/{unique()}", f"{zookeeper}/{unique()}"
    broker = start_broker("one", settings={"zookeeper.connect": ours})
    start_broker("two", settings={"zookeeper.connect": others}).terminate()
    cluster = _cluster_id(broker)
    broker.terminate()
    broker.settings["zookeeper.connect"] = f"{ours}-wrong"
    reason = refusal(broker)
    assert f"in ZooKeeper at {zookeeper}: is the chroot right?" in reason
    assert reason.count(f"the data folders belong to cluster {cluster}") == 1
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
    # Its folder has kept nothing of the wrong id.
    elsewhere.settings["broker.id"] = "5"
    elsewhere.start()
    assert _cluster_id(first) == _cluster_id(elsewhere)
    second = start_broker("second", settings={**settings, "broker.id": "4"})
    assert _cluster_id(first) == _cluster_id(second)


def test_a_copy_of_a_living_broker_is_refused(
    start_broker: Callable[..., BrokerProcess], zookeeper: str, unique: Callable[[], str]
) -> None:
    """It has the same folders, by their ids, and their locks: those of its copy."""
    settings = {
        "zookeeper.connect": f"{zookeeper}/{unique()}",
        "zookeeper.session.timeout.ms": LONG_SESSION,
        "broker.id": "3",
    }
    first = start_broker("first", settings=settings)
    copy = start_broker("copy", launch=False, settings=settings)
    shutil.copytree(first.data_dir, copy.data_dir)
    expected = f"Another broker is registered with broker id 3, at {first.bootstrap}: give this"
    assert expected in refusal(copy)
    first.signal(signal.SIGSTOP)  # it lives, and does not answer
    try:
        assert expected in refusal(copy)
    finally:
        first.signal(signal.SIGCONT)
    assert "the registration of broker 3 was lost" not in first.log()
    # Once it is dead the copy is as good as the original, though its session has not ended.
    first.kill()
    copy.start()


def test_a_connection_that_ends_while_a_broker_starts_is_made_again(
    start_broker: Callable[..., BrokerProcess], zookeeper: str, unique: Callable[[], str]
) -> None:
    chroot = unique()
    settings = {"zookeeper.connect": f"{zookeeper}/{chroot}"}
    broker = start_broker(settings=settings)
    cluster = _cluster_id(broker)
    broker.terminate()
    with closing(FlakyDoor(int(zookeeper.rpartition(":")[2]), cuts=4)) as door:
        door.open()
        broker.settings["zookeeper.connect"] = f"{LOOPBACK}:{door.port}/{chroot}"
        broker.settings["zookeeper.connection.timeout.ms"] = "60000"
        since = broker.log_size()
        broker.start()
        assert "trying again" in broker.wait_log("zookeeper.connect: ", since=since)
        assert door.made > 4
        assert _cluster_id(broker) == cluster
        broker.terminate()


def _cluster_id(broker: BrokerProcess) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    return str(admin.describe_cluster(request_timeout=60).result().cluster_id)
