"""Threads for waiting, children for computing."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from ottla.runtime import workers as module
from ottla.runtime.workers import ChildDied, NoChild, Workers


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    pool = Workers(idle_seconds=60)
    yield pool
    pool.close()


async def test_a_thread_is_not_the_loops(workers: Workers) -> None:
    assert await workers.run_in_thread(threading.get_ident) != threading.get_ident()


async def test_arguments_and_errors_pass_through_a_thread(workers: Workers) -> None:
    assert await workers.run_in_thread(int, "ff", base=16) == 255
    with pytest.raises(ValueError, match="invalid literal"):
        await workers.run_in_thread(int, "x")


async def test_what_computes_natively_does_not_hold_up_what_waits(workers: Workers) -> None:
    go_on = threading.Event()
    computing = [asyncio.ensure_future(workers.run_native(go_on.wait, 60)) for _ in range(20)]
    try:
        assert await workers.run_in_thread(int, "7") == 7
    finally:
        go_on.set()
    assert await asyncio.gather(*computing) == [True] * 20


async def test_a_cancelled_caller_waits_until_the_thread_has_ended(workers: Workers) -> None:
    go_on, running = threading.Event(), threading.Event()
    ended: list[str] = []

    def slow() -> None:
        running.set()
        assert go_on.wait(30)
        ended.append("ended")
        raise ValueError

    task = asyncio.create_task(workers.run_to_end(slow))
    await asyncio.to_thread(running.wait, 30)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["ended"]
    with pytest.raises(ZeroDivisionError):
        await workers.run_to_end(divmod, 1, 0)


async def test_a_child_is_another_process_at_lower_priority(workers: Workers) -> None:
    assert await workers.run_in_child(os.getpid) != os.getpid()
    assert await workers.run_in_child(os.nice, 0) >= 10


async def test_arguments_and_errors_pass_through_a_child(workers: Workers) -> None:
    assert await workers.run_in_child(int, "ff", base=16) == 255
    with pytest.raises(ValueError, match="invalid literal"):
        await workers.run_in_child(int, "x")


async def test_large_results_come_back_whole(workers: Workers) -> None:
    data = os.urandom(3_000_000)
    assert await workers.run_in_child(bytes, data) == data


async def test_a_child_is_used_again(workers: Workers) -> None:
    first = await workers.run_in_child(os.getpid)
    assert await workers.run_in_child(os.getpid) == first
    assert workers.idle_children == 1


async def test_what_a_child_prints_does_not_disturb_its_answers(workers: Workers) -> None:
    await workers.run_in_child(print, "hello")
    assert await workers.run_in_child(abs, -3) == 3


async def test_an_exception_that_cannot_be_pickled_is_described(workers: Workers) -> None:
    with pytest.raises(RuntimeError, match="lock"):
        await workers.run_in_child(threading.Lock)


async def test_a_child_that_died_while_idle_is_replaced(workers: Workers) -> None:
    pid = await workers.run_in_child(os.getpid)
    os.kill(pid, signal.SIGKILL)
    assert await workers.run_in_child(os.getpid) != pid


async def test_a_call_that_kills_its_child_twice_is_given_up(workers: Workers) -> None:
    with pytest.raises(ChildDied, match="exit code 7"):
        await workers.run_in_child(os._exit, 7)
    assert await workers.run_in_child(abs, -1) == 1


async def test_cancelling_kills_the_child(workers: Workers) -> None:
    pid = await workers.run_in_child(os.getpid)
    task = asyncio.create_task(workers.run_in_child(time.sleep, 60))
    await asyncio.sleep(0)
    while workers.idle_children:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_an_idle_child_ends() -> None:
    workers = Workers(idle_seconds=0)
    pid = await workers.run_in_child(os.getpid)
    while workers.idle_children:
        await asyncio.sleep(0.001)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    workers.close()


async def test_as_many_children_as_asked_for_work_side_by_side() -> None:
    workers = Workers(children=2)
    pids = await asyncio.gather(*(workers.run_in_child(os.getpid) for _ in range(2)))
    assert len(set(pids)) == 2
    workers.close()


async def test_a_child_that_cannot_be_started_is_waited_for(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [OSError(errno.EMFILE, "Too many open files")] * 2
    popen = subprocess.Popen

    def start(*args: Any, **kwargs: Any) -> Any:
        if failures:
            raise failures.pop()
        return popen(*args, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", start)
    assert await workers.run_in_child(len, "abc") == 3
    monkeypatch.setattr(module, "_START_PAUSE", 0)
    workers._reap()
    failures += [OSError(errno.EMFILE, "Too many open files")] * 100
    with pytest.raises(NoChild, match="Too many open files"):
        await workers.run_in_child(len, "abc")


def counting(stop: int, pause: float = 0.0) -> Iterator[int]:
    """Runs in a child: its process id, then numbers."""
    yield os.getpid()
    for number in range(stop):
        time.sleep(pause)
        yield number
    if stop == 3:
        raise LookupError("three is too few")


async def test_what_a_generator_yields_arrives_one_by_one(workers: Workers) -> None:
    found = [item async for item in workers.stream_from_child(counting, 5)]
    assert found[0] != os.getpid()
    assert found[1:] == [0, 1, 2, 3, 4]
    assert await workers.run_in_child(os.getpid) == found[0]


async def test_the_error_of_a_generator_comes_after_its_items(workers: Workers) -> None:
    items = workers.stream_from_child(counting, 3)
    found = [await anext(items) for _ in range(4)]
    assert found[1:] == [0, 1, 2]
    with pytest.raises(LookupError, match="too few"):
        await anext(items)
    assert await workers.run_in_child(abs, -1) == 1


async def test_leaving_a_generator_kills_its_child(workers: Workers) -> None:
    async with aclosing(workers.stream_from_child(counting, 1000, 0.01)) as items:
        pid = await anext(items)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert await workers.run_in_child(abs, -1) == 1


async def test_a_generator_whose_child_dies_is_not_repeated(workers: Workers) -> None:
    items = workers.stream_from_child(counting, 1000, 0.01)
    os.kill(await anext(items), signal.SIGKILL)
    with pytest.raises(ChildDied, match="SIGKILL"):
        async for _ in items:
            pass
    assert await workers.run_in_child(abs, -1) == 1
