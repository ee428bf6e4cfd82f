"""Transactions over a producer that does what a test says; tests/integration has a real one."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable
from typing import Any

import confluent_kafka as rd
import pytest

import ottla
from ottla.client.producer import ProducerOptions
from ottla.errors import ErrorCode

Outcome = rd.KafkaError | Callable[[], None] | None

AGAIN = rd.KafkaError(rd.KafkaError._TIMED_OUT, "call again", retriable=True)
REFUSED = rd.KafkaError(rd.KafkaError._INCONSISTENT, "a record failed", txn_requires_abort=True)
BROKEN = rd.KafkaError(rd.KafkaError.INVALID_TRANSACTION_TIMEOUT, "too long", fatal=True)
FENCED = rd.KafkaError(rd.KafkaError._FENCED, "fenced", fatal=True)


class Script:
    """librdkafka's transactional calls; each does what is next for it, and by default succeeds."""

    def __init__(self, fake: Any) -> None:
        self.calls: list[str] = []
        self.next: dict[str, deque[Outcome]] = {}
        for name in ("init", "begin", "commit", "abort"):
            setattr(fake, f"{name}_transaction{'s' * (name == 'init')}", self._of(name))

    def plan(self, name: str, *outcomes: Outcome) -> None:
        self.next[name] = deque(outcomes)

    def _of(self, name: str) -> Callable[..., None]:
        def call(timeout: float | None = None) -> None:
            self.calls.append(name)
            outcomes = self.next.get(name)
            outcome = outcomes.popleft() if outcomes else None
            if isinstance(outcome, rd.KafkaError):
                raise rd.KafkaException(outcome)
            if outcome is not None:
                outcome()

        return call


@pytest.fixture
def producer(made: list[Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("ottla.client.transactions._PAUSE", 0.0)
    return ottla.Producer(transactional_id="mover", max_block=0.05)


@pytest.fixture
def script(producer: Any, made: list[Any]) -> Script:
    return Script(made[0])


def test_a_block_is_a_transaction(producer: Any, script: Script, made: list[Any]) -> None:
    for _ in range(2):
        with producer.transaction() as txn:
            txn.post("t", "v")
    assert script.calls == ["init", "begin", "commit", "begin", "commit"]
    assert [record[:2] for record in made[0].accepted] == [("t", b"v")] * 2
    made[0].flush()


def test_calls_that_are_not_over_are_repeated(producer: Any, script: Script) -> None:
    script.plan("init", AGAIN)
    script.plan("commit", AGAIN, AGAIN)
    with producer.transaction():
        pass
    assert script.calls == ["init", "init", "begin", "commit", "commit", "commit"]


def test_a_commit_that_is_refused_is_aborted(producer: Any, script: Script) -> None:
    script.plan("commit", REFUSED)
    script.plan("abort", AGAIN)
    with pytest.raises(ottla.AbortableTransactionError), producer.transaction():
        pass
    with producer.transaction():
        pass
    assert script.calls == ["init", "begin", "commit", "abort", "abort", "begin", "commit"]


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (BROKEN, ottla.FatalTransactionError),
        (FENCED, ottla.ProducerFencedError),
    ],
    ids=["broken", "fenced"],
)
def test_what_cannot_go_on_says_so_every_time(
    producer: Any, script: Script, outcome: rd.KafkaError, kind: type[Exception]
) -> None:
    script.plan("commit", outcome)
    for _ in range(3):
        with pytest.raises(kind), producer.transaction():
            pass
    assert script.calls == ["init", "begin", "commit"]


def test_one_ctrl_c_waits_for_the_commit(producer: Any, script: Script) -> None:
    script.plan("commit", lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), producer.transaction():
        pass
    with producer.transaction():
        pass
    assert script.calls == ["init", "begin", "commit", "begin", "commit"]


def test_two_ctrl_c_do_not(producer: Any, script: Script) -> None:
    def press() -> None:
        signal.raise_signal(signal.SIGINT)
        raise rd.KafkaException(AGAIN)

    script.plan("commit", press, press)
    with pytest.raises(ottla.TransactionInDoubtError), producer.transaction():
        pass
    assert script.calls == ["init", "begin", "commit", "commit"]


def test_ones_own_handler_of_signals_leaves_the_producer_in_doubt(
    producer: Any, script: Script
) -> None:
    def leave(_number: int, _frame: object) -> None:
        raise SystemExit(3)

    before = signal.signal(signal.SIGINT, leave)
    try:
        script.plan("commit", lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(SystemExit), producer.transaction():
            pass
    finally:
        signal.signal(signal.SIGINT, before)
    with pytest.raises(ottla.TransactionInDoubtError), producer.transaction():
        pass


def test_ctrl_c_during_an_abort_leaves_it_for_the_next_time(producer: Any, script: Script) -> None:
    script.plan("abort", lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), producer.transaction():
        raise ZeroDivisionError
    with producer.transaction():
        pass
    assert script.calls == ["init", "begin", "abort", "abort", "begin", "commit"]


def test_ctrl_c_while_it_begins_leaves_nothing_open(producer: Any, script: Script) -> None:
    script.plan("begin", lambda: signal.raise_signal(signal.SIGINT))
    script.plan("abort", rd.KafkaError(rd.KafkaError._STATE, "there is none"))
    with pytest.raises(KeyboardInterrupt), producer.transaction():
        pass
    with producer.transaction():
        pass
    assert script.calls == ["init", "begin", "abort", "begin", "commit"]


def test_a_transaction_needs_an_id(made: list[Any]) -> None:
    producer = ottla.Producer()
    for call in (producer.transaction, producer.init_transactions):
        with pytest.raises(ValueError, match=r"transactional_id='name'"):
            call()
    producer.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"transactional_id": ""}, "not empty"),
        ({"transactional_id": "a", "acks": 1}, 'acks="all"'),
        ({"transactional_id": "a", "idempotent": False}, "idempotent"),
        ({"transactional_id": "a", "transaction_timeout": 0.5}, "1 s or more"),
        ({"transactional_id": "a", "transaction_timeout": -1.0}, "1 s or more"),
        ({"transactional_id": "a", "transaction_timeout": 3600.0}, "2147 s at most"),
        ({"transactional_id": "a", "delivery_timeout": 61.0}, "must not be longer"),
        ({"transaction_timeout": 5.0}, "with a transactional_id"),
        ({"config": {"transactional.id": "a"}}, "transactional_id="),
        ({"config": {"transaction.timeout.ms": 1}}, "transaction_timeout="),
    ],
)
def test_options_that_make_no_sense(made: list[Any], options: ProducerOptions, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ottla.Producer(**options)


def test_librdkafka_is_told_of_the_id_and_the_times(made: list[Any]) -> None:
    ottla.Producer(transactional_id="a", transaction_timeout=5.0).close()
    ottla.Producer().close()
    assert made[0].config["transactional.id"] == "a"
    assert made[0].config["transaction.timeout.ms"] == 5_000
    assert made[0].config["delivery.timeout.ms"] == 5_000
    assert made[1].config["delivery.timeout.ms"] == 120_000
    assert "transactional.id" not in made[1].config


def test_errors_keep_the_code_of_what_went_wrong(producer: Any, script: Script) -> None:
    script.plan("commit", BROKEN)
    with pytest.raises(ottla.TransactionError) as caught, producer.transaction():
        pass
    assert caught.value.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert caught.value.fatal
