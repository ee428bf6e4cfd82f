from __future__ import annotations

import confluent_kafka as rd
import pytest

from ottla.client.errors import PartialFailureError, translate, translated
from ottla.errors import ErrorCode, KafkaError


def test_what_a_broker_said_keeps_its_code_and_words() -> None:
    error = translate(rd.KafkaError(36, "Topic 'a' already exists."))
    assert error.code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert error.message == "Topic 'a' already exists."
    assert error.local is None


def test_librdkafkas_own_words_for_a_code_lose_their_prefix() -> None:
    assert translate(rd.KafkaError(3)).message == "Unknown topic or partition"


@pytest.mark.parametrize(
    ("number", "code", "local"),
    [
        (rd.KafkaError._TRANSPORT, ErrorCode.NETWORK_EXCEPTION, "_TRANSPORT"),
        (rd.KafkaError._MSG_TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT, "_MSG_TIMED_OUT"),
        (rd.KafkaError._UNKNOWN_TOPIC, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "_UNKNOWN_TOPIC"),
        (rd.KafkaError._APPLICATION, ErrorCode.UNKNOWN_SERVER_ERROR, "_APPLICATION"),
    ],
)
def test_what_happened_in_the_client_gets_the_nearest_code_and_keeps_its_name(
    number: int, code: ErrorCode, local: str
) -> None:
    error = translate(rd.KafkaError(number))
    assert (error.code, error.local) == (code, local)


def test_a_code_of_the_future_is_an_unknown_error() -> None:
    assert translate(rd.KafkaError(9_999, "new")).code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_what_can_be_tried_again_says_so() -> None:
    assert translate(rd.KafkaError(6)).retriable
    assert not translate(rd.KafkaError(36)).retriable
    assert translate(rd.KafkaError(47, fatal=True)).fatal


def test_exceptions_of_the_binding_leave_as_ours() -> None:
    with pytest.raises(KafkaError) as caught, translated():
        raise rd.KafkaException(rd.KafkaError(rd.KafkaError._TIMED_OUT))
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    with pytest.raises(KafkaError, match="odd"), translated():
        raise rd.KafkaException("odd")


def test_a_partial_failure_names_what_failed() -> None:
    one = KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, "there")
    error = PartialFailureError({"a": one, "b": KafkaError(ErrorCode.INVALID_CONFIG)})
    assert error.code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert set(error.failures) == {"a", "b"}
    assert "a: TOPIC_ALREADY_EXISTS: there; b: INVALID_CONFIG" in str(error)
