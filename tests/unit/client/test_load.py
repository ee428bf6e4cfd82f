from __future__ import annotations

import itertools
import signal
from typing import Any

import confluent_kafka as rd
import pytest

from ottla.client import load
from ottla.client.load import (
    Tally,
    Window,
    consume_load,
    counting,
    letters,
    percentiles,
    picked,
    produce_load,
)


class Time:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    fake = Time()
    monkeypatch.setattr(load, "time", fake)
    return fake


def test_letters_are_capitals_of_the_size_asked_for_and_differ() -> None:
    values = list(itertools.islice(letters(50), 100))
    assert {len(value) for value in values} == {50}
    assert all(value.isalpha() and value.isupper() for value in values)
    assert len(set(values)) > 90


def test_counting_and_picked() -> None:
    assert list(itertools.islice(counting(), 3)) == [b"0", b"1", b"2"]
    assert set(itertools.islice(picked([b"a", b"b"]), 100)) == {b"a", b"b"}


def test_percentiles_are_kafkas() -> None:
    assert percentiles([float(n) for n in range(1000)]) == (500.0, 950.0, 990.0, 999.0)
    assert percentiles([7.0]) == (7.0, 7.0, 7.0, 7.0)
    assert percentiles([]) == (0.0, 0.0, 0.0, 0.0)


def test_a_window_ends_after_its_interval_and_the_next_one_starts_empty(clock: Time) -> None:
    windows: list[Window] = []
    tally = Tally(10, 5.0, windows.append)
    tally.add(2.0, 100)
    tally.add(4.0, 100)
    tally.look()
    assert windows == []
    clock.now += 5.0
    tally.look()
    assert windows == [Window(2, 200, 5.0, 3.0, 4.0)]
    tally.add(1.0, 50)
    clock.now += 5.0
    tally.look()
    assert windows[1] == Window(1, 50, 5.0, 1.0, 1.0)
    total = tally.total()
    assert (total.records, total.bytes, total.seconds, total.longest) == (3, 250, 10.0, 4.0)
    assert total.rate == pytest.approx(0.3)


def test_a_window_without_records_is_not_reported(clock: Time) -> None:
    tally = Tally(10, 1.0, lambda _window: pytest.fail("nothing happened"))
    clock.now += 2.0
    tally.look()


def test_a_pace_is_behind_or_ahead(clock: Time) -> None:
    pace = load.Pace(10)
    assert pace.ahead(5) == pytest.approx(0.5)
    clock.now += 1.0
    assert pace.ahead(5) < 0
    assert load.Pace(-1).ahead(10**9) == 0.0


class FakeMessage:
    def __init__(self, value: bytes) -> None:
        self._value = value

    def latency(self) -> float:
        return 0.25

    def __len__(self) -> int:
        return len(self._value)


class FakeProducer:
    """Delivers on poll; every third record fails if told so."""

    failing = False

    def __init__(self, config: dict[str, Any], logger: object = None) -> None:
        self.config = config
        self.waiting: list[tuple[bytes, Any]] = []
        self.count = 0
        self.calls: list[str] = []
        made.append(self)

    def produce(self, topic: str, value: bytes, *, on_delivery: Any) -> None:
        self.waiting.append((value, on_delivery))

    def poll(self, _timeout: float) -> None:
        while self.waiting:
            value, callback = self.waiting.pop(0)
            self.count += 1
            failed = self.failing and self.count % 3 == 0
            callback(rd.KafkaError(7, "late") if failed else None, FakeMessage(value))

    def __len__(self) -> int:
        return len(self.waiting)

    def init_transactions(self) -> None:
        self.calls.append("init")

    def begin_transaction(self) -> None:
        self.calls.append("begin")

    def commit_transaction(self) -> None:
        self.calls.append("commit")


made: list[FakeProducer] = []


@pytest.fixture
def producers(monkeypatch: pytest.MonkeyPatch) -> list[FakeProducer]:
    made.clear()
    monkeypatch.setattr(rd, "Producer", FakeProducer)
    monkeypatch.setattr(FakeProducer, "failing", False)
    return made


def test_every_record_is_counted_with_librdkafkas_latency(producers: list[FakeProducer]) -> None:
    sent = produce_load("h:1", "t", 100, letters(10), config={"acks": "1"})
    assert (sent.total.records, sent.total.bytes, sent.failed) == (100, 1000, 0)
    assert sent.total.percentiles == (250.0, 250.0, 250.0, 250.0)
    assert sent.steady is None
    assert producers[0].config["acks"] == "1"


def test_warm_up_records_are_left_out_of_the_second_summary(producers: list[FakeProducer]) -> None:
    told: list[str] = []
    sent = produce_load(
        "h:1", "t", 1000, letters(10), warmup=400, interval=0.0,
        on_steady=lambda: told.append("steady"), on_window=lambda window: told.append("window"),
    )  # fmt: skip
    assert sent.total.records == 1000
    assert sent.steady is not None
    assert sent.steady.records == 600
    assert told.count("steady") == 1
    assert "window" in told[told.index("steady") :]


class InterruptedProducer(FakeProducer):
    """Ctrl-C comes while librdkafka hands on the report of record 100."""

    again = False

    def poll(self, timeout: float) -> None:
        if self.count >= 100 and self.again:
            signal.raise_signal(signal.SIGINT)
            return  # the broker is gone: nothing is reported any more
        super().poll(timeout)
        if self.count >= 100:
            self.again = True


def test_ctrl_c_in_the_middle_of_a_report_ends_the_sending_and_not_the_counting(
    producers: list[FakeProducer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Tally, latency: float, size: int) -> None:
        add(self, latency, size)
        if self.records == 100:
            signal.raise_signal(signal.SIGINT)

    add = Tally.add
    monkeypatch.setattr(Tally, "add", interrupted)
    sent = produce_load("h:1", "t", 10_000, letters(10))
    assert 100 <= sent.total.records < 1000
    assert (sent.stopped, sent.abandoned, sent.failed) == (True, 0, 0)
    assert producers[0].count == sent.total.records


def test_a_second_ctrl_c_gives_up_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rd, "Producer", InterruptedProducer)
    sent = produce_load("h:1", "t", 10_000, letters(10))
    assert sent.stopped
    assert sent.abandoned > 0
    assert sent.total.records + sent.abandoned < 1000


def test_reading_ends_with_ctrl_c_and_knows_how_long_nothing_came(
    clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FakeConsumer:
        def __init__(self, config: dict[str, Any], logger: object = None) -> None:
            self.left = 3

        def assign(self, _partitions: object) -> None: ...

        def consume(self, _most: int, _timeout: float) -> list[Any]:
            clock.now += 1.0
            self.left -= 1
            if self.left >= 0:
                return [FakeRecord()]
            if self.left == -4:
                signal.raise_signal(signal.SIGINT)
            return []

        def close(self) -> None: ...

    class FakeRecord(FakeMessage):
        def __init__(self) -> None:
            super().__init__(b"value")

        def error(self) -> None: ...

        def key(self) -> None: ...

    monkeypatch.setattr(rd, "Consumer", FakeConsumer)
    monkeypatch.setattr(load, "_beginnings", lambda *_: [])
    done = consume_load("h:1", ["t"], 10, timeout=60.0)
    assert (done.total.records, done.total.seconds, done.idle) == (3, 7.0, 4.0)
    assert (done.enough, done.stopped) == (False, True)
    done = consume_load("h:1", ["t"], 3)
    assert (done.idle, done.enough, done.stopped) == (0.0, True, False)


def test_failures_are_counted_and_the_first_is_kept(
    producers: list[FakeProducer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeProducer, "failing", True)
    sent = produce_load("h:1", "t", 9, letters(1))
    assert (sent.total.records, sent.failed) == (6, 3)
    assert sent.first_failure is not None
    assert sent.first_failure.code.name == "REQUEST_TIMED_OUT"


def test_transactions_are_begun_and_the_last_one_is_committed(
    producers: list[FakeProducer],
) -> None:
    produce_load("h:1", "t", 3, letters(1), transaction=1000.0, config={"transactional.id": "x"})
    assert producers[0].calls == ["init", "begin", "commit"]


def test_a_transaction_that_ends_with_the_last_record_is_committed_once(
    producers: list[FakeProducer],
) -> None:
    produce_load("h:1", "t", 2, letters(1), transaction=0.0, config={"transactional.id": "x"})
    assert producers[0].calls == ["init", "begin", "commit", "begin", "commit"]
