"""librdkafka's failures as `KafkaError`.

librdkafka numbers its errors in two ranges. What a broker answered is positive and equals the
protocol's own code. What happened inside the client is negative and has no code of the protocol;
the nearest one is taken so that `error.code` can always be asked, and `ClientError.local` keeps
librdkafka's own name for it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, NamedTuple

import confluent_kafka as rd

from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ottla.client.records import Record
    from ottla.model.ids import TopicPartition

_BY_NUMBER = {int(code): code for code in ErrorCode}

_NEAREST = {
    rd.KafkaError._ALL_BROKERS_DOWN: ErrorCode.NETWORK_EXCEPTION,
    rd.KafkaError._TRANSPORT: ErrorCode.NETWORK_EXCEPTION,
    rd.KafkaError._RESOLVE: ErrorCode.NETWORK_EXCEPTION,
    rd.KafkaError._SSL: ErrorCode.NETWORK_EXCEPTION,
    rd.KafkaError._TIMED_OUT: ErrorCode.REQUEST_TIMED_OUT,
    rd.KafkaError._TIMED_OUT_QUEUE: ErrorCode.REQUEST_TIMED_OUT,
    rd.KafkaError._MSG_TIMED_OUT: ErrorCode.REQUEST_TIMED_OUT,
    rd.KafkaError._AUTHENTICATION: ErrorCode.SASL_AUTHENTICATION_FAILED,
    rd.KafkaError._UNKNOWN_TOPIC: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    rd.KafkaError._UNKNOWN_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    rd.KafkaError._AUTO_OFFSET_RESET: ErrorCode.OFFSET_OUT_OF_RANGE,
    rd.KafkaError._NO_OFFSET: ErrorCode.OFFSET_OUT_OF_RANGE,
    rd.KafkaError._UNSUPPORTED_FEATURE: ErrorCode.UNSUPPORTED_VERSION,
    rd.KafkaError._BAD_MSG: ErrorCode.CORRUPT_MESSAGE,
    rd.KafkaError._BAD_COMPRESSION: ErrorCode.CORRUPT_MESSAGE,
    rd.KafkaError._INVALID_ARG: ErrorCode.INVALID_REQUEST,
    rd.KafkaError._FENCED: ErrorCode.PRODUCER_FENCED,
    rd.KafkaError._ISR_INSUFF: ErrorCode.NOT_ENOUGH_REPLICAS,
}


class ClientError(KafkaError):
    """A failure that librdkafka reported: the code, and what only the client knows about it."""

    def __init__(
        self,
        code: ErrorCode,
        message: str | None = None,
        *,
        local: str | None = None,
        retriable: bool = False,
        fatal: bool = False,
    ) -> None:
        super().__init__(code, message)
        self.local = local  # librdkafka's name when no broker was involved, such as "_TRANSPORT"
        self.retriable = retriable
        self.fatal = fatal  # the client is of no further use; make a new one
        self.record_size: int | None = None  # bytes of the record that was not stored, if known


class PartialFailureError(KafkaError):
    """Some items of one request failed. `failures` says which; the others succeeded."""

    def __init__(self, failures: Mapping[str, KafkaError]) -> None:
        first = next(iter(failures.values()))
        text = "; ".join(f"{name}: {error}" for name, error in failures.items())
        super().__init__(first.code, text)
        self.failures = dict(failures)


class DeliveryFailedError(ClientError):
    """Records that nobody watched were not stored: one failure each, in `failures`."""

    def __init__(self, failures: Sequence[KafkaError]) -> None:
        first = failures[0]
        verb = "record was" if len(failures) == 1 else "records were"
        super().__init__(
            first.code, f"{len(failures)} {verb} not delivered; the first: {first.message or first}"
        )
        self.failures = tuple(failures)


class AbandonedError(ClientError):
    """A producer was closed before everything was delivered. `failures` has one for each record
    that nobody watched: those that were given up now, and those that had failed before."""

    def __init__(self, error: ClientError, failures: Sequence[KafkaError]) -> None:
        super().__init__(error.code, error.message, local=error.local, retriable=error.retriable)
        self.failures = tuple(failures)


class TransactionError(ClientError):
    """A transaction was not committed. Which of the four kinds it is says what to do next:
    `AbortableTransactionError`, `ProducerFencedError`, `FatalTransactionError` or
    `TransactionInDoubtError`."""

    def __init__(
        self, cause: KafkaError, message: str, failures: Sequence[KafkaError] = ()
    ) -> None:
        super().__init__(
            cause.code,
            message,
            local=getattr(cause, "local", None),
            fatal=getattr(cause, "fatal", False),
        )
        self.failures = tuple(failures)  # of records that were not delivered


class AbortableTransactionError(TransactionError):
    """The transaction is aborted and nothing of it counts. The producer is as good as before: run
    the transaction again, after `Consumer.rewind` if its records came from a consumer."""


class ProducerFencedError(TransactionError):
    """Another producer has taken over the transactional id, and the transaction is aborted. That
    one goes on with the work; close this one, and do not make another in its place."""


class FatalTransactionError(TransactionError):
    """Nothing of the transaction counts, and the producer is of no further use: close it and make a
    new one with the same transactional id. Then run the transaction again, after `Consumer.rewind`
    if its records came from a consumer."""


class TransactionTimedOutError(FatalTransactionError):
    """The transaction was open for longer than `transaction_timeout`, so the coordinator has
    aborted it. Make a new producer, and call `Consumer.rewind` if the records came from a consumer;
    do less in one transaction, or allow more time."""


class TransactionInDoubtError(TransactionError):
    """No broker has told in time whether the transaction is committed; it counts as a whole or not
    at all. Close the producer and make a new one with the same id, whose first transaction waits
    until that is decided. Then look at what is committed, such as the group's offsets, before
    anything is done again."""


Part = Literal["key", "value", "headers"]


class RecordDecodeError(KafkaError):
    """A key or value that the deserializer refused, or headers whose names are not UTF-8 (the
    record that comes with the error has none then). The consumer stays where it is: the same record
    comes again, unless `on_error=` or a `seek` goes past it."""

    def __init__(self, part: Part, record: Record[bytes, bytes], cause: Exception) -> None:
        super().__init__(
            ErrorCode.INVALID_RECORD,
            f"the {part} of {record.topic}-{record.partition} at offset {record.offset} cannot be "
            f"decoded: {cause or type(cause).__name__}. The consumer stays at this record; go past "
            f"it with seek(({record.topic!r}, {record.partition}), {record.offset + 1}), or say "
            f"what becomes of such records with Consumer(on_error=...)",
        )
        self.part = part
        self.record = record  # as it is stored: key and value are bytes

    @property
    def topic(self) -> str:
        return self.record.topic

    @property
    def partition(self) -> int:
        return self.record.partition

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def next_offset(self) -> int:
        return self.record.offset + 1


class Damage(NamedTuple):
    """Bytes at `offset` that are no records."""

    offset: int
    problem: str
    next_offset: int
    """The first record behind them that can be read, or the end of the partition."""


class DamagedRecordsError(KafkaError):
    """A batch that the broker has, and that cannot be read. The consumer stays in front of it."""

    def __init__(
        self, partition: TopicPartition, offset: int, problem: str, next_offset: int | None
    ) -> None:
        place = f"({partition.topic!r}, {partition.partition})"
        onward = (
            ""
            if next_offset is None
            else f" To go on behind it: seek({place}, {next_offset}), or Consumer(on_error='skip')."
        )
        super().__init__(
            ErrorCode.CORRUPT_MESSAGE,
            f"{partition} is damaged at offset {offset}: {problem}. On the broker's machine, "
            f"`ottla log dump --verify FOLDER/{partition}` shows the damage, and `ottla log "
            f"repair` removes it when the broker is stopped.{onward}",
        )
        self.topic = partition.topic
        self.partition = partition.partition
        self.offset = offset
        self.problem = problem
        self.next_offset = next_offset  # None: not known


def translate(error: rd.KafkaError) -> ClientError:
    """What librdkafka says, in our vocabulary."""
    number = error.code()
    local = None
    if number < -1:
        local = error.name()
        code = _NEAREST.get(number, ErrorCode.UNKNOWN_SERVER_ERROR)
    else:
        code = _BY_NUMBER.get(number, ErrorCode.UNKNOWN_SERVER_ERROR)
    message = error.str().removeprefix("Broker: ")
    return ClientError(
        code,
        message,
        local=local,
        retriable=error.retriable() or code.retriable,
        fatal=error.fatal(),
    )


def translate_exception(exception: rd.KafkaException) -> ClientError:
    """The same for what librdkafka's binding raises."""
    cause = exception.args[0] if exception.args else None
    if isinstance(cause, rd.KafkaError):
        return translate(cause)
    return ClientError(ErrorCode.UNKNOWN_SERVER_ERROR, str(exception))


@contextmanager
def translated() -> Iterator[None]:
    """Run librdkafka calls; what they raise leaves as `ClientError`."""
    try:
        yield
    except rd.KafkaException as exception:
        raise translate_exception(exception) from None
