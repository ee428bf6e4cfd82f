"""Deferred, Signal and Waiter: waiting without polling."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from functools import partial

import pytest

from ottla.runtime.waiters import Deferred, Signal, Waiter


def test_a_deferred_runs_its_callback_in_the_call_that_resolves_it():
    seen: list[int] = []
    deferred: Deferred[int] = Deferred()
    deferred.on_done(lambda done: seen.append(done.result()))
    deferred.resolve(7)
    assert seen == [7]


def test_a_resolved_deferred_stays_what_it_is():
    deferred: Deferred[int] = Deferred()
    deferred.resolve(1)
    deferred.resolve(2)
    deferred.fail(ValueError())
    assert deferred.result() == 1


async def test_a_deferred_can_be_awaited_before_and_after_it_is_resolved():
    later: Deferred[str] = Deferred()
    asyncio.get_running_loop().call_soon(later.resolve, "value")
    assert await later == "value"
    assert await later == "value"


def test_a_failure_that_was_told_leaves_nothing_to_the_garbage_collector():
    class Told(ValueError):
        """One that can be watched."""

    deferred: Deferred[str] = Deferred()
    error = Told()
    deferred.fail(error)
    with contextlib.suppress(Told):
        deferred.result()
    gone = weakref.ref(error)
    gc.disable()
    try:
        del deferred, error
        assert gone() is None
    finally:
        gc.enable()


async def test_awaiting_a_failed_deferred_raises():
    deferred: Deferred[str] = Deferred()
    deferred.fail(KeyError("x"))
    with pytest.raises(KeyError):
        await deferred


def test_an_abandoned_deferred_tells_whoever_works_on_it_and_nobody_else():
    stopped: list[bool] = []
    seen: list[object] = []
    deferred: Deferred[int] = Deferred()
    deferred.on_abandon = lambda: stopped.append(True)
    deferred.on_done(seen.append)
    deferred.abandon()
    deferred.resolve(1)
    assert stopped == [True]
    assert not seen


async def test_a_waiter_fires_when_enough_was_signalled_from_any_side():
    left, right = Signal(), Signal()
    fired = asyncio.Event()
    Waiter(asyncio.get_running_loop(), [left, right], 10, 60, fired.set)
    left.notify(4)
    right.notify(5)
    await asyncio.sleep(0)
    assert not fired.is_set()
    left.notify(1)
    assert not fired.is_set()  # not inside the signalling call
    await asyncio.wait_for(fired.wait(), 60)
    assert not left.waiters
    assert not right.waiters


async def test_a_waiter_fires_at_its_deadline_without_any_signal():
    signal = Signal()
    fired = asyncio.Event()
    Waiter(asyncio.get_running_loop(), [signal], 1, 0.01, fired.set)
    await asyncio.wait_for(fired.wait(), 60)
    assert not signal.waiters


async def test_a_cancelled_waiter_never_fires_and_leaves_no_trace():
    signal = Signal()
    fired: list[bool] = []
    loop, later = asyncio.get_running_loop(), asyncio.Event()
    waiter = Waiter(loop, [signal], 1, 0.0, lambda: fired.append(True))
    Waiter(loop, [Signal()], 1, 0.001, later.set)
    waiter.cancel()
    signal.notify(5)
    await asyncio.wait_for(later.wait(), 60)  # a deadline behind that of the cancelled one
    assert not fired
    assert not signal.waiters


async def test_hurrying_a_signal_wakes_its_waiters_at_once():
    signal = Signal()
    fired = asyncio.Event()
    Waiter(asyncio.get_running_loop(), [signal], 1_000_000, 60, fired.set)
    signal.hurry()
    await asyncio.wait_for(fired.wait(), 60)


async def test_whoever_waited_first_is_woken_first():
    loop = asyncio.get_running_loop()
    signal, woken = Signal(), list[int]()
    waiters = [
        Waiter(loop, [signal], 1, 60.0, partial(woken.append, number)) for number in range(50)
    ]
    signal.notify(1)
    await asyncio.sleep(0)
    assert woken == list(range(len(waiters)))
