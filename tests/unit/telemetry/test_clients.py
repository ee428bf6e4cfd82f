"""The clients that push metrics: when they may, and what is shown of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.runtime.metrics import Reading
from ottla.telemetry import clients, subscriptions
from ottla.telemetry.clients import NO_ID, Telemetry
from ottla.telemetry.otlp import Point
from ottla.testing.clock import ManualClock

CLIENT = {"client_id": "me"}
EVERYTHING = {"all": {"metrics": "*", "interval.ms": "1000"}}


class Bench:
    def __init__(self, subscriptions: Mapping[str, Mapping[str, str]] = EVERYTHING) -> None:
        self.clock = ManualClock()
        self.subscriptions = subscriptions
        self.ids = iter(bytes([n]) * 16 for n in range(1, 256))
        self.telemetry = Telemetry(
            self.clock, lambda: self.subscriptions, lambda: next(self.ids), shown=True
        )

    def push(self, instance_id: bytes, *points: Point, subscription: int | None = None) -> None:
        if subscription is None:
            subscription = self.telemetry._clients[instance_id].wanted.id
        instance = self.telemetry.admit(instance_id, CLIENT, subscription, terminating=False)
        for _ in self.telemetry.keep(instance, points):
            pass

    def shown(self) -> dict[str, Reading]:
        return {one.name: one for one in self.telemetry.read() if one is not None}


def gauge(name: str, value: float, **attributes: str) -> Point:
    return Point(name, False, False, tuple(sorted(attributes.items())), value)


def total(name: str, value: float, *, delta: bool = False) -> Point:
    return Point(name, True, delta, (), value)


def refused(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    return pytest.RaisesExc(KafkaError, check=lambda error: error.code is code)


def test_a_client_without_an_id_is_given_one() -> None:
    bench = Bench()
    instance_id, wanted = bench.telemetry.subscribe(NO_ID, CLIENT)
    assert instance_id != NO_ID
    assert (wanted.metrics, wanted.interval_ms) == (("*",), 1000)
    bench.clock.advance(1000)
    assert bench.telemetry.subscribe(instance_id, CLIENT) == (instance_id, wanted)


def test_who_asks_or_pushes_too_early_is_throttled() -> None:
    bench = Bench()
    instance_id, _ = bench.telemetry.subscribe(NO_ID, CLIENT)
    bench.push(instance_id)  # at once after having asked
    bench.clock.advance(500)
    with refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED):
        bench.push(instance_id)
    with refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED):
        bench.telemetry.subscribe(instance_id, CLIENT)
    assert bench.telemetry.throttled == 2
    bench.clock.advance(500)
    bench.push(instance_id)


def test_the_last_push_may_come_at_any_time_and_is_the_last() -> None:
    bench = Bench()
    instance_id, wanted = bench.telemetry.subscribe(NO_ID, CLIENT)
    bench.push(instance_id)
    bench.telemetry.admit(instance_id, CLIENT, wanted.id, terminating=True)
    bench.clock.advance(5000)
    with refused(ErrorCode.INVALID_REQUEST):
        bench.telemetry.admit(instance_id, CLIENT, wanted.id, terminating=False)


def test_a_changed_subscription_is_told_at_once() -> None:
    bench = Bench()
    instance_id, before = bench.telemetry.subscribe(NO_ID, CLIENT)
    bench.push(instance_id)
    bench.subscriptions = {"all": {"metrics": "a.", "interval.ms": "1000"}}
    with refused(ErrorCode.UNKNOWN_SUBSCRIPTION_ID):
        bench.push(instance_id, subscription=before.id)
    assert bench.telemetry.unknown_subscriptions == 1
    bench.clock.advance(1)
    _, after = bench.telemetry.subscribe(instance_id, CLIENT)
    assert after.metrics == ("a.",)
    bench.push(instance_id)


def test_an_id_that_nobody_has_is_refused() -> None:
    bench = Bench()
    for reserved in (NO_ID, bytes(15) + b"\x01"):
        with refused(ErrorCode.INVALID_REQUEST):
            bench.telemetry.admit(reserved, CLIENT, 0, terminating=False)


def test_another_brokers_client_is_taken_by_its_subscription() -> None:
    first, second = Bench(), Bench()
    instance_id, wanted = first.telemetry.subscribe(NO_ID, CLIENT)
    second.push(instance_id, gauge("g", 1), subscription=wanted.id)
    assert "client_g" in second.shown()


def test_what_was_pushed_is_shown_by_client_and_attributes() -> None:
    bench = Bench()
    instance_id, _ = bench.telemetry.subscribe(NO_ID, CLIENT)
    bench.push(instance_id, total("sent", 4, delta=True))
    bench.clock.advance(1000)
    bench.push(
        instance_id,
        gauge("org.apache.latency.avg", 1.5, node_id="1"),
        gauge("org.apache.latency.avg", 2.5, node_id="2", client_id="x"),
        total("connection.creation.total", 3),
        total("sent", 2, delta=True),
    )
    shown = bench.shown()
    text = clients.shown_id(instance_id)
    latency = shown["client_org_apache_latency_avg"]
    labels = ("client_id", "client_instance_id", "node_id", "attribute_client_id")
    assert latency.names == labels
    assert dict(latency.series) == {("me", text, "1", ""): 1.5, ("me", text, "2", "x"): 2.5}
    assert shown["client_connection_creation_total"].kind == "counter"
    assert dict(shown["client_sent_total"].series) == {("me", text): 6}


def test_a_gauge_is_gone_with_the_push_that_does_not_have_it() -> None:
    bench = Bench()
    instance_id, _ = bench.telemetry.subscribe(NO_ID, CLIENT)
    bench.push(instance_id, gauge("lag", 5, partition="0"), gauge("lag", 7, partition="1"))
    bench.clock.advance(1000)
    bench.push(instance_id, gauge("lag", 6, partition="1"), total("sent", 2, delta=True))
    bench.clock.advance(1000)
    bench.push(instance_id, gauge("lag", 4, partition="1"))
    shown, text = bench.shown(), clients.shown_id(instance_id)
    assert dict(shown["client_lag"].series) == {("me", text, "1"): 4}
    assert dict(shown["client_sent_total"].series) == {("me", text): 2}, "what grows stays"


def test_who_was_forgotten_while_its_push_was_read_takes_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "MOST_CLIENTS", 1)
    monkeypatch.setattr(clients, "MOST_SERIES", 40)
    bench = Bench()
    instance_id, wanted = bench.telemetry.subscribe(NO_ID, CLIENT)
    instance = bench.telemetry.admit(instance_id, CLIENT, wanted.id, terminating=False)
    steps = bench.telemetry.keep(instance, [gauge("g", n, node_id=str(n)) for n in range(40)])
    next(steps)
    other_id, _ = bench.telemetry.subscribe(NO_ID, CLIENT)
    list(steps)
    assert bench.shown() == {}
    bench.push(other_id, *(gauge("g", n, node_id=str(n)) for n in range(40)))
    assert len(bench.shown()["client_g"].series) == 40


def test_a_name_has_one_kind() -> None:
    bench = Bench()
    instance_id, _ = bench.telemetry.subscribe(NO_ID, CLIENT)
    bench.push(instance_id, total("x", 1), gauge("x.total", 2))
    assert bench.telemetry.left_out == 1
    assert list(bench.shown()) == ["client_x_total"]


def test_what_no_scraper_would_take_is_left_out_or_renamed() -> None:
    bench = Bench()
    instance_id, _ = bench.telemetry.subscribe(NO_ID, CLIENT)
    bench.push(
        instance_id,
        total("fell", -1),
        total("none", float("nan")),
        total("x", 1),
        total("y_created_total", 2),
    )
    assert bench.telemetry.left_out == 2
    assert list(bench.shown()) == ["client_x_total", "client_y_total"]


def test_the_silent_are_forgotten_with_their_names() -> None:
    bench = Bench()
    first, _ = bench.telemetry.subscribe(NO_ID, CLIENT)
    bench.push(first, total("x", 1))
    bench.clock.advance(59000)
    assert "client_x_total" in bench.shown()
    bench.clock.advance(2000)
    assert bench.shown() == {}
    assert len(bench.telemetry) == 0
    second, _ = bench.telemetry.subscribe(NO_ID, CLIENT)
    bench.push(second, gauge("x", 1))
    assert list(bench.shown()) == ["client_x"]


def test_everything_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MOST_CLIENTS", 3)
    monkeypatch.setattr(clients, "MOST_OF_A_CLIENT", 5)
    monkeypatch.setattr(clients, "MOST_SERIES", 12)
    monkeypatch.setattr(clients, "MOST_NAMES", 6)
    bench = Bench()
    for _ in range(5):
        instance_id, _ = bench.telemetry.subscribe(NO_ID, CLIENT)
        bench.push(instance_id, *(gauge(f"g{n}", n) for n in range(10)))
    assert len(bench.telemetry) == 3
    shown = bench.shown()
    assert len(shown) <= 6
    assert sum(len(one.series) for one in shown.values()) <= 12
    assert bench.telemetry.left_out > 0


def test_many_series_of_one_metric_are_shown_in_turns() -> None:
    bench = Bench()
    for client in range(8):
        instance_id, _ = bench.telemetry.subscribe(NO_ID, {"client_id": str(client)})
        bench.push(instance_id, *(gauge("g", n, node_id=str(n)) for n in range(clients.TURN)))
    found = list(bench.telemetry.read())
    assert found.count(None) >= 3 * 8, "gathered, named and put together in turns"
    [reading] = [each for each in found if each is not None]
    assert len(reading.series) == 8 * clients.TURN


def test_a_series_with_long_texts_counts_as_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MOST_OF_A_CLIENT", 50)
    monkeypatch.setattr(clients, "MOST_SERIES", 70)
    bench = Bench()

    def pushed(size: int, number: int) -> int:
        before = bench.telemetry.left_out
        instance_id, _ = bench.telemetry.subscribe(NO_ID, CLIENT)
        points = [gauge("g", n, a="x" * size, n=str(n)) for n in range(number)]
        bench.push(instance_id, *points)
        return number - (bench.telemetry.left_out - before)

    assert pushed(1900, 10) == 5, "as 10 each"
    assert pushed(100, 30) == 20, "what is left of 70"
    assert pushed(100, 30) == 0
    bench.clock.advance(61_000)
    assert bench.shown() == {}
    assert pushed(100, 60) == 50


def test_what_a_client_calls_itself_is_kept_in_short() -> None:
    bench = Bench()
    long = {"client_id": "x" * 30_000}
    instance_id, wanted = bench.telemetry.subscribe(NO_ID, long)
    instance = bench.telemetry.admit(instance_id, long, wanted.id, terminating=False)
    assert sum(map(len, instance.labels)) < 300
    kept = [getattr(instance, name) for name in instance.__slots__]
    assert max(len(str(each)) for each in kept) < 300


def test_what_grows_makes_room_for_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MOST_OF_A_CLIENT", 3)
    bench = Bench()
    instance_id, _ = bench.telemetry.subscribe(NO_ID, CLIENT)
    bench.push(instance_id, *(total(f"old{n}", n) for n in range(3)))
    bench.clock.advance(1000)
    bench.push(instance_id, gauge("new0", 1), gauge("new1", 1))
    assert sorted(bench.shown()) == ["client_new0", "client_new1", "client_old0_total"]


def test_a_few_large_pushes_are_read_at_once_and_any_number_of_small_ones() -> None:
    bench = Bench()
    instance_id, wanted = bench.telemetry.subscribe(NO_ID, CLIENT)
    instance = bench.telemetry.admit(instance_id, CLIENT, wanted.id, terminating=False)

    def begin(reading: ExitStack, *sizes: int) -> None:
        of_size = reading.enter_context(bench.telemetry.reading(instance))
        for size in sizes:
            of_size(size)

    with ExitStack() as reading:
        for _ in range(clients.MOST_LARGE):
            begin(reading, 100, 1 << 20)
            begin(reading, 1 << 20 >> 10, clients.SMALL_BYTES)
        with refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED):
            begin(reading, 1 << 20)
        assert bench.telemetry.throttled == 1
    with ExitStack() as reading:
        for _ in range(clients.MOST_LARGE):
            begin(reading, 1 << 20, 1 << 20)


def test_much_is_kept_in_steps() -> None:
    bench = Bench()
    instance_id, wanted = bench.telemetry.subscribe(NO_ID, CLIENT)
    instance = bench.telemetry.admit(instance_id, CLIENT, wanted.id, terminating=False)
    points = [gauge("g", n, node_id=str(n)) for n in range(5_000)]
    assert len(list(bench.telemetry.keep(instance, points))) == 5_000 // clients.STEP


def test_subscriptions_are_read_once_and_not_for_each_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = []

    def noted(pattern: str) -> Callable[[str], bool]:
        compiled.append(pattern)
        return lambda text: text == "me"

    monkeypatch.setattr(subscriptions, "matcher", noted)
    bench = Bench({"s": {"metrics": "a.", "match": "client_id=me"}})
    for _ in range(20):
        _, wanted = bench.telemetry.subscribe(NO_ID, CLIENT)
        assert wanted.metrics == ("a.",)
    assert compiled == ["me"]
    bench.subscriptions = {"s": {"metrics": "b.", "match": "client_id=m."}}
    for _ in range(20):
        _, wanted = bench.telemetry.subscribe(NO_ID, CLIENT)
        assert wanted.metrics == ("b.",)
    assert compiled == ["me", "m."]


def test_a_name_has_one_kind_whatever_happens_while_a_push_is_read() -> None:
    bench = Bench()
    silent, _ = bench.telemetry.subscribe(NO_ID, CLIENT)
    bench.push(silent, gauge("x", 1))
    bench.clock.advance(50_000)
    instance_id, wanted = bench.telemetry.subscribe(NO_ID, CLIENT)
    instance = bench.telemetry.admit(instance_id, CLIENT, wanted.id, terminating=False)
    points = [gauge("x", n, node_id=str(n)) for n in range(2 * clients.STEP)]
    steps = bench.telemetry.keep(instance, points)
    next(steps)
    bench.clock.advance(11_000)
    assert bench.shown() == {}, "the name is free again"
    other, _ = bench.telemetry.subscribe(NO_ID, CLIENT)
    bench.push(other, total("x", 1))
    list(steps)
    assert list(bench.shown()) == ["client_x_total"]


def test_one_client_does_not_take_all_names() -> None:
    bench = Bench()
    greedy, _ = bench.telemetry.subscribe(NO_ID, CLIENT)
    bench.push(greedy, *(gauge(f"g{n}", n) for n in range(clients.MOST_NAMES)))
    other, _ = bench.telemetry.subscribe(NO_ID, CLIENT)
    bench.push(other, gauge("mine", 1))
    assert "client_mine" in bench.shown()


def test_without_subscriptions_nothing_is_asked_for() -> None:
    bench = Bench({})
    assert not bench.telemetry.offered
    _, wanted = bench.telemetry.subscribe(NO_ID, CLIENT)
    assert wanted.metrics == ()
    bench.subscriptions = EVERYTHING
    assert bench.telemetry.offered
