"""Work in turns: what is done at once, what gives way, what is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.dispatch import turns as module
from ottla.dispatch.turns import AT_ONCE, DONE, IN_ALL, MAX_ENTRIES, InTurns, Turns
from ottla.net.connection import Hangup
from ottla.runtime.waiters import Deferred


@pytest.fixture(autouse=True)
def one_step_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE", 0)


@pytest.fixture
def turns() -> Iterator[Turns]:
    made = Turns()
    yield made
    made.close()


def steps(count: int, said: list[str] | None = None, name: str = "") -> InTurns[str]:
    for number in range(count):
        if said is not None:
            said.append(f"{name}{number}")
        yield 1
    return f"{name} done"


def later(result: object) -> Deferred[Any]:
    assert isinstance(result, Deferred)
    assert result.exclusive
    assert not result.done
    return result


async def test_short_work_is_done_at_once(turns: Turns) -> None:
    assert turns.begin(steps(0, name="it")) == "it done"
    assert len(turns) == 0


async def test_long_work_gives_way_to_others(turns: Turns) -> None:
    said: list[str] = []
    result = later(turns.begin(steps(5, said, "a")))
    for number in range(5):
        said.append(f"other{number}")
        await asyncio.sleep(0)
    assert await result == "a done"
    assert said.index("a2") < said.index("other4")
    assert said.index("a4") > said.index("other1")


async def test_a_few_take_turns_and_the_others_wait_for_them(turns: Turns) -> None:
    said: list[str] = []
    results = [later(turns.begin(steps(4, said, name))) for name in "abcd"]
    assert said == ["a0", "b0", "c0", "d0"]  # a first step each
    assert [await result for result in results] == ["a done", "b done", "c done", "d done"]
    assert AT_ONCE == 2
    assert said[4:10] == ["a1", "b1", "a2", "b2", "a3", "b3"]


async def test_work_that_nobody_wants_any_more_is_closed(turns: Turns) -> None:
    closed = []

    def work(name: str) -> InTurns[None]:
        try:
            while True:
                yield 1
        finally:
            closed.append(name)

    results = [later(turns.begin(work(name))) for name in "abc"]
    await asyncio.sleep(0)
    for result in results:
        result.abandon()
    assert closed == ["a", "b", "c"]
    assert len(turns) == 0


async def test_an_answer_without_end_is_not_made(turns: Turns) -> None:
    def work() -> InTurns[None]:
        yield 0
        yield MAX_ENTRIES
        yield 1

    with pytest.raises(Hangup, match="the answer has more than 1048576 entries"):
        await later(turns.begin(work()))


async def test_it_waits_for_a_deferred_and_for_a_coroutine(turns: Turns) -> None:
    awaited: Deferred[str] = Deferred()

    async def answer() -> str:
        await asyncio.sleep(0)
        return "world"

    def work() -> InTurns[str]:
        first = yield awaited
        second = yield answer()
        return f"{first} {second}"

    result = later(turns.begin(work()))
    other = later(turns.begin(steps(3, name="other")))
    assert await other == "other done"
    assert not result.done
    awaited.resolve("hello")
    assert await result == "hello world"


async def test_those_that_wait_do_not_keep_others_from_being_worked_on(turns: Turns) -> None:
    awaited: list[Deferred[str]] = [Deferred() for _ in range(IN_ALL - 1)]

    def work(what: Deferred[str]) -> InTurns[str]:
        yield 1
        return str((yield what))

    held = [later(turns.begin(work(what))) for what in awaited]
    assert await later(turns.begin(steps(3, name="other"))) == "other done"
    for what in awaited:
        what.resolve("well")
    assert [await result for result in held] == ["well"] * len(held)


async def test_any_number_may_wait_for_what_they_are_to_answer(turns: Turns) -> None:
    awaited: list[Deferred[str]] = [Deferred() for _ in range(3 * IN_ALL)]

    def work(what: Deferred[str]) -> InTurns[str]:
        yield 1
        yield DONE
        return str((yield what))

    held = [later(turns.begin(work(what))) for what in awaited]
    assert await later(turns.begin(steps(3, name="other"))) == "other done"
    assert len(turns) == len(held)
    held.pop().abandon()
    assert len(turns) == len(held)
    for what in awaited:
        what.resolve("well")
    assert [await result for result in held] == ["well"] * len(held)


async def test_it_is_told_what_went_wrong_there(turns: Turns) -> None:
    awaited: Deferred[str] = Deferred()

    def work() -> InTurns[str]:
        try:
            yield awaited
        except ValueError as error:
            return str(error)
        return ""

    result = later(turns.begin(work()))
    awaited.fail(ValueError("no"))
    assert await result == "no"


async def test_a_failure_is_the_failure_of_the_result(turns: Turns) -> None:
    def work() -> InTurns[str]:
        yield 1
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await later(turns.begin(work()))

    def at_once() -> InTurns[str]:
        raise ValueError("at once")
        yield 1

    with pytest.raises(ValueError, match="at once"):
        turns.begin(at_once())


async def test_a_result_that_comes_later_is_passed_on(turns: Turns) -> None:
    inner: Deferred[str] = Deferred()

    def work() -> InTurns[Deferred[str]]:
        yield 1
        return inner

    result = later(turns.begin(work()))
    while len(turns):
        await asyncio.sleep(0)
    inner.resolve("well")
    assert await result == "well"
