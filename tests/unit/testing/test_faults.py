"""Faults on requests, put before a handler of their own: who is hit, how often, and with what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.dispatch.context import Request
from ottla.dispatch.table import handles
from ottla.errors import ErrorCode, KafkaError
from ottla.net.connection import Hangup, NotYet
from ottla.protocol.apis import ApiKey
from ottla.runtime.waiters import Deferred
from ottla.testing.clock import ShiftedClock
from ottla.testing.disk import Disk
from ottla.testing.faults import Fault, Faults

IMAGE = SimpleNamespace(topic_names={})
SERVICES: Any = SimpleNamespace(image=IMAGE)


class Guest:
    """A connection: all that faults do with one is close it."""

    def __init__(self, closed: list[str | None]) -> None:
        self.close = closed.append


class Kitchen:
    """Handlers that remember whom they served, and the faults before them."""

    def __init__(self) -> None:
        self.faults = Faults(Disk(), ShiftedClock())
        self.served: list[str] = []
        self.pending: Deferred[str] = Deferred()
        self.closed: list[str | None] = []

    def ask(self, name: str = "x", *, key: ApiKey = ApiKey.HEARTBEAT, later: str = "") -> Any:
        def failure(request: Request[Any], error: KafkaError) -> str:
            return error.code.name

        @handles(key, range(5), failure=failure)
        def handler(request: Request[Any], services: Any) -> Any:
            if later == "its turn":
                raise NotYet
            self.served.append(name)
            if later == "deferred":
                return self.pending
            if later == "coroutine":
                return self._cook(name)
            return f"for {name}"

        connection: Any = Guest(self.closed)
        body = SimpleNamespace(acks=1 if name != "acks=0" else 0)
        body.__slots__ = ()
        return self.faults.wrap(handler)(Request(0, name, connection, body), SERVICES)

    async def _cook(self, name: str) -> str:
        await asyncio.sleep(0)
        self.served.append(f"{name} cooked")
        return f"for {name}"


@pytest.fixture
def kitchen() -> Kitchen:
    return Kitchen()


def outcome(work: Callable[[], Any]) -> str:
    try:
        return str(work())
    except KafkaError as error:
        return error.code.name
    except Hangup:
        return "cut"


def test_a_fault_lets_some_pass_hits_some_and_is_over(kitchen: Kitchen) -> None:
    fault = kitchen.faults.error("REBALANCE_IN_PROGRESS", "Heartbeat", after=1, times=2)
    seen = [outcome(kitchen.ask) for _ in range(5)]
    assert seen == ["for x", "REBALANCE_IN_PROGRESS", "REBALANCE_IN_PROGRESS", "for x", "for x"]
    assert (fault.hits, fault.over, len(kitchen.served)) == (2, True, 3)
    fault.wait_hit(2)
    with pytest.raises(AssertionError, match="2 of 3 requests"):
        fault.wait_hit(3, timeout=0.01)


def test_the_first_fault_that_wants_a_request_has_it(kitchen: Kitchen) -> None:
    kitchen.faults.error(ErrorCode.ILLEGAL_GENERATION, "Heartbeat", client_id="a")
    kitchen.faults.disconnect("Heartbeat", times=None)
    assert [outcome(lambda n=n: kitchen.ask(n)) for n in "aab"] == [
        "ILLEGAL_GENERATION",
        "cut",
        "cut",
    ]


def test_a_cancelled_fault_and_a_healed_broker_hit_nothing(kitchen: Kitchen) -> None:
    kitchen.faults.disconnect(times=None).cancel()
    assert outcome(kitchen.ask) == "for x"
    kitchen.faults.disconnect(times=None)
    kitchen.faults.heal()
    assert outcome(kitchen.ask) == "for x"


@pytest.mark.parametrize("processed", [False, True])
def test_whether_the_request_counts_is_said(kitchen: Kitchen, processed: bool) -> None:
    kitchen.faults.error("UNKNOWN_MEMBER_ID", "Heartbeat", processed=processed)
    kitchen.faults.disconnect("Heartbeat", processed=processed)
    assert [outcome(kitchen.ask), outcome(kitchen.ask)] == ["UNKNOWN_MEMBER_ID", "cut"]
    assert len(kitchen.served) == (2 if processed else 0)


@pytest.mark.parametrize("kind", ["error", "drop", "delay", "disconnect"])
async def test_a_request_that_waits_for_its_turn_is_counted_when_it_has_come(
    kitchen: Kitchen, kind: str
) -> None:
    """It is handed in twice. The first time nothing is done about it."""
    faults = kitchen.faults
    made: dict[str, Callable[[], Fault]] = {
        "error": lambda: faults.error("UNKNOWN_MEMBER_ID", "Heartbeat", processed=True, after=1),
        "drop": lambda: faults.drop("Heartbeat", after=1),
        "delay": lambda: faults.delay(0, "Heartbeat", after=1),
        "disconnect": lambda: faults.disconnect("Heartbeat", processed=True, after=1),
    }
    fault = made[kind]()
    for name in ("passes", "is hit"):
        with pytest.raises(NotYet):
            kitchen.ask(name, later="its turn")
        assert fault.hits == 0
        with suppress(KafkaError, Hangup):
            kitchen.ask(name, later="deferred")
    assert (fault.hits, kitchen.served) == (1, ["passes", "is hit"])


async def test_slow_work_is_done_before_it_fails(kitchen: Kitchen) -> None:
    kitchen.faults.error("UNKNOWN_MEMBER_ID", "Heartbeat", processed=True)
    kitchen.faults.disconnect("Heartbeat", processed=True)
    with pytest.raises(KafkaError):
        await kitchen.ask("a", later="coroutine")
    with pytest.raises(Hangup):
        await kitchen.ask("b", later="coroutine")
    assert kitchen.served == ["a", "a cooked", "b", "b cooked"]


def test_a_producer_that_wants_no_answer_gets_none(kitchen: Kitchen) -> None:
    kitchen.faults.error("NOT_LEADER_OR_FOLLOWER", "Produce", times=None)
    assert outcome(lambda: kitchen.ask("acks=0", key=ApiKey.PRODUCE)) == "cut"
    assert outcome(lambda: kitchen.ask("a", key=ApiKey.PRODUCE)) == "NOT_LEADER_OR_FOLLOWER"


async def test_a_dropped_answer_never_comes_but_the_work_is_done(kitchen: Kitchen) -> None:
    fault = kitchen.faults.drop(times=3)
    silences = [kitchen.ask("a", later=kind) for kind in ("", "deferred", "coroutine")]
    while "a cooked" not in kitchen.served:
        await asyncio.sleep(0)
    kitchen.pending.resolve("late")
    assert [silence.done for silence in silences] == [False, False, False]
    assert fault.hits == 3
    kitchen.faults.release()
    assert len(kitchen.closed) == 3


@pytest.mark.parametrize("kind", ["", "deferred", "coroutine"])
async def test_a_delayed_answer_comes_when_it_is_time(kitchen: Kitchen, kind: str) -> None:
    kitchen.faults.delay(0.02)
    loop = asyncio.get_running_loop()
    started = loop.time()
    late = kitchen.ask("a", later=kind)
    kitchen.pending.resolve("for a")
    assert not late.done
    assert await late == "for a"
    assert loop.time() - started >= 0.015


async def test_healing_sends_what_is_delayed(kitchen: Kitchen) -> None:
    kitchen.faults.delay(60)
    late = kitchen.ask("a")
    kitchen.faults.release()
    assert late.done
    assert late.result() == "for a"


async def test_a_delayed_failure_stays_one(kitchen: Kitchen) -> None:
    kitchen.faults.delay(0.001)
    late = kitchen.ask("a", later="deferred")
    kitchen.pending.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
    with pytest.raises(KafkaError):
        await late


@pytest.mark.parametrize(
    ("options", "said"),
    [({"time": 1}, "no option 'time'"), ({"times": 0}, "1 or more"), ({"after": -1}, "0 or more")],
)
def test_mistakes_are_named(kitchen: Kitchen, options: dict[str, Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        kitchen.faults.drop(**options)


def test_an_error_code_that_is_none_is_named(kitchen: Kitchen) -> None:
    with pytest.raises(ValueError, match="did you mean NOT_LEADER_OR_FOLLOWER"):
        kitchen.faults.error("NOT_LEADER_OF_FOLLOWER", "Produce")


def test_the_clock_jumps_and_settles() -> None:
    clock = ShiftedClock()
    faults = Faults(Disk(), clock)
    before, ticks = clock.now_ms(), clock.monotonic()
    faults.jump_clock(3600)
    assert clock.now_ms() - before >= 3_600_000
    assert clock.monotonic() - ticks < 1000
    faults.jump_clock(-7200)
    assert clock.now_ms() < before
    faults.heal()
    assert abs(clock.now_ms() - before) < 1_000_000
