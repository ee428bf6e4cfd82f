"""The same three clients for asyncio.

    async with AsyncProducer(value=ottla.JSON) as producer:
        delivery = await producer.send_and_wait("orders", {"id": 7})

    async with AsyncConsumer() as consumer:
        await consumer.assign("orders", "earliest")
        async for record in consumer:
            ...

librdkafka does its own I/O on its own threads; what is left is to wait without blocking the
loop. The producer needs no thread of ours for that: reports arrive on whichever thread serves
them and are carried to the loop many at a time. Consumer and admin run the blocking methods on a
thread, and each of their methods takes exactly the arguments of its namesake. A consumer has one
thread of its own, because librdkafka's consumer belongs to one thread at a time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

from ottla.client.admin import Admin
from ottla.client.async_callbacks import Desk
from ottla.client.async_transactions import AsyncTransaction, to_the_end
from ottla.client.callbacks import RebalanceCallback
from ottla.client.consumer import Consumer
from ottla.client.consumer_options import ConsumerOptions
from ottla.client.decoding import deal_with
from ottla.client.errors import DamagedRecordsError, RecordDecodeError
from ottla.client.forks import LEFT_BEHIND
from ottla.client.inbox import SLICE
from ottla.client.outbox import Sink
from ottla.client.producer import Outgoing, ProducerOptions, Writer
from ottla.client.records import Delivery, Headers, Record
from ottla.client.serializers import Deserializer, Serializer
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")
P = ParamSpec("P")


class AsyncProducer(Writer[K, V]):
    """Sends records from one event loop. Arguments as for `ottla.Producer`."""

    @overload
    def __init__(
        self: AsyncProducer[bytes | str, bytes | str],
        bootstrap: str | Iterable[str] | None = ...,
        **options: Unpack[ProducerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncProducer[bytes | str, V],
        bootstrap: str | Iterable[str] | None = ...,
        *,
        value: Serializer[V],
        **options: Unpack[ProducerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncProducer[K, bytes | str],
        bootstrap: str | Iterable[str] | None = ...,
        *,
        key: Serializer[K],
        **options: Unpack[ProducerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncProducer[K, V],
        bootstrap: str | Iterable[str] | None = ...,
        *,
        key: Serializer[K],
        value: Serializer[V],
        **options: Unpack[ProducerOptions],
    ) -> None: ...

    def __init__(
        self,
        bootstrap: str | Iterable[str] | None = None,
        *,
        key: Serializer[K] | None = None,
        value: Serializer[V] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        super().__init__(bootstrap, key, value, options)
        self._post: _Post | None = None

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
        """Send one record. Awaiting this waits for room in the buffer and gives a future;
        awaiting the future gives the record's `Delivery` or raises `KafkaError`."""
        if self._transactions is not None:
            raise self._outside()
        return await self._send(self._prepare(topic, value, key, partition, timestamp, headers))

    async def _send(self, record: Outgoing) -> asyncio.Future[Delivery]:
        loop = asyncio.get_running_loop()
        if self._post is None or self._post.loop is not loop:
            self._post = _Post(loop)
        post = self._post
        if self._partitioner is not None and record.partition < 0:
            record = await self._place(record)
        future: asyncio.Future[Delivery] = loop.create_future()
        sink = post.sink(future)
        # Who has to wait stands in line: what tasks send one after the other stays in order.
        if post.line.length or self._outbox.settling() or not self._outbox.offer(*record, sink):
            deadline = loop.time() + self._max_block
            async with post.line:
                await self._wait_for_room(record, sink, deadline)
        return future

    async def send_and_wait(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Headers | None = None,
    ) -> Delivery:
        """Send one record and wait until it is stored."""
        future = await self.send(
            topic, value, key=key, partition=partition, timestamp=timestamp, headers=headers
        )
        return await future

    def transaction(self) -> AsyncTransaction[K, V]:
        """As `Producer.transaction`, for `async with`. A commit that has begun is brought to its
        end even if the task is cancelled."""
        return AsyncTransaction(self, self._need_transactions())

    async def init_transactions(self) -> None:
        """As `Producer.init_transactions`."""
        await to_the_end(self._need_transactions().initialize)

    async def partitions(self, topic: str, *, timeout: float = 30.0) -> int:
        """As `Producer.partitions`."""
        return await asyncio.to_thread(self._outbox.partition_count, topic, timeout)

    async def flush(self, timeout: float | None = None) -> None:
        """As `Producer.flush`; all futures of records sent before have settled."""
        await asyncio.to_thread(self._flush, timeout)
        await asyncio.sleep(0)  # the reports that are on their way to this loop

    async def close(self, timeout: float | None = None) -> None:
        """As `Producer.close`."""
        await asyncio.to_thread(self._close, timeout)
        await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _place(self, record: Outgoing) -> Outgoing:
        if self._outbox.knows_partitions(record.topic):
            return self._placed(record)
        return await asyncio.to_thread(self._placed, record)

    async def _wait_for_room(self, record: Outgoing, sink: Sink, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        if pause := self._outbox.settling():
            await asyncio.sleep(pause)
        while not self._outbox.offer(*record, sink):
            if loop.time() >= deadline:
                raise self._buffer_full()
            await asyncio.to_thread(self._outbox.serve, 0.05)


class _Line:
    """A lock that tells how many hold it or wait for it: who asks only whether it is held could
    overtake the one that has been woken to take it."""

    def __init__(self) -> None:
        self.length = 0
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        self.length += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self.length -= 1
            raise

    async def __aexit__(self, *_: object) -> None:
        self.length -= 1
        self._lock.release()


class _Post:
    """Carries reports from any thread to one loop, waking it once for many."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.line = _Line()  # of those that wait to send
        self._thread = threading.get_ident()
        self._letters: deque[
            tuple[asyncio.Future[Delivery], Delivery | None, KafkaError | None]
        ] = deque()
        self._called = False

    def sink(self, future: asyncio.Future[Delivery]) -> Sink:
        return functools.partial(self._take, future)

    def _take(
        self,
        future: asyncio.Future[Delivery],
        delivery: Delivery | None,
        error: KafkaError | None,
    ) -> None:
        if threading.get_ident() == self._thread:
            _settle(future, delivery, error)
            return
        self._letters.append((future, delivery, error))
        if not self._called:
            self._called = True
            try:
                self.loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop is closed, and nobody awaits its futures any more
                self._letters.clear()

    def _deliver(self) -> None:
        # Cleared first: a letter that comes from now on calls again, at worst once too often.
        self._called = False
        while self._letters:
            _settle(*self._letters.popleft())


def _settle(
    future: asyncio.Future[Delivery], delivery: Delivery | None, error: KafkaError | None
) -> None:
    if future.done():  # given up by whoever awaited it; the record went out all the same
        return
    if delivery is not None:
        future.set_result(delivery)
    elif error is not None:
        future.set_exception(error)


def _on_thread(
    method: Callable[Concatenate[Consumer[Any, Any], P], R],
) -> Callable[Concatenate[AsyncConsumer[Any, Any], P], Coroutine[Any, Any, R]]:
    """A consumer method that waits on the consumer's own thread."""

    async def run(self: AsyncConsumer[Any, Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(functools.partial(method, self._consumer, *args, **kwargs))

    functools.update_wrapper(run, method)
    return run


class AsyncConsumer(Generic[K, V]):
    """Reads records into one event loop. Arguments as for `ottla.Consumer`."""

    @overload
    def __init__(
        self: AsyncConsumer[bytes, bytes],
        bootstrap: str | Iterable[str] | None = ...,
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncConsumer[bytes, V],
        bootstrap: str | Iterable[str] | None = ...,
        *,
        value: Deserializer[V],
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncConsumer[K, bytes],
        bootstrap: str | Iterable[str] | None = ...,
        *,
        key: Deserializer[K],
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncConsumer[K, V],
        bootstrap: str | Iterable[str] | None = ...,
        *,
        key: Deserializer[K],
        value: Deserializer[V],
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    def __init__(
        self,
        bootstrap: str | Iterable[str] | None = None,
        *,
        key: Any = None,
        value: Any = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        self._consumer: Consumer[K, V] = Consumer(bootstrap, key=key, value=value, **options)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ottla-consumer")
        # Held by whatever is under way on the thread. Records are taken on the loop, never
        # there: a cancelled wait must not take a record with it.
        self._busy = asyncio.Lock()
        self._turn = asyncio.Lock()  # of those that close
        self._closed = False

    @property
    def group(self) -> str | None:
        """The group that offsets are committed for."""
        return self._consumer.group

    @property
    def joining(self) -> bool:
        """Whether the group has not given us any partitions yet."""
        return self._consumer.joining

    partitions = _on_thread(Consumer.partitions)
    assign = _on_thread(Consumer.assign)
    incremental_assign = _on_thread(Consumer.incremental_assign)
    incremental_unassign = _on_thread(Consumer.incremental_unassign)
    unassign = _on_thread(Consumer.unassign)
    unsubscribe = _on_thread(Consumer.unsubscribe)
    assignment = _on_thread(Consumer.assignment)
    seek = _on_thread(Consumer.seek)
    offsets = _on_thread(Consumer.offsets)
    offsets_for_times = _on_thread(Consumer.offsets_for_times)
    pause = _on_thread(Consumer.pause)
    resume = _on_thread(Consumer.resume)
    commit = _on_thread(Consumer.commit)
    committed = _on_thread(Consumer.committed)
    rewind = _on_thread(Consumer.rewind)

    async def subscribe(
        self,
        topics: str | Iterable[str],
        *,
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """As `Consumer.subscribe`. Callbacks that are coroutines run on this loop and are waited
        for; plain functions run on the consumer's thread."""
        loop = asyncio.get_running_loop()

        def waited_for(callback: RebalanceCallback | None) -> RebalanceCallback | None:
            if callback is None:
                return None

            def call(partitions: tuple[TopicPartition, ...]) -> None:
                outcome = callback(partitions)
                if inspect.isawaitable(outcome):
                    Desk(self).carry_out(outcome, loop)

            return call

        callbacks = map(waited_for, (on_assign, on_revoke, on_lost))
        names = ("on_assign", "on_revoke", "on_lost")
        given = dict(zip(names, callbacks, strict=True))
        await self._run(functools.partial(self._consumer.subscribe, topics, **given))

    def position(self, partition: TopicPartition | tuple[str, int]) -> int | None:
        """The offset of the next record of a partition; None when nothing is known of it yet."""
        return self._consumer.position(partition)

    async def poll(self, timeout: float | None = None) -> Record[K, V] | None:
        """The next record, waiting at most `timeout` seconds for it (None: for ever)."""
        self._consumer._inbox.store()
        return await self._next(timeout, None)

    async def take(self, most: int, timeout: float | None = None) -> list[Record[K, V]]:
        """Up to `most` records: those that are there, after waiting for the first one."""
        self._consumer._inbox.store()
        taken: list[Record[K, V]] = []
        with self._consumer._inbox.together():
            while len(taken) < most:
                try:
                    record = await self._next(0.0 if taken else timeout, None)
                except KafkaError as error:
                    if not taken:
                        raise
                    self._consumer._postpone(error)
                    break
                if record is None:
                    break
                taken.append(record)
            return self._consumer._inbox.hand_over(taken)

    def __aiter__(self) -> AsyncIterator[Record[K, V]]:
        """Records without end."""
        return self.records()

    async def records(
        self,
        *,
        limit: int | None = None,
        until_end: bool = False,
        idle: float | None = None,
    ) -> AsyncIterator[Record[K, V]]:
        """As `Consumer.records`."""
        finished = self._consumer.end_check() if until_end else None
        given = 0
        while not self._closed and (limit is None or given < limit):
            self._consumer._inbox.store()
            record = await self._next(idle, finished, once_joined=True)
            if record is None:
                return
            yield record
            given += 1

    def close(self) -> Coroutine[Any, Any, None]:
        """As `Consumer.close`."""
        # Looked at now: `wait_for` and `shield` run the coroutine in a task of its own, where no
        # exception is being handled.
        return self._close(finished=sys.exception() is None)

    async def _close(self, *, finished: bool) -> None:
        self._closed = True
        close = functools.partial(self._consumer._inbox.close, finished=finished)
        if Desk.current(self) is not None:  # of a callback, for which whoever has the turn waits
            await self._run(close)
            return
        # If this is cancelled before its turn comes, the next call closes.
        async with self._turn:
            if not self._consumer._inbox.closed:
                await self._run(close)
            self._thread.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close(finished=kind is None)

    async def _next(
        self,
        timeout: float | None,
        finished: Callable[[], bool] | None,
        *,
        once_joined: bool = False,
    ) -> Record[K, V] | None:
        if Desk.current(self) is not None:
            raise RuntimeError("a callback of the consumer cannot ask for records")
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        over = False
        while True:
            if self._busy.locked():
                async with self._busy:
                    pass
            if self._consumer._inbox.overdue:
                await self._run(self._consumer._inbox.attend)
            try:
                record = self._consumer._ready()
            except (RecordDecodeError, DamagedRecordsError) as refusal:
                await _settled(deal_with(self._consumer._on_error, refusal))
                await self._run(functools.partial(self._consumer._go_past, refusal))
                continue
            if record is not None:
                return record
            if over or (finished is not None and await self._run(finished)):
                return None
            if once_joined and self._consumer._inbox.joining and timeout is not None:
                deadline = loop.time() + timeout
            left = SLICE if deadline is None else deadline - loop.time()
            over = left <= 0  # also who does not want to wait gets what is there
            wait = max(0.0, min(left, SLICE))
            await self._run(functools.partial(self._consumer._inbox.fill, wait))

    async def _run(self, work: Callable[[], R]) -> R:
        """Run `work` on the consumer's thread, and leave only when it is over."""
        desk = Desk.current(self)
        if desk is not None:
            return await desk.do(work)
        if self._consumer._inbox.forked:  # where there is no such thread
            raise RuntimeError(LEFT_BEHIND)
        async with self._busy:
            future = asyncio.get_running_loop().run_in_executor(self._thread, work)
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                # A thread cannot be stopped. What it does takes a tenth of a second, or a
                # request's timeout; nobody else may use the consumer until then, however often
                # this is cancelled.
                while not future.done():
                    with suppress(asyncio.CancelledError):
                        await asyncio.wait([future])
                raise


async def _settled(outcome: object) -> None:
    """Wait for what an error handler has begun: a coroutine, or the future of a record sent."""
    while True:
        if isinstance(outcome, concurrent.futures.Future):
            outcome = asyncio.wrap_future(outcome)
        if not inspect.isawaitable(outcome):
            return
        outcome = await outcome


def _by_thread(
    method: Callable[Concatenate[Admin, P], R],
) -> Callable[Concatenate[AsyncAdmin, P], Coroutine[Any, Any, R]]:
    """An admin method that waits on one of asyncio's threads."""

    async def run(self: AsyncAdmin, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, self.admin, *args, **kwargs)

    functools.update_wrapper(run, method)
    return run


class AsyncAdmin:
    """Asks brokers and changes what they hold. Arguments and methods as for `ottla.Admin`."""

    def __init__(
        self,
        bootstrap: str | Iterable[str] | None = None,
        *,
        timeout: float = 30.0,
        client_id: str = "ottla",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.admin = Admin(bootstrap, timeout=timeout, client_id=client_id, config=config)

    create_topic = _by_thread(Admin.create_topic)
    create_topics = _by_thread(Admin.create_topics)
    delete_topics = _by_thread(Admin.delete_topics)
    list_topics = _by_thread(Admin.list_topics)
    describe_topics = _by_thread(Admin.describe_topics)
    describe_topic = _by_thread(Admin.describe_topic)
    create_partitions = _by_thread(Admin.create_partitions)
    describe_configs = _by_thread(Admin.describe_configs)
    alter_configs = _by_thread(Admin.alter_configs)
    delete_records = _by_thread(Admin.delete_records)
    list_offsets = _by_thread(Admin.list_offsets)
    describe_cluster = _by_thread(Admin.describe_cluster)
    describe_log_dirs = _by_thread(Admin.describe_log_dirs)
    elect_leaders = _by_thread(Admin.elect_leaders)
    list_groups = _by_thread(Admin.list_groups)
    describe_group = _by_thread(Admin.describe_group)
    delete_groups = _by_thread(Admin.delete_groups)
    group_offsets = _by_thread(Admin.group_offsets)
    group_lag = _by_thread(Admin.group_lag)
    alter_group_offsets = _by_thread(Admin.alter_group_offsets)
    reset_group_offsets = _by_thread(Admin.reset_group_offsets)
    delete_group_offsets = _by_thread(Admin.delete_group_offsets)
    list_transactions = _by_thread(Admin.list_transactions)
    describe_transactions = _by_thread(Admin.describe_transactions)
    describe_producers = _by_thread(Admin.describe_producers)
    abort_transaction = _by_thread(Admin.abort_transaction)
    fence_producers = _by_thread(Admin.fence_producers)

    async def close(self) -> None:
        """As `Admin.close`."""
        self.admin.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
