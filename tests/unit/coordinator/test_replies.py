"""Replies that are there, or will be."""

from __future__ import annotations

import pytest

from ottla.coordinator.replies import attempt, gather, then
from ottla.errors import ErrorCode, KafkaError
from ottla.runtime.waiters import Deferred

BAD = KafkaError(ErrorCode.NOT_COORDINATOR)


def refuse() -> int:
    raise BAD


def test_a_reply_that_is_there_is_shaped_at_once() -> None:
    assert then(3, str) == "3"


def test_a_reply_to_come_is_shaped_when_it_comes() -> None:
    coming: Deferred[int] = Deferred()
    shaped = then(coming, str)
    assert isinstance(shaped, Deferred)
    assert not shaped.done
    coming.resolve(3)
    assert shaped.result() == "3"


def test_a_failure_stays_one_and_so_does_a_failing_shape() -> None:
    for settle in (lambda each: each.fail(BAD), lambda each: each.resolve(0)):
        coming: Deferred[int] = Deferred()
        shaped = then(coming, lambda number: 1 // number)
        settle(coming)
        assert isinstance(shaped, Deferred)
        with pytest.raises((KafkaError, ZeroDivisionError)):
            shaped.result()


def test_whoever_gives_up_on_the_shaped_one_gives_up_on_the_other() -> None:
    coming: Deferred[int] = Deferred()
    stopped = []
    coming.on_abandon = lambda: stopped.append(True)
    shaped = then(coming, str)
    assert isinstance(shaped, Deferred)
    shaped.abandon()
    assert stopped == [True]


def test_all_that_are_there_are_gathered_at_once() -> None:
    assert gather([1, attempt(refuse), attempt(lambda: 3)]) == [1, BAD, 3]
    assert gather([]) == []


def test_those_to_come_keep_their_places() -> None:
    first: Deferred[int] = Deferred()
    second: Deferred[int] = Deferred()
    gathered = gather([first, 2, second])
    assert isinstance(gathered, Deferred)
    second.fail(BAD)
    assert not gathered.done
    first.resolve(1)
    assert gathered.result() == [1, 2, BAD]
