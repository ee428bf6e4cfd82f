"""The test kit as its users have it: real clients against a broker in this process, and its faults.

The examples of docs/testing.md are run as they stand, by pytest in a process of its own.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError as KafkaPythonError

from ottla.client.retention import explain
from ottla.client.router import Router
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.runtime.files import OsFileSystem
from ottla.testing import Broker, BrokerDown, NewTopic
from ottla.testing.folder import LOCK

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
START_LIMIT = 0.050

Send = Callable[[Broker, bytes], str | None]
"""Sends one record to `t` with a client of its own; returns the error, None when it is stored."""


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics=["t"]) as broker:
        yield broker


def values(broker: Broker, topic: str = "t") -> list[bytes | None]:
    return [record.value for record in broker.consume(topic)]


# -- clients ---------------------------------------------------------------------------------


def by_confluent(broker: Broker, value: bytes) -> str | None:
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "client.id": "confluent",
            "enable.idempotence": True,
            "socket.timeout.ms": 1000,
            "message.timeout.ms": 120_000,
            "log_level": 2,
        }
    )
    outcome: list[Any] = []
    producer.produce("t", value, on_delivery=lambda error, _: outcome.append(error))
    assert producer.flush(120) == 0
    return None if outcome[0] is None else str(outcome[0].name())


def by_kafka_python(broker: Broker, value: bytes) -> str | None:
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap,
        client_id="kafka-python",
        enable_idempotence=True,
        request_timeout_ms=1000,
        delivery_timeout_ms=120_000,
        bootstrap_timeout_ms=120_000,
        retry_backoff_ms=20,
    )
    try:
        producer.send("t", value).get(120)
    except KafkaPythonError as error:
        return type(error).__name__
    finally:
        producer.close(timeout=5)
    return None


def by_aiokafka(broker: Broker, value: bytes) -> str | None:
    async def send() -> str | None:
        producer = AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap,
            client_id="aiokafka",
            enable_idempotence=True,
            request_timeout_ms=1000,
            retry_backoff_ms=20,
        )
        try:
            await started(producer)
            await asyncio.wait_for(producer.send_and_wait("t", value), 120)
        except AioKafkaError as error:
            return type(error).__name__
        finally:
            await producer.stop()
        return None

    return asyncio.run(send())


async def started(producer: AIOKafkaProducer) -> None:
    """Start it, again if need be: on a busy machine its first request may take a second."""
    async with asyncio.timeout(120):
        while True:
            try:
                return await producer.start()
            except KafkaConnectionError:
                continue


CLIENTS = {
    "confluent": by_confluent,
    "kafka-python": by_kafka_python,
    "aiokafka": by_aiokafka,
}


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def send(client: str) -> Send:
    return CLIENTS[client]


# -- faults, with each of them ---------------------------------------------------------------


def test_a_retriable_error_is_retried(broker: Broker, send: Send, client: str) -> None:
    fault = broker.faults.error(
        "NOT_LEADER_OR_FOLLOWER", "Produce", topic="t", client_id=client, times=2
    )
    assert send(broker, b"tea") is None
    assert (fault.hits, values(broker)) == (2, [b"tea"])


def test_a_final_error_reaches_the_application(broker: Broker, send: Send) -> None:
    fault = broker.faults.error("TOPIC_AUTHORIZATION_FAILED", "Produce", times=None)
    said = send(broker, b"tea")
    assert said in ("TOPIC_AUTHORIZATION_FAILED", "TopicAuthorizationFailedError")
    assert fault.hits >= 1
    assert values(broker) == []


def test_another_client_or_topic_is_spared(broker: Broker, send: Send, client: str) -> None:
    others = [
        broker.faults.error("UNKNOWN_SERVER_ERROR", "Produce", client_id="other", times=None),
        broker.faults.error("UNKNOWN_SERVER_ERROR", "Produce", topic="other", times=None),
    ]
    assert send(broker, b"tea") is None
    assert [fault.hits for fault in others] == [0, 0]


@pytest.mark.parametrize("processed", [False, True])
def test_a_cut_connection_makes_no_duplicate(broker: Broker, send: Send, processed: bool) -> None:
    fault = broker.faults.disconnect("Produce", processed=processed)
    assert send(broker, b"tea") is None
    assert (fault.hits, values(broker)) == (1, [b"tea"])


def test_a_lost_answer_makes_no_duplicate(broker: Broker, send: Send) -> None:
    fault = broker.faults.drop("Produce")
    assert send(broker, b"tea") is None
    assert (fault.hits, values(broker)) == (1, [b"tea"])


def test_an_error_after_the_append_makes_no_duplicate(broker: Broker, send: Send) -> None:
    fault = broker.faults.error("REQUEST_TIMED_OUT", "Produce", processed=True)
    assert send(broker, b"tea") is None
    assert (fault.hits, values(broker)) == (1, [b"tea"])


def test_a_late_answer_is_waited_for(broker: Broker, send: Send) -> None:
    broker.faults.delay(0.3, "Produce", times=None)
    started = time.monotonic()
    assert send(broker, b"tea") is None
    assert time.monotonic() - started >= 0.3
    assert values(broker) == [b"tea"]


def test_connections_that_end_after_some_requests_are_made_again(
    broker: Broker, send: Send
) -> None:
    fault = broker.faults.disconnect(after=3, times=2)
    assert send(broker, b"tea") is None
    assert values(broker) == [b"tea"]
    assert fault.hits >= 1


def test_a_slow_disk_slows_those_who_ask_for_fsync(broker: Broker, send: Send) -> None:
    broker.configure({"flush.messages": 1}, "t")
    broker.faults.slow_disk(0.3, ["sync"])
    started = time.monotonic()
    assert send(broker, b"tea") is None
    assert time.monotonic() - started >= 0.3


def test_append_time_follows_a_clock_that_jumps(broker: Broker, send: Send) -> None:
    broker.configure({"message.timestamp.type": "LogAppendTime"}, "t")
    assert send(broker, b"before") is None
    broker.faults.jump_clock(-3600)
    assert send(broker, b"after") is None
    before, after = broker.consume("t")
    assert before.timestamp_type == "append"
    assert 3_500_000 < before.timestamp - after.timestamp < 3_700_000


def test_files_have_the_time_of_the_clock_that_wrote_them(broker: Broker, send: Send) -> None:
    # Else a timestamp of the broker's own would seem to lie in the future, and retention not
    # believe it.
    broker.configure({"message.timestamp.type": "LogAppendTime"}, "t")
    broker.faults.jump_clock(30 * 24 * 3600)
    assert send(broker, b"tea") is None
    assert broker.apply_retention() == 0
    assert values(broker) == [b"tea"]
    broker.faults.jump_clock(8 * 24 * 3600)
    assert broker.apply_retention() == 1
    assert values(broker) == []


def test_a_broker_that_does_not_know_a_request_of_ours_is_named(broker: Broker) -> None:
    broker.faults.disconnect("ExplainRetention", times=None)
    with Router(broker.bootstrap) as router, pytest.raises(KafkaError, match="only brokers of"):
        explain(router, "t")


# -- the broker's life, with clients that stay -----------------------------------------------


@pytest.fixture
def staying(broker: Broker, client: str) -> Iterator[Callable[[bytes], None]]:
    """`staying(value)` sends with one producer that lives as long as the test."""
    if client == "confluent":
        rd = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 2})

        def send_rd(value: bytes) -> None:
            rd.produce("t", value)
            assert rd.flush(120) == 0

        yield send_rd
    elif client == "kafka-python":
        plain = KafkaProducer(
            bootstrap_servers=broker.bootstrap, bootstrap_timeout_ms=120_000, retry_backoff_ms=20
        )
        yield lambda value: plain.send("t", value).get(120)
        plain.close(timeout=5)
    else:
        with asyncio.Runner() as runner:
            made = runner.run(_aio_producer(broker.bootstrap))
            yield lambda value: runner.run(asyncio.wait_for(made.send_and_wait("t", value), 120))
            runner.run(made.stop())


async def _aio_producer(bootstrap: str) -> AIOKafkaProducer:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, retry_backoff_ms=20)
    await producer.start()
    return producer


def test_producers_go_on_after_every_kind_of_end(
    broker: Broker, staying: Callable[[bytes], None]
) -> None:
    staying(b"1")
    broker.restart()
    staying(b"2")
    broker.crash()
    broker.start()
    staying(b"3")
    assert broker.faults.disconnect_now() >= 1
    staying(b"4")
    assert values(broker) == [b"1", b"2", b"3", b"4"]


# -- groups ----------------------------------------------------------------------------------


def group_reader(broker: Broker, **settings: Any) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 2,
            **settings,
        }
    )
    consumer.subscribe(["t"])
    return consumer


def take(consumer: Consumer, count: int, timeout: float = 120.0) -> list[bytes | None]:
    found: list[bytes | None] = []
    deadline = time.monotonic() + timeout
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message.value())
    return found


def test_lag_is_what_a_group_has_before_it(broker: Broker) -> None:
    assert broker.lag("readers") == {}
    broker.produce("t", "1", "2", "3")
    consumer = group_reader(broker)
    assert take(consumer, 2) == [b"1", b"2"]
    consumer.commit(offsets=None, asynchronous=False)
    lag = broker.lag("readers")[TopicPartition("t", 0)]
    broker.produce("t", "4")
    assert broker.lag("readers", "t") == {TopicPartition("t", 0): lag + 1}
    assert broker.lag("readers", "other") == {}
    consumer.close()
    broker.crash()
    broker.start()
    assert broker.lag("readers") == {TopicPartition("t", 0): lag + 1}


def test_a_group_finds_its_coordinator_in_the_end(broker: Broker) -> None:
    broker.produce("t", "1")
    fault = broker.faults.error("COORDINATOR_NOT_AVAILABLE", "FindCoordinator", times=2)
    consumer = group_reader(broker)
    assert take(consumer, 1) == [b"1"]
    assert fault.hits == 2
    consumer.close()


def test_an_offset_out_of_range_resets_the_reader(broker: Broker) -> None:
    broker.produce("t", "1", "2")
    consumer = group_reader(broker)
    assert take(consumer, 2) == [b"1", b"2"]
    fault = broker.faults.error("OFFSET_OUT_OF_RANGE", "Fetch", topic="t")
    assert take(consumer, 2) == [b"1", b"2"]
    assert fault.hits == 1
    consumer.close()


def test_errors_of_fetches_reach_readers_with_sessions(broker: Broker) -> None:
    broker.produce("t", "1")
    fault = broker.faults.error("NOT_LEADER_OR_FOLLOWER", "Fetch", topic="t", times=2)
    consumer = KafkaConsumer(
        "t",
        bootstrap_servers=broker.bootstrap,
        auto_offset_reset="earliest",
        bootstrap_timeout_ms=120_000,
        consumer_timeout_ms=120_000,
    )
    assert next(consumer).value == b"1"
    assert fault.hits == 2
    consumer.close()


async def test_an_asynchronous_reader_survives_a_restart(broker: Broker) -> None:
    async with AIOKafkaConsumer(
        "t",
        bootstrap_servers=broker.bootstrap,
        auto_offset_reset="earliest",
        retry_backoff_ms=20,
        metadata_max_age_ms=1000,
    ) as consumer:
        broker.produce("t", "1")
        assert (await asyncio.wait_for(consumer.getone(), 120)).value == b"1"
        await asyncio.to_thread(broker.restart)
        broker.produce("t", "2")
        assert (await asyncio.wait_for(consumer.getone(), 120)).value == b"2"


# -- disks -----------------------------------------------------------------------------------


def test_one_full_folder_takes_only_its_own_partitions() -> None:
    with Broker(folders=2, topics=["a", "b"]) as broker:
        broker.produce("a", "1")
        broker.produce("b", "1")
        homes = {
            topic: next(each for each in broker.data_dirs if (Path(each) / f"{topic}-0").is_dir())
            for topic in ("a", "b")
        }
        assert homes["a"] != homes["b"]
        # metadata is kept in the first folder; fill the other one
        full, spared = ("a", "b") if homes["b"] == broker.data_dirs[0] else ("b", "a")
        broker.faults.full_disk(folder=homes[full])
        with pytest.raises(KafkaError) as refused:
            broker.produce(full, "2")
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        broker.produce(spared, "2")
        assert broker.running
        broker.faults.free_disk()
        broker.restart()
        assert (len(values(broker, full)), len(values(broker, spared))) == (1, 2)


def test_a_power_cut_takes_what_was_not_synced_and_no_more(broker: Broker) -> None:
    broker.create_topic("safe", config={"flush.messages": 1})
    for n in range(20):
        broker.produce("safe", str(n))
    broker.produce("t", "1")
    broker.crash(power_loss=True)
    broker.start()
    assert len(values(broker, "safe")) == 20
    assert values(broker) == []
    assert broker.topics() == {"safe": 1, "t": 1}
    broker.produce("t", "2")
    assert values(broker) == [b"2"]


def test_kill_9_loses_nothing_that_was_acknowledged(broker: Broker) -> None:
    for turn in range(5):
        broker.produce("t", *map(str, range(10)))
        broker.crash()
        broker.start()
        assert len(values(broker)) == 10 * (turn + 1)


# -- its life --------------------------------------------------------------------------------


def test_a_broker_starts_in_less_than_50_milliseconds() -> None:
    """Of processor time, in the median: other tests run on these cores at the same time."""
    Broker().close()  # what is loaded and compiled once is not the question
    times = []
    for _ in range(11):
        started = time.process_time()
        broker = Broker(topics=["orders"])
        with socket.create_connection(("127.0.0.1", broker.port), timeout=5):
            times.append(time.process_time() - started)
        broker.close()
    assert statistics.median(times) < START_LIMIT


def test_nothing_is_left_of_a_closed_broker() -> None:
    Broker().close()  # the first event loop of a process makes a pipe that stays
    gc.collect()  # what others left is not counted, now or later
    before = set(threading.enumerate())
    descriptors = len(os.listdir("/proc/self/fd"))
    broker = Broker(topics=["a"])
    broker.produce("a", "1")
    broker.close()
    broker.close()
    assert not broker.data_dir.exists()
    assert set(threading.enumerate()) <= before
    gc.collect()  # a loop's own descriptors are in a cycle
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    with pytest.raises(BrokerDown, match="closed"):
        broker.produce("a", "2")
    with pytest.raises(BrokerDown, match="closed"):
        broker.start()


def test_a_given_folder_is_closed_cleanly_and_kept(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "data", topics=["a"]) as broker:
        broker.produce("a", "1")
    assert list(tmp_path.rglob(".kafka_cleanshutdown"))
    with Broker(data_dir=tmp_path / "data") as broker:
        assert values(broker, "a") == [b"1"]


def test_a_broker_that_cannot_start_says_why_and_leaves_nothing() -> None:
    before = set(threading.enumerate())
    with Broker() as first:
        with pytest.raises(Exception, match="cannot listen on"):
            Broker(port=first.port)
        with pytest.raises(ValueError, match=r"num\.partition\b"):
            Broker({"num.partition": 3})
        with pytest.raises(KafkaError):
            Broker(topics=["not a name"])
        with pytest.raises(TypeError, match="list of names"):
            Broker(topics="orders")
    assert set(threading.enumerate()) <= before


def test_brokers_live_side_by_side() -> None:
    with Broker(topics=[NewTopic("a", 2)]) as one, Broker(topics={"b": 3}) as two:
        assert one.port != two.port
        assert (one.topics(), two.topics()) == ({"a": 2}, {"b": 3})


def test_a_condition_may_not_call_the_broker_it_runs_in(broker: Broker) -> None:
    seen: list[str] = []

    def condition(request: Any) -> bool:
        try:
            broker.produce("t", "from inside")
        except RuntimeError as error:
            seen.append(str(error))
        return False

    broker.faults.drop("Produce", when=condition)
    assert by_confluent(broker, b"tea") is None
    assert "inside the broker" in seen[0]


def test_records_are_placed_and_described(broker: Broker) -> None:
    broker.create_topic("three", 3)
    made = broker.produce("three", "a", None, "c", "d", headers={"h": "x"}, timestamp_ms=1234)
    assert [(each.partition, each.offset) for each in made] == [(0, 0), (1, 0), (2, 0), (0, 1)]
    (keyed,) = broker.produce("three", "k", key="customer")
    assert broker.consume("three", partition=keyed.partition)[-1].key == b"customer"
    first, second, *_ = broker.consume("three", partition=0)
    assert (first.value, first.timestamp, first.header("h")) == (b"a", 1234, b"x")
    assert broker.consume("three", partition=1)[0].value is None
    assert broker.consume("three", partition=0, offset=1)[0] == second
    with pytest.raises(AssertionError, match=r"0 of 1 records after 0\.05 s"):
        broker.consume("t", 1, timeout=0.05)
    with pytest.raises(KafkaError, match="no partition 7"):
        broker.produce("three", "x", partition=7)
    with pytest.raises(KafkaError, match="no topic 'absent'"):
        broker.consume("absent")


@pytest.mark.parametrize("topic", ["t", "not-there-yet"])
def test_consume_waits_for_records_that_are_yet_to_come(broker: Broker, topic: str) -> None:
    sender = threading.Timer(0.05, broker.produce, [topic, "late"])
    sender.start()
    [record] = broker.consume(topic, 1)
    sender.join()
    assert record.value == b"late"


def test_settings_and_metrics_can_be_looked_at(broker: Broker) -> None:
    assert broker.configs("t")["retention.ms"] == "604800000"
    broker.configure({"retention.ms": 5000}, "t")
    assert broker.configs("t")["retention.ms"] == "5000"
    broker.configure({"retention.ms": None}, "t")
    assert broker.configs("t")["retention.ms"] == "604800000"
    with pytest.raises(KafkaError):
        broker.configure({"retention.ms": "soon"}, "t")
    broker.configure({"log.retention.ms": 7000})
    assert broker.configs("t")["retention.ms"] == "7000"
    # One that waits for an answer: a request that is sent again is counted again.
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 2})
    producer.produce("t", b"tea")
    assert producer.flush(120) == 0
    assert broker.metrics()['kafka_network_request_metrics_requests_total{request="Produce"}'] == 1
    broker.delete_topic("t")
    assert broker.topics() == {}


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "del broker",
        "raise SystemExit(0)",
        "os.fork() or os._exit(0)",
        "import signal; os.kill(os.getpid(), signal.SIGINT)",
    ],
)
def test_a_forgotten_broker_goes_with_its_process(ending: str, tmp_path: Path) -> None:
    script = (
        "import os\n"
        "from ottla.testing import Broker\n"
        "broker = Broker(topics=['a'])\n"
        "broker.produce('a', 'x')\n"
        "print(broker.data_dir, flush=True)\n"
        f"{ending}\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.stdout.startswith(str(tmp_path)), done.stderr
    assert list(tmp_path.iterdir()) == []
    assert done.stderr == "" or "KeyboardInterrupt" in done.stderr.splitlines()[-1]


def test_a_forked_child_leaves_the_broker_of_its_parent_alone(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from ottla.testing import Broker\n"
        "broker = Broker(topics=['a'])\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    sys.exit(0)\n"
        "os.waitpid(child, 0)\n"
        "broker.produce('a', 'x')\n"
        "assert len(broker.consume('a')) == 1\n"
    )
    subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script], timeout=250, check=True
    )


def test_a_killed_test_run_is_cleaned_up_after_by_the_next_one(tmp_path: Path) -> None:
    def run(*lines: str) -> list[str]:
        script = "\n".join(["import os", "from ottla.testing import Broker", *lines])
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        subprocess.run([sys.executable, "-c", script], timeout=250, check=False, env=environment)
        return [each.name for each in tmp_path.iterdir()]

    (left,) = run("broker = Broker()", "os.kill(os.getpid(), 9)")
    assert run("Broker().close()") == [left], "it might just have been made by another process"
    an_hour_ago = time.time() - 3600
    os.utime(tmp_path / left, (an_hour_ago, an_hour_ago))
    alive = OsFileSystem().lock(str(tmp_path / left / LOCK))
    assert run("Broker().close()") == [left], "its owner lives"
    alive.release()
    assert run("Broker().close()") == []


# -- the page --------------------------------------------------------------------------------


@pytest.mark.timeout(1000)
def test_the_examples_of_the_page_work(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    ours = [block for block in blocks if "testcontainers" not in block]
    assert len(ours) >= 12
    for number, block in enumerate(ours):
        (tmp_path / f"test_example_{number:02}.py").write_text(block)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    module = "ottla.testing.plugin"
    installed = any(each.value == module for each in entry_points(group="pytest11"))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--strict-markers"]
    command += [] if installed else ["-p", module]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert f"{len(ours)} passed" in done.stdout
