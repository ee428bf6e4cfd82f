"""`ottla produce --transactional-id`: what consumers see of its input, however it ends."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.testing import Broker

OTTLA = str(Path(sys.executable).parent / "ottla")
SECONDS = 250


@pytest.fixture
def broker() -> Iterator[Broker]:
    settings = {"transaction.state.log.num.partitions": 1}
    with Broker(topics={"orders": 1}, config=settings) as made:
        yield made


def start(broker: Broker, *arguments: str) -> subprocess.Popen[str]:
    pipe: Any = subprocess.PIPE
    return subprocess.Popen(
        [OTTLA, "produce", "orders", "-b", broker.bootstrap, "--transactional-id", "i", *arguments],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
    )


def produce(broker: Broker, lines: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    with start(broker, "--json", *arguments) as process:
        out, _ = process.communicate(lines, timeout=SECONDS)
    return process.returncode, json.loads(out)


def seen(broker: Broker) -> list[str]:
    return [(record.value or b"").decode() for record in broker.consume("orders")]


def test_everything_is_one_transaction(broker: Broker) -> None:
    code, report = produce(broker, "one\ntwo\nthree\n")
    assert code == 0
    assert (report["sent"], report["failed"], report["bytes"]) == (3, 0, 11)
    assert seen(broker) == ["one", "two", "three"]


def test_a_line_that_cannot_be_sent_takes_all_with_it(broker: Broker) -> None:
    lines = '{"value": "one"}\n{"value": "two"}\nnonsense\n'
    code, report = produce(broker, lines, "--format", "json")
    assert code == 1
    assert (report["sent"], report["failed"], report["bytes"]) == (0, 2, 0)
    assert "line 3" in report["error"]
    assert "2 records of the open transaction: not committed" in report["error"]
    assert seen(broker) == []


def test_transactions_of_some_records_stay(broker: Broker) -> None:
    lines = "".join(f'{{"value": "{number}"}}\n' for number in range(5))
    code, report = produce(
        broker, f"{lines}nonsense\n", "--format", "json", "--transaction-size", "2"
    )
    assert code == 1
    assert (report["sent"], report["failed"], report["bytes"]) == (4, 1, 4)
    assert seen(broker) == ["0", "1", "2", "3"]


def test_a_record_that_the_broker_refuses(broker: Broker) -> None:
    broker.configure({"max.message.bytes": 1000}, topic="orders")
    code, report = produce(broker, "one\n" + "x" * 2000 + "\n", "--compression", "zstd")
    assert code == 0, "it is small enough when it is compressed"
    noise = random.Random(1).randbytes(4000).hex()
    code, report = produce(broker, f"one\n{noise}\n", "--compression", "zstd")
    assert code == 1
    assert (report["sent"], report["failed"]) == (0, 2)
    assert "not committed" in report["error"]
    assert len(seen(broker)) == 2
    code, report = produce(
        broker, f"one\n{noise}\n", "--compression", "zstd", "--transaction-size", "1"
    )
    assert code == 1
    assert (report["sent"], report["failed"], report["bytes"]) == (1, 1, 3)
    assert len(seen(broker)) == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda each: each.name)
def test_a_signal_aborts(
    broker: Broker, number: signal.Signals, eventually: Callable[..., None]
) -> None:
    with start(broker) as process:
        assert process.stdin is not None
        process.stdin.write("one\n")
        process.stdin.flush()
        partition = broker._services().replicas.by_name("orders", 0)
        eventually(lambda: partition.log.log_end_offset > 0)
        process.send_signal(number)
        _, words = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert "1 record of the open transaction: not committed" in words
    assert seen(broker) == []


def test_a_successor_takes_over_what_a_killed_one_left(
    broker: Broker, eventually: Callable[..., None]
) -> None:
    with start(broker) as process:
        assert process.stdin is not None
        process.stdin.write("lost\n")
        process.stdin.flush()
        partition = broker._services().replicas.by_name("orders", 0)
        eventually(lambda: partition.log.log_end_offset > 0)
        process.kill()
        process.communicate(timeout=SECONDS)
    assert produce(broker, "kept\n")[0] == 0
    assert seen(broker) == ["kept"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--acks", "1", "--transactional-id", "i"), "exclude each other"),
        (("--transaction-size", "2"), "--transaction-size needs --transactional-id"),
        (("--transactional-id", ""), "--transactional-id is empty"),
    ],
)
def test_options_that_do_not_fit(arguments: tuple[str, ...], words: str) -> None:
    ended = subprocess.run(
        [OTTLA, "produce", "orders", "-b", "127.0.0.1:1", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 2
    assert words in ended.stderr


@pytest.mark.parametrize(
    ("seconds", "problem"),
    [("3000", "2147 s at most, not 3000"), ("2000", "is longer than the brokers allow")],
)
def test_a_time_out_that_is_too_long_is_refused(broker: Broker, seconds: str, problem: str) -> None:
    with start(broker, "--timeout", seconds) as process:
        _, words = process.communicate(timeout=SECONDS)
    assert process.returncode == 2
    assert "--timeout with --transactional-id: " in words
    assert problem in words
