"""Transactions for asyncio: the rules are those of `transactions`, the waiting is on a thread.

    async with producer.transaction() as txn:
        await txn.send("invoices", "...")
        await txn.commit_offsets(consumer)

A cancelled task leaves the block as with any exception, so it aborts. What has been begun with the
coordinator is waited for even then: nobody else may use the producer until it is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from ottla.client.errors import ClientError, TransactionError
from ottla.client.transactions import (
    Transactions,
    abort_for,
    check_open,
    named_group,
    of_consumer,
)
from ottla.model.ids import TopicPartition

if TYPE_CHECKING:
    from ottla.client.asynchronous import AsyncConsumer, AsyncProducer
    from ottla.client.records import Delivery, Headers

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")


class AsyncTransaction(Generic[K, V]):
    """As `Transaction`, for `async with`. Made by `AsyncProducer.transaction`."""

    def __init__(self, producer: AsyncProducer[K, V], transactions: Transactions) -> None:
        self._producer = producer
        self._transactions = transactions
        self._state = "not begun"
        self._objection: TransactionError | None = None

    async def send(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Headers | None = None,
    ) -> asyncio.Future[Delivery]:
        """As `AsyncProducer.send`. Nobody has to await the future: a transaction of which a record
        could not be stored is not committed."""
        check_open(self._state)
        record = self._producer._prepare(topic, value, key, partition, timestamp, headers)
        try:
            future = await self._producer._send(record)
        except ClientError as error:
            raise await to_the_end(partial(self._transactions.refused, error)) from None
        future.add_done_callback(_seen)
        return future

    async def commit_offsets(
        self,
        group: AsyncConsumer[Any, Any] | str,
        offsets: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """As `Transaction.commit_offsets`, of an `AsyncConsumer`."""
        check_open(self._state)
        try:
            if isinstance(group, str):
                chosen = await to_the_end(
                    partial(named_group, group, offsets, self._producer._of_group)
                )
            else:
                chosen = await group._run(
                    partial(of_consumer, group._consumer, offsets, self._transactions)
                )
            await to_the_end(partial(self._transactions.send_offsets, chosen))
        except TransactionError as error:
            self._objection = error
            raise

    async def abort(self) -> None:
        """As `Transaction.abort`."""
        check_open(self._state)
        self._state = "aborted"
        await to_the_end(self._transactions.abort)

    async def __aenter__(self) -> Self:
        if self._state != "not begun":
            raise RuntimeError("a transaction is used once; call transaction() for the next one")
        begun = False

        def begin() -> None:
            nonlocal begun
            self._transactions.begin()
            begun = True

        try:
            await to_the_end(begin)
        except asyncio.CancelledError:
            if begun:  # else the open one is another task's
                self._transactions.abandon()
            raise
        self._state = "open"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._state != "open":
            return
        if error is None and self._objection is None:
            self._state = "committing"
            await to_the_end(self._transactions.commit)
            self._state = "committed"
            return
        self._state = "aborted"
        await to_the_end(partial(abort_for, self._transactions, error))
        if error is None and self._objection is not None:
            raise self._objection


async def to_the_end(work: Callable[[], R]) -> R:
    """Run `work` on a thread and leave only when it is over, however often this is cancelled."""
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        if not future.cancelled():
            future.exception()  # it is not told to anybody: the task is to end
        raise


def _seen(future: asyncio.Future[Delivery]) -> None:
    """The end of the transaction tells of the failure, too."""
    if not future.cancelled():
        future.exception()
