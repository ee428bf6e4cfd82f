"""From librdkafka's message to a record, and what becomes of one that cannot be decoded.

`on_error=` of a consumer says that: the consumer stays at the record and raises, goes on, or leaves
it to a function, which gets the record as it is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import Any, Literal

import confluent_kafka as rd

from ottla.client.errors import DamagedRecordsError, Part, RecordDecodeError
from ottla.client.records import Record, TimestampType
from ottla.client.settings import LOGGER

DecodeErrorHandler = Callable[[Record[bytes, bytes], RecordDecodeError], Any]
"""Called with a record that cannot be decoded, as it is stored, and why. When it returns the
consumer goes on behind the record; when it raises, the consumer stays. A future that it returns,
such as that of a record sent to another topic, is waited for first."""

OnError = Literal["raise", "skip"] | DecodeErrorHandler

# `message.headers()`, after which the interpreter looks whether it has failed: where a function has
# called a method often it does so no more, and the binding returns something even when it fails.
headers_of = methodcaller("headers")
UNREADABLE: Any = []  # in place of headers

_TIMESTAMP_TYPES: dict[int, TimestampType] = {
    rd.TIMESTAMP_NOT_AVAILABLE: "none",
    rd.TIMESTAMP_CREATE_TIME: "create",
    rd.TIMESTAMP_LOG_APPEND_TIME: "append",
}


def refusal(part: Part, message: rd.Message, error: Exception) -> RecordDecodeError:
    """Why a record is not given. librdkafka's binding fails at names of headers that are not UTF-8,
    and asked again it has tuples with holes: whoever looks into one crashes."""
    if part == "headers":
        message.set_headers(UNREADABLE)
        error = ValueError("the name of a header is not UTF-8")
    headers = message.headers()
    return RecordDecodeError(
        part, as_record(message, message.key(), message.value(), headers), error
    )


def as_record(message: rd.Message, key: Any, value: Any, headers: Any) -> Record[Any, Any]:
    """The record that a message holds, with what was decoded of it."""
    topic: Any = message.topic()
    partition: Any = message.partition()
    offset: Any = message.offset()
    kind, timestamp = message.timestamp()
    epoch = message.leader_epoch()
    return Record(
        topic,
        partition,
        offset,
        timestamp,
        _TIMESTAMP_TYPES[kind],
        key,
        value,
        tuple(headers) if headers else (),
        -1 if epoch is None else epoch,
    )


def deal_with(on_error: OnError, refused: RecordDecodeError | DamagedRecordsError) -> object:
    """Do with what cannot be read as `on_error` says; returns what that returned, and raises where
    the consumer is to stay."""
    if on_error == "skip" and refused.next_offset is not None:
        LOGGER.warning("skipped: %s", refused.message)
        return None
    if callable(on_error) and isinstance(refused, RecordDecodeError):
        return on_error(refused.record, refused)
    raise refused


def check_on_error(given: object) -> None:
    """An error that lists what `on_error=` may be, unless it is one of these."""
    if given not in ("raise", "skip") and not callable(given):
        raise ValueError(
            f'on_error is "raise", "skip" or a function of (record, error), not {given!r}'
        )
