"""Producer: records into topics.

    with Producer("127.0.0.1:9092", value=ottla.JSON) as producer:
        future = producer.send("orders", {"id": 7}, key="customer-3")
        print(future.result().offset)

Defaults are those of Java's client, not librdkafka's, where the two differ: acks=all and an
idempotent producer (no duplicates and no reordering on retries), Java's hash for keys, two
minutes to deliver. Records without a key are spread evenly, record by record.

With `transactional_id=`, records are sent in transactions (`transactions`):

    with producer.transaction() as txn:
        txn.send("orders", {"id": 7})

`send` gives a future; `post` gives none and is cheaper, and failures of posted records are
raised by the next `flush` or `close` unless a callback took them. Leaving the `with` block waits
until everything is stored. A producer that was forgotten does the same when it is collected or
when the program ends.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from datetime import datetime
from types import TracebackType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from ottla.client import partitioners
from ottla.client.errors import AbandonedError, ClientError, DeliveryFailedError
from ottla.client.options import Option, documented
from ottla.client.outbox import Outbox, Sink
from ottla.client.partitioners import DEFAULT_PARTITIONER, Partitioner
from ottla.client.records import Delivery, Headers, header_list
from ottla.client.serializers import Serializer, encoder
from ottla.client.settings import (
    STATISTICS_DOC,
    StatisticsCallback,
    bootstrap_servers,
    check_options,
    librdkafka_config,
    sent_timestamp,
    statistics,
)
from ottla.client.transactions import Transaction, Transactions, stranger
from ottla.errors import ErrorCode, KafkaError

K = TypeVar("K")
V = TypeVar("V")

Acks = Literal["all", 0, 1, -1]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
COMPRESSIONS: tuple[Compression, ...] = ("none", "gzip", "snappy", "lz4", "zstd")

DeliveryCallback = Callable[["Delivery | None", "KafkaError | None"], None]
"""Called once per record with (where it is, None) or (None, why it is not stored).

It runs on whichever thread serves the reports: the producer's own, or one that is inside a
method of the producer. It should be quick and must not wait for another record."""

_RESERVED = {
    "acks": "use acks=",
    "bootstrap.servers": "use bootstrap=",
    "compression.type": "use compression=",
    "delivery.timeout.ms": "use delivery_timeout=",
    "dr_cb": "use on_delivery= of send()",
    "enable.idempotence": "use idempotent=",
    "error_cb": "errors are logged, and raised by the method that waits",
    "logger": "librdkafka's lines go to the logger 'ottla.client'",
    "message.timeout.ms": "use delivery_timeout=",
    "on_delivery": "use on_delivery= of send()",
    "partitioner": "use partitioner=",
    "stats_cb": "use on_statistics=",
    "transaction.timeout.ms": "use transaction_timeout=",
    "transactional.id": "use transactional_id=",
}
_TRANSACTION_TIMEOUT = 60.0
# librdkafka counts microseconds in 32 bits: its first request for a longer one is never sent.
_LONGEST_TRANSACTION = 2147
_DELIVERY_TIMEOUT = 120.0


class ProducerOptions(TypedDict, total=False):
    """What a producer may be told besides brokers and serializers, all of it optional."""

    partitioner: Annotated[
        str | Partitioner,
        Option(
            f'"{DEFAULT_PARTITIONER}"',
            f"Which partition a record with a key goes to: {', '.join(partitioners.NAMES)}, or a "
            "function (key, partitions) -> partition.",
        ),
    ]
    acks: Annotated[
        Acks, Option('"all"', 'Who must have a record before it counts: "all", 1 (the leader), 0.')
    ]
    idempotent: Annotated[
        bool,
        Option('acks == "all"', "Retries make no duplicates and keep the order."),
    ]
    compression: Annotated[Compression, Option('"none"', "How batches are compressed.")]
    linger: Annotated[
        float, Option("0.005", "Seconds a record may wait for others to share a batch with.")
    ]
    delivery_timeout: Annotated[
        float,
        Option(
            "120.0",
            "Seconds after which a record that is not stored yet has failed; in transactions, "
            "`transaction_timeout` at most.",
        ),
    ]
    max_block: Annotated[
        float,
        Option(
            "60.0",
            "Seconds that send() may wait for room in a full buffer, and that a transaction may "
            "wait for its beginning and for its end.",
        ),
    ]
    transactional_id: Annotated[
        str,
        Option(
            "None",
            "Who this producer is, for transactions: a successor with the same id, after a crash, "
            "ends what this one left open. Each producer at work needs an id of its own.",
        ),
    ]
    transaction_timeout: Annotated[
        float,
        Option("60.0", "Seconds after which the coordinator aborts a transaction that is open."),
    ]
    on_statistics: Annotated[StatisticsCallback, Option("None", STATISTICS_DOC)]
    client_id: Annotated[str, Option('"ottla"', "The name that brokers see in their logs.")]
    config: Annotated[
        Mapping[str, Any], Option("{}", "librdkafka's own properties, over all of the above.")
    ]


class DeliveryFuture(Future[Delivery]):
    """Settles when the record is stored, or cannot be. A sent record cannot be called back."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox

    def result(self, timeout: float | None = None) -> Delivery:
        self._serve(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._serve(timeout)
        return super().exception(0)

    def _serve(self, timeout: float | None) -> None:
        """Whoever waits serves the reports: no thread has to be woken to hand one over."""
        if self.done():
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.done():
            left = 0.05
            if deadline is not None:
                left = min(left, deadline - time.monotonic())
                if left <= 0:
                    return
            self._outbox.serve(left)

    def cancel(self) -> bool:
        return False

    def settle(self, delivery: Delivery | None, error: KafkaError | None) -> None:
        if delivery is not None:
            self.set_result(delivery)
        else:
            self.set_exception(error)


class Outgoing(NamedTuple):
    """One record, checked and serialized, in the order `Outbox.offer` takes it."""

    topic: str
    value: bytes | None
    key: bytes | None
    partition: int
    timestamp: int
    headers: list[tuple[str, str | bytes | None]] | None


class Writer(Generic[K, V]):
    """What the blocking and the asyncio producer share: arguments, their checks, the outbox."""

    def __init__(
        self,
        bootstrap: str | Iterable[str] | None,
        key: Serializer[K] | None,
        value: Serializer[V] | None,
        options: ProducerOptions,
    ) -> None:
        _check_options(options)
        self._encode_key = encoder("key", key)
        self._encode_value = encoder("value", value)
        partitioner = options.get("partitioner", DEFAULT_PARTITIONER)
        self._partitioner = partitioner if callable(partitioner) else None
        self._max_block = options.get("max_block", 60.0)
        acks = options.get("acks", "all")
        everyone = acks in ("all", -1)
        transactional_id = options.get("transactional_id")
        own: dict[str, object] = {
            "acks": "all" if everyone else acks,
            "bootstrap.servers": bootstrap_servers(bootstrap, "Producer"),
            "client.id": options.get("client_id", "ottla"),
            "compression.type": options.get("compression", "none"),
            "delivery.timeout.ms": round(_delivery_timeout(options) * 1000),
            # As in Java: on, unless the acks rule it out.
            "enable.idempotence": options.get("idempotent", everyone),
            # Otherwise librdkafka waits 50 ms before it tries a second broker address, and the
            # first one it learns of is the bootstrap broker's own.
            "enable.sparse.connections": False,
            "linger.ms": options.get("linger", 0.005) * 1000,
            "partitioner": DEFAULT_PARTITIONER if callable(partitioner) else partitioner,
            # librdkafka would keep all records without a key on one partition for 10 ms at a
            # time. That makes fuller batches, but a burst then lands on a single partition.
            "sticky.partitioning.linger.ms": 0,
            **statistics(options.get("on_statistics")),
        }
        timeout = options.get("transaction_timeout", _TRANSACTION_TIMEOUT)
        if transactional_id is not None:
            own["transactional.id"] = transactional_id
            own["transaction.timeout.ms"] = round(timeout * 1000)
        self._outbox = Outbox(librdkafka_config(own, options.get("config"), _RESERVED))
        self._transactions: Transactions | None = None
        if transactional_id is not None:
            self._transactions = Transactions(
                self._outbox, transactional_id, timeout=timeout, patience=self._max_block
            )
        self._groups: dict[str, Any] = {}
        self._finalizer = weakref.finalize(self, Outbox.finish, self._outbox)

    def __len__(self) -> int:
        """Records sent whose fate is not known yet."""
        return len(self._outbox)

    def __bool__(self) -> bool:
        return True

    def _need_transactions(self) -> Transactions:
        if self._transactions is None:
            raise ValueError(
                "transactions need a producer with transactional_id='name'; the name is the same "
                "after a restart, and no other producer's"
            )
        return self._transactions

    def _outside(self) -> RuntimeError:
        return RuntimeError(
            "a producer with a transactional_id sends in transactions: "
            "with producer.transaction() as txn: txn.send(...)"
        )

    def _of_group(self, group: str) -> Any:
        if group not in self._groups:
            self._groups[group] = stranger(group)
        return self._groups[group]

    def _prepare(
        self,
        topic: str,
        value: V | None,
        key: K | None,
        partition: int | None,
        timestamp: int | datetime | None,
        headers: Headers | None,
    ) -> Outgoing:
        if not isinstance(topic, str) or not topic:
            raise ValueError(f"a topic's name is a str that is not empty, not {topic!r}")
        if partition is not None and partition < 0:
            raise ValueError(f"partitions count from 0, {partition} is negative")
        return Outgoing(
            topic,
            None if value is None else self._encode_value(value),
            None if key is None else self._encode_key(key),
            -1 if partition is None else partition,
            sent_timestamp(timestamp),
            None if headers is None else header_list(headers),
        )

    def _placed(self, record: Outgoing) -> Outgoing:
        """The record with the partition that a Python partitioner chose; may ask a broker."""
        if self._partitioner is None or record.partition >= 0:
            return record
        count = self._outbox.partition_count(record.topic, self._max_block)
        return record._replace(partition=partitioners.ask(self._partitioner, record.key, count))

    def _buffer_full(self) -> ClientError:
        return ClientError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"the buffer had no room for {self._max_block:g} s, {len(self)} records wait; "
            f"is a broker reachable? (config: queue.buffering.max.messages, max_block=)",
            local="_QUEUE_FULL",
            retriable=True,
        )

    def _still_out(self, count: int, timeout: float | None) -> ClientError:
        return ClientError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"{count} {'record was' if count == 1 else 'records were'} not delivered within "
            f"{timeout:g} s",
            local="_TIMED_OUT",
            retriable=True,
        )

    def _raise_unobserved(self) -> None:
        if failures := self._outbox.take_unobserved():
            raise DeliveryFailedError(failures)

    def _flush(self, timeout: float | None) -> None:
        if count := self._outbox.flush(timeout):
            raise self._still_out(count, timeout)
        self._raise_unobserved()

    def _close(self, timeout: float | None) -> None:
        if self._transactions is not None and self._transactions.open and not self._outbox.forked:
            self._transactions.abort()
        self._finalizer.detach()
        if count := self._outbox.close(timeout):
            raise AbandonedError(self._still_out(count, timeout), self._outbox.take_unobserved())
        self._raise_unobserved()


@documented(ProducerOptions)
class Producer(Writer[K, V]):
    """Sends records; may be shared by threads.

    bootstrap   brokers to start from, "host:port,…"; else OTTLA_BOOTSTRAP, else 127.0.0.1:9092
    key, value  a Serde or a function to bytes; without one, bytes and str are taken
    """

    @overload
    def __init__(
        self: Producer[bytes | str, bytes | str],
        bootstrap: str | Iterable[str] | None = ...,
        **options: Unpack[ProducerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Producer[bytes | str, V],
        bootstrap: str | Iterable[str] | None = ...,
        *,
        value: Serializer[V],
        **options: Unpack[ProducerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Producer[K, bytes | str],
        bootstrap: str | Iterable[str] | None = ...,
        *,
        key: Serializer[K],
        **options: Unpack[ProducerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Producer[K, V],
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

    def send(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Headers | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> Future[Delivery]:
        """Send one record; the future gives its `Delivery` or raises `KafkaError`.

        Returns at once unless the buffer is full. The callback, if there is one, is called
        after the future has settled.
        """
        if self._transactions is not None:
            raise self._outside()
        return self._send(
            self._prepare(topic, value, key, partition, timestamp, headers), on_delivery
        )

    def _send(self, record: Outgoing, on_delivery: DeliveryCallback | None) -> Future[Delivery]:
        future = DeliveryFuture(self._outbox)
        sink: Sink = future.settle
        if on_delivery is not None:
            callback = on_delivery

            def sink(delivery: Delivery | None, error: KafkaError | None) -> None:
                future.settle(delivery, error)
                callback(delivery, error)

        self._offer(record, sink)
        return future

    def post(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Headers | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> None:
        """Send one record without a future.

        Without a callback a failure is kept, and raised by the next `flush` or `close`.
        """
        if self._transactions is not None:
            raise self._outside()
        record = self._prepare(topic, value, key, partition, timestamp, headers)
        self._offer(record, on_delivery)

    def transaction(self) -> Transaction[K, V]:
        """A block whose records, and offsets, count together or not at all:

            with producer.transaction() as txn:
                txn.send(topic, value)

        Leaving it commits; an exception aborts. The first one takes over the transactional id: an
        earlier producer with the same id is fenced, and what it left open is aborted.
        """
        return Transaction(self, self._need_transactions())

    def init_transactions(self) -> None:
        """Take over the transactional id now, and not only with the first transaction."""
        self._need_transactions().initialize()

    def partitions(self, topic: str, *, timeout: float = 30.0) -> int:
        """How many partitions a topic has; the answer is believed for a minute.

        Where brokers create topics on first use, this is a use.
        """
        return self._outbox.partition_count(topic, timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record sent so far is stored or has failed.

        Raises KafkaError when some are still under way after `timeout` seconds, and when a
        posted record failed that nobody was told about.
        """
        self._flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Flush, then let go of everything. Raises as `flush` does; a second call does nothing.

        Records that are not stored when `timeout` runs out fail: their futures and callbacks
        are told, and this raises.
        """
        self._close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _offer(self, record: Outgoing, sink: Sink | None) -> None:
        if pause := self._outbox.settling():
            time.sleep(pause)
        record = self._placed(record)
        if self._outbox.offer(*record, sink):
            return
        deadline = time.monotonic() + self._max_block
        while not self._outbox.offer(*record, sink):
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._buffer_full()
            self._outbox.serve(min(left, 0.1))


def _check_options(options: ProducerOptions) -> None:
    check_options("a producer", options, ProducerOptions)
    partitioner = options.get("partitioner", DEFAULT_PARTITIONER)
    if not callable(partitioner):
        partitioners.check_name(partitioner)
    acks = options.get("acks", "all")
    if acks not in ("all", -1, 0, 1):
        raise ValueError(f'acks is "all", 1 or 0, not {acks!r}')
    if options.get("idempotent") and acks not in ("all", -1):
        raise ValueError(f'an idempotent producer needs acks="all", not {acks!r}')
    compression = options.get("compression", "none")
    if compression not in COMPRESSIONS:
        raise ValueError(
            f"there is no compression {compression!r}; give one of {', '.join(COMPRESSIONS)}"
        )
    if "transactional_id" in options:
        _check_transactional(options)
    elif "transaction_timeout" in options:
        raise ValueError("transaction_timeout= is for producers with a transactional_id=")
    linger, timeout = options.get("linger", 0.005), _delivery_timeout(options)
    if not 0 <= linger < timeout:
        raise ValueError(
            f"linger ({linger} s) must not be negative and must be less than "
            f"delivery_timeout ({timeout} s)"
        )


def _check_transactional(options: ProducerOptions) -> None:
    name = options.get("transactional_id")
    if not isinstance(name, str) or not name:
        raise ValueError(f"a transactional_id is a str that is not empty, not {name!r}")
    if options.get("acks", "all") not in ("all", -1) or not options.get("idempotent", True):
        raise ValueError('a producer with a transactional_id is idempotent and has acks="all"')
    open_for = options.get("transaction_timeout", _TRANSACTION_TIMEOUT)
    if not 1 <= open_for <= _LONGEST_TRANSACTION:
        raise ValueError(
            f"transaction_timeout is 1 s or more and {_LONGEST_TRANSACTION} s at most, "
            f"not {open_for}; brokers allow 900 s unless transaction.max.timeout.ms says otherwise"
        )
    if options.get("delivery_timeout", 0) > open_for:
        raise ValueError(
            f"delivery_timeout ({options['delivery_timeout']} s) must not be longer than "
            f"transaction_timeout ({open_for} s)"
        )


def _delivery_timeout(options: ProducerOptions) -> float:
    longest = _DELIVERY_TIMEOUT
    if "transactional_id" in options:
        longest = min(longest, options.get("transaction_timeout", _TRANSACTION_TIMEOUT))
    return options.get("delivery_timeout", longest)
