"""What a failed append means to a client of a coordinator: it did not produce anything itself."""

from __future__ import annotations

from ottla.errors import ErrorCode, KafkaError
from ottla.storage.faults import OutOfDescriptors

_TRANSLATED = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def as_coordinator(error: KafkaError) -> KafkaError:
    """The error of an append as the coordinator reports it."""
    if isinstance(error, OutOfDescriptors):  # the log is here, and works again in a moment
        return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
    code = _TRANSLATED.get(error.code)
    return error if code is None else KafkaError(code, error.message)
