"""Waiting for the end of the transaction before: how long, and what is told then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.coordinator.transaction.patience import Endings
from ottla.errors import ErrorCode, KafkaError
from ottla.runtime.waiters import Deferred

LONG = 60.0


class Command:
    """Refused until the transaction is over."""

    def __init__(self) -> None:
        self.refusal: KafkaError | None = KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        self.runs = 0
        self.later: Deferred[Any] | None = None

    def __call__(self) -> Any:
        self.runs += 1
        if self.later is not None:
            later, self.later = self.later, None
            return later
        if self.refusal is not None:
            raise self.refusal
        return "added"


async def settled(reply: Any) -> Any:
    return await reply if isinstance(reply, Deferred) else reply


async def test_a_command_that_need_not_wait_does_not() -> None:
    command = Command()
    command.refusal = None
    assert Endings().patiently("orders", command, LONG) == "added"


async def test_another_refusal_is_told_at_once() -> None:
    command = Command()
    command.refusal = KafkaError(ErrorCode.PRODUCER_FENCED)
    with pytest.raises(KafkaError) as caught:
        Endings().patiently("orders", command, LONG)
    assert caught.value.code is ErrorCode.PRODUCER_FENCED
    assert command.runs == 1


async def test_it_is_given_again_when_the_transaction_is_over() -> None:
    endings, command = Endings(), Command()
    reply = endings.patiently("orders", command, LONG)
    assert isinstance(reply, Deferred)
    endings.over("payments")
    assert command.runs == 1
    command.refusal = None
    endings.over("orders")
    assert await settled(reply) == "added"
    endings.over("orders")
    assert command.runs == 2


async def test_the_refusal_is_told_when_the_time_is_up() -> None:
    endings, command = Endings(), Command()
    reply = endings.patiently("orders", command, 0.001)
    with pytest.raises(KafkaError) as caught:
        await settled(reply)
    assert caught.value.code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert command.runs == 2
    endings.over("orders")
    assert command.runs == 2, "nobody waits any more"


async def test_an_end_while_the_refusal_is_on_its_way_is_not_missed() -> None:
    endings, command = Endings(), Command()
    later = command.later = Deferred[Any]()
    reply = endings.patiently("orders", command, LONG)
    endings.over("orders")
    later.fail(KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS))
    assert command.runs == 2, "asked again at once: what was told may be out of date"
    command.refusal = None
    endings.over("orders")
    assert await settled(reply) == "added"


async def test_several_wait_for_one_end() -> None:
    endings = Endings()
    commands = [Command() for _ in range(3)]
    replies = [endings.patiently("orders", command, LONG) for command in commands]
    for command in commands:
        command.refusal = None
    endings.over("orders")
    assert [await settled(reply) for reply in replies] == ["added"] * 3


async def test_a_new_refusal_is_waited_for_too() -> None:
    endings, command = Endings(), Command()
    reply = endings.patiently("orders", command, LONG)
    endings.over("orders")
    await asyncio.sleep(0)
    assert not reply.done
    command.refusal = None
    endings.over("orders")
    assert await settled(reply) == "added"
