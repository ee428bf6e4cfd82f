"""A partition that is offline: everybody who asks for it is told so, with the reason and a way out.

librdkafka calls such a partition unknown, or says nothing and tries for ever.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ottla
from ottla.errors import ErrorCode, KafkaError
from ottla.records.batch import batches
from ottla.testing.process import BrokerProcess

StartBroker = Callable[..., BrokerProcess]

OFFLINE = "orders-0 is offline: "


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerProcess:
    """Two partitions of `orders` with three records each; the first is damaged in its middle."""
    broker = start_broker(settings={"group.initial.rebalance.delay.ms": "0"})
    ottla.Admin(broker.bootstrap).create_topic("orders", partitions=2)
    with ottla.Producer(broker.bootstrap) as producer:
        for number in range(3):
            for partition in range(2):
                producer.send("orders", f"{number}", partition=partition).result()
    broker.kill()
    [log] = Path(broker.data_dir, "orders-0").glob("*.log")
    place = [position for position, _ in batches(log.read_bytes())][1]
    with log.open("r+b") as file:
        file.seek(place + 40)
        file.write(b"\xff\xff\xff\xff")
    broker.start()
    return broker


def run(broker: BrokerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ottla", *arguments],
        env={**os.environ, "OTTLA_BOOTSTRAP": broker.bootstrap},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.mark.parametrize(
    "command",
    [
        ["consume", "orders", "--from-beginning"],
        ["consume", "orders", "--partitions", "0", "--from-beginning"],
        ["offsets", "orders"],
        ["group", "reset", "billing", "--topic", "orders", "--to", "earliest", "--create"],
    ],
    ids=" ".join,
)
def test_commands_say_that_it_is_offline_why_and_what_to_do(
    broker: BrokerProcess, command: list[str]
) -> None:
    done = run(broker, *command)
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: {OFFLINE}")
    assert "is damaged at" in done.stderr
    assert "ottla log repair" in done.stderr


@pytest.mark.parametrize("way", [["--offset", "0"], ["--group", "billing"]], ids=" ".join)
def test_a_command_that_reads_the_others_says_it_too(
    broker: BrokerProcess, way: list[str], eventually: Any
) -> None:
    done = run(broker, "consume", "orders", *way, "--max", "3")
    assert done.stdout == "0\n1\n2\n"
    # The reason is asked for meanwhile, and three records are quickly read.
    words = broker.folder / "words"
    with words.open("wb") as file:
        reading = subprocess.Popen(
            [sys.executable, "-m", "ottla", "consume", "orders", *way],
            env={**os.environ, "OTTLA_BOOTSTRAP": broker.bootstrap},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
        )
    try:
        eventually(lambda: OFFLINE in words.read_text())
    finally:
        reading.kill()
        reading.wait()


def test_describe_shows_it(broker: BrokerProcess) -> None:
    done = run(broker, "topic", "describe", "orders")
    assert done.returncode == 0
    assert done.stdout.splitlines()[2].split()[:2] == ["0", "offline"]
    assert done.stderr.startswith(OFFLINE)
    [described] = json.loads(run(broker, "topic", "describe", "orders", "--json").stdout)
    assert [each["leader"] for each in described["partitions"]] == [None, 1]


@pytest.mark.parametrize(
    "question",
    [
        lambda consumer: consumer.assign("orders", "earliest"),
        lambda consumer: consumer.assign([("orders", 0)], "latest"),
        lambda consumer: consumer.offsets("orders", "latest"),
        lambda consumer: consumer.offsets_for_times({ottla.TopicPartition("orders", 0): 1}),
    ],
)
def test_the_client_is_told_so_too(broker: BrokerProcess, question: Any) -> None:
    with ottla.Consumer(broker.bootstrap) as consumer:
        with pytest.raises(KafkaError, match=f"{OFFLINE}.* is damaged at") as caught:
            question(consumer)
        assert caught.value.code is ErrorCode.LEADER_NOT_AVAILABLE


def test_a_partition_that_does_not_exist_is_called_that(broker: BrokerProcess) -> None:
    with (
        ottla.Consumer(broker.bootstrap) as consumer,
        pytest.raises(KafkaError, match="there is no partition 7 of topic 'orders'; it has 0 to 1"),
    ):
        consumer.assign([("orders", 7)], "earliest")


def test_a_group_that_waits_for_it_finds_it_in_the_log_once(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture, eventually: Any
) -> None:
    with (
        caplog.at_level(logging.WARNING, "ottla.client"),
        ottla.Consumer(broker.bootstrap, group="g", reset="earliest") as consumer,
    ):
        consumer.subscribe("orders")
        assert [record.value for record in consumer.records(limit=3)] == [b"0", b"1", b"2"]
        eventually(lambda: consumer.poll(0.1) or OFFLINE in caplog.text)
        for _ in range(3):
            consumer.poll(0.1)
    assert caplog.text.count(OFFLINE) == 1


def test_a_producer_whose_records_wait_for_it_finds_it_in_the_log(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture, eventually: Any
) -> None:
    producer = ottla.Producer(broker.bootstrap)
    with caplog.at_level(logging.WARNING, "ottla.client"):
        producer.send("orders", "4", partition=0)
        eventually(lambda: OFFLINE in caplog.text)
        assert "Records for it wait" in caplog.text
    with pytest.raises(KafkaError):
        producer.close(timeout=0.1)
