"""The reader that Spark's process for a query calls, on a real broker, call by call."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from ottla.client.descriptions import NewTopic
from ottla.client.direct import DirectAdmin
from ottla.client.groups import Groups
from ottla.client.producer import Producer
from ottla.model.ids import TopicPartition
from ottla.pipelines.source import stream
from ottla.pipelines.source.options import ReadOptions
from ottla.pipelines.source.stream import OttlaStreamReader
from ottla.testing import Broker
from ottla.testing.process import BrokerProcess

PATIENCE = 200.0


@pytest.fixture
def new_reader(eventually: Callable[..., Any]) -> Iterator[Callable[..., OttlaStreamReader]]:
    """`new_reader(bootstrap, topic, …)`, as Spark makes one for a query that starts."""
    made: list[OttlaStreamReader] = []
    before = set(threading.enumerate())

    def make(bootstrap: str, topic: str, **options: str) -> OttlaStreamReader:
        given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
        given |= {"startingOffsets": "earliest"} | options
        made.append(OttlaStreamReader(ReadOptions.of(given, streaming=True)))
        return made[-1]

    yield make
    for each in made:
        each.stop()
    eventually(lambda: set(threading.enumerate()) <= before, timeout=PATIENCE)


@pytest.fixture
def patient_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that ends waits for its last commit as long as this machine takes for it."""
    monkeypatch.setattr(stream, "_LAST_COMMIT", PATIENCE)


def create(bootstrap: str, topic: str) -> None:
    with DirectAdmin(bootstrap) as admin:
        admin.create_topic(NewTopic(topic, 1, 1))


def produce(bootstrap: str, topic: str, count: int) -> None:
    with Producer(bootstrap) as producer:
        for number in range(count):
            producer.post(topic, str(number).encode(), partition=0)


def ranges(reader: OttlaStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
    return [(part.value.start, part.value.end) for part in reader.partitions(start, end)]


def committed(bootstrap: str, group: str, topic: str) -> int | None:
    with Groups(bootstrap) as groups:
        found = groups.offsets(group).get(TopicPartition(topic, 0))
        return None if found is None else found.offset


def test_available_now_ends_where_the_logs_ended_when_it_was_prepared(
    new_reader: Callable[..., OttlaStreamReader], bootstrap: str, unique: Callable[..., str]
) -> None:
    topic = unique()
    create(bootstrap, topic)
    produce(bootstrap, topic, 5)
    reader = new_reader(bootstrap, topic)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    produce(bootstrap, topic, 3)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert ranges(reader, start, end) == [(0, 5)]
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
    later = new_reader(bootstrap, topic)
    later.prepareForTriggerAvailableNow()
    assert ranges(later, end, later.latestOffset(end, later.getDefaultReadLimit())) == [(5, 8)]


def test_available_now_fixes_its_end_later_when_nobody_is_there(
    new_reader: Callable[..., OttlaStreamReader],
    start_broker: Callable[..., BrokerProcess],
    unique: Callable[..., str],
) -> None:
    broker, topic = start_broker(), unique()
    create(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, 5)
    broker.kill()
    reader = new_reader(broker.bootstrap, topic, maxOffsetsPerTrigger="2")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    broker.start()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert ranges(reader, start, end) == [(0, 2)]
    produce(broker.bootstrap, topic, 3)
    read = [*ranges(reader, start, end)]
    while (after := reader.latestOffset(end, reader.getDefaultReadLimit())) != end:
        read += ranges(reader, end, after)
        end = after
    assert read == [(0, 2), (2, 4), (4, 5)]


WAITING = """
import sys
from pyspark.sql.streaming.datasource import ReadAllAvailable
from ottla.pipelines.source.options import ReadOptions
from ottla.pipelines.source.stream import OttlaStreamReader

given = {"kafka.bootstrap.servers": sys.argv[1], "subscribe": "orders"}
reader = OttlaStreamReader(ReadOptions.of(given, streaming=True))
reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
"""
SPARK = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]])
print(child.pid, flush=True)
child.wait()
"""


def test_a_reader_that_waits_ends_when_spark_is_killed(eventually: Callable[..., Any]) -> None:
    arrived = threading.Event()

    def hang_up() -> None:
        with suppress(OSError):
            while True:
                listener.accept()[0].close()
                arrived.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        door = threading.Thread(target=hang_up, daemon=True)
        door.start()
        command = [sys.executable, "-c", SPARK, WAITING, "{}:{}".format(*listener.getsockname())]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as spark:
            assert spark.stdout is not None
            child = psutil.Process(int(spark.stdout.readline()))
            try:
                eventually(arrived.is_set, timeout=PATIENCE)
                spark.kill()
                spark.wait()
                eventually(
                    lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE,
                    timeout=PATIENCE,
                )
            finally:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        listener.shutdown(socket.SHUT_RDWR)
    door.join(PATIENCE)


@pytest.mark.usefixtures("patient_commits")
def test_what_trigger_once_has_read_is_committed_when_it_is_started_again(
    new_reader: Callable[..., OttlaStreamReader],
) -> None:
    once = ReadAllAvailable()
    with Broker(topics={"orders": 1}) as broker:
        produce(broker.bootstrap, "orders", 5)
        first = new_reader(broker.bootstrap, "orders", **{"kafka.group.id": "g"})
        end = first.latestOffset(first.initialOffset(), once)
        # The first attempts go wrong, which is when it shows whether anybody waits for them.
        broker.faults.disconnect("OffsetCommit", times=2)
        second = new_reader(broker.bootstrap, "orders", **{"kafka.group.id": "g"})
        assert second.latestOffset(end, once) == end
        # Now Spark ends the process, so that what was not committed by then never will be.
        assert committed(broker.bootstrap, "g", "orders") == 5
        for each in (first, second):
            each.stop()


@pytest.mark.usefixtures("patient_commits")
def test_a_commit_does_not_wait_for_a_topic_that_was_deleted(
    new_reader: Callable[..., OttlaStreamReader],
) -> None:
    once = ReadAllAvailable()
    given = {"kafka.group.id": "g", "failOnDataLoss": "false"}
    with Broker({"auto.create.topics.enable": "false"}, topics={"kept": 1, "gone": 1}) as broker:
        for topic in ("kept", "gone"):
            produce(broker.bootstrap, topic, 5)
        reader = new_reader(broker.bootstrap, "kept,gone", **given)
        end = reader.latestOffset(reader.initialOffset(), once)
        with DirectAdmin(broker.bootstrap) as admin:
            admin.delete_topics(["gone"])
        again = new_reader(broker.bootstrap, "kept,gone", **given)
        assert again.latestOffset(end, once) == end
        assert again._driver is not None
        assert again._driver._commits.flush(0)
        assert committed(broker.bootstrap, "g", "kept") == 5
        for each in (reader, again):
            each.stop()


def test_two_queries_that_share_a_derived_group_are_told(
    new_reader: Callable[..., OttlaStreamReader],
    bootstrap: str,
    unique: Callable[..., str],
    eventually: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = unique()
    create(bootstrap, topic)
    alike = [new_reader(bootstrap, topic) for _ in range(2)]
    apart = new_reader(bootstrap, topic, groupIdPrefix="apart")
    places = [each.initialOffset() for each in (*alike, apart)]

    def step(limit: int = 1) -> bool:
        produce(bootstrap, topic, limit)
        for number, each in enumerate((*alike, apart)):
            places[number] = each.latestOffset(places[number], each.getDefaultReadLimit())
        return caplog.text.count("is also committed to by another query") == len(alike)

    with caplog.at_level(logging.WARNING, "ottla.pipelines"):
        eventually(step, timeout=PATIENCE)
    assert "Group apart" not in caplog.text
    assert "Give one of them a groupIdPrefix or a kafka.group.id of its own." in caplog.text


def test_a_query_whose_driver_commits_for_itself_commits_nothing(
    new_reader: Callable[..., OttlaStreamReader], bootstrap: str, unique: Callable[..., str]
) -> None:
    topic = unique()
    create(bootstrap, topic)
    produce(bootstrap, topic, 5)
    given = {"kafka.group.id": unique(), "startingOffsets": "earliest", "commitOffsets": "false"}
    reader = new_reader(bootstrap, topic, **given)
    limit = reader.getDefaultReadLimit()
    end = reader.latestOffset(reader.initialOffset(), limit)
    assert reader.latestOffset(end, limit) == end
    assert reader._driver is not None
    assert reader._driver._commits._thread is None


@pytest.mark.parametrize("replayed", [False, True])
def test_a_broker_that_goes_under_a_batch_is_in_the_log_and_then_in_progress(
    replayed: bool,
    new_reader: Callable[..., OttlaStreamReader],
    start_broker: Callable[..., BrokerProcess],
    unique: Callable[..., str],
    eventually: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker, topic = start_broker(), unique()
    create(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, 5)
    reader = new_reader(broker.bootstrap, topic)
    start = reader.initialOffset()
    with caplog.at_level(logging.WARNING, "ottla.pipelines"):
        # From here on Spark runs the batch and asks nothing until it has finished.
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        if replayed:
            # It was planned by a process that is no more; this one is only asked for the tasks.
            reader.stop()
            reader = new_reader(broker.bootstrap, topic)
        assert ranges(reader, start, end) == [(0, 5)]
        broker.kill()
        eventually(lambda: f"{broker.bootstrap} cannot be reached" in caplog.text, timeout=PATIENCE)
        broker.start()
        eventually(
            lambda: f"{broker.bootstrap} can be reached again" in caplog.text, timeout=PATIENCE
        )
    reader.latestOffset(end, reader.getDefaultReadLimit())
    report = reader.reportLatestOffset()
    assert report is not None
    assert "Connection refused" in report["lastOutage"]["reason"]
    assert "unreachable" not in report
