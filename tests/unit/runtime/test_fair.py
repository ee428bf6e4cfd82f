"""Threads that callers share fairly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from ottla.runtime.fair import FairThreads


class Gate:
    """Work that ends when it is told to, and what has begun so far."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.permits = threading.Semaphore(0)

    def work(self, name: str) -> str:
        self.begun.append(name)
        self.permits.acquire()
        return name


@pytest.fixture
async def threads() -> AsyncIterator[FairThreads]:
    pool = FairThreads(1, "test")
    yield pool
    pool.close()


async def test_owners_take_turns(threads: FairThreads) -> None:
    gate = Gate()
    many = [threads.run("a", lambda n=n: gate.work(f"a{n}")) for n in range(5)]
    one = threads.run("b", lambda: gate.work("b"))
    for _ in range(6):
        gate.permits.release()
    assert await one == "b"
    assert [await each for each in many] == [f"a{n}" for n in range(5)]
    assert gate.begun == ["a0", "a1", "b", "a2", "a3", "a4"]


async def test_what_is_cancelled_before_its_turn_is_never_done(threads: FairThreads) -> None:
    gate = Gate()
    first, second, third = (threads.run("a", lambda n=n: gate.work(str(n))) for n in range(3))
    second.cancel()
    gate.permits.release()
    gate.permits.release()
    assert (await first, await third) == ("0", "2")
    assert gate.begun == ["0", "2"]
    assert threads.waiting == 0


async def test_cancelling_what_runs_frees_no_thread(threads: FairThreads) -> None:
    gate = Gate()
    first, second = (threads.run(n, lambda n=n: gate.work(n)) for n in "ab")
    while not gate.begun:
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    assert gate.begun == ["a"]
    gate.permits.release()
    gate.permits.release()
    assert await second == "b"


async def test_errors_reach_the_caller(threads: FairThreads) -> None:
    def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await threads.run("a", fail)
    assert await threads.run("a", lambda: 1) == 1


async def test_closing_gives_up_what_has_not_begun() -> None:
    threads, gate = FairThreads(1, "test"), Gate()
    threads.run("a", lambda: gate.work("a"))
    waiting = threads.run("a", lambda: gate.work("b"))
    threads.close()
    gate.permits.release()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(asyncio.CancelledError):
        await threads.run("a", lambda: gate.work("c"))
