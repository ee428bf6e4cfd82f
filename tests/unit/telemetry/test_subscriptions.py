"""Which metrics are wanted of which clients."""

from __future__ import annotations

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.telemetry import subscriptions
from ottla.telemetry.subscriptions import Wanted, prepared, validated

CLIENT = {"client_id": "orders-1", "client_software_name": "librdkafka"}
ID = bytes(range(16))


def wanted_of(client: dict[str, str], texts: list[dict[str, str]], instance_id: bytes) -> Wanted:
    return subscriptions.wanted_of(client, [prepared(each) for each in texts], instance_id)


@pytest.mark.parametrize(
    ("name", "texts", "code", "message"),
    [
        ("", {}, ErrorCode.INVALID_REQUEST, "Subscription name can't be empty"),
        (
            "s",
            {"colour": "red"},
            ErrorCode.INVALID_REQUEST,
            "Unknown client metrics configuration: colour",
        ),
        (
            "s",
            {"interval.ms": "99"},
            ErrorCode.INVALID_REQUEST,
            "Invalid value 99 for interval.ms, interval must be between 100 and 3600000 (1 hour)",
        ),
        (
            "s",
            {"interval.ms": "soon"},
            ErrorCode.INVALID_CONFIG,
            "Invalid value soon for configuration interval.ms: Not a number of type INT",
        ),
        (
            "s",
            {"match": "colour=red"},
            ErrorCode.INVALID_CONFIG,
            "Illegal client matching pattern: colour=red",
        ),
        (
            "s",
            {"match": "client_id"},
            ErrorCode.INVALID_CONFIG,
            "Illegal client matching pattern: client_id",
        ),
        (
            "s",
            {"match": "client_id=(a"},
            ErrorCode.INVALID_CONFIG,
            "Illegal client matching pattern: client_id=(a",
        ),
    ],
)
def test_a_bad_subscription_is_refused_in_kafkas_words(
    name: str, texts: dict[str, str], code: ErrorCode, message: str
) -> None:
    with pytest.raises(KafkaError) as caught:
        validated(name, texts)
    assert (caught.value.code, caught.value.message) == (code, message)


def test_a_good_subscription_is_kept_as_it_is() -> None:
    texts = {"interval.ms": "100", "match": "client_id=a.*, client_source_port=[0-9]+"}
    assert validated("s", texts) == texts
    assert validated("s", {}) == {}


def test_a_client_gets_what_all_subscriptions_want_that_it_matches() -> None:
    wanted = wanted_of(
        CLIENT,
        [
            {"metrics": "b.,a.", "match": "client_id=orders.*,client_software_name=lib.*"},
            {"metrics": "c.", "interval.ms": "1000"},
            {"metrics": "d.", "match": "client_id=orders"},
            {"metrics": "e.", "match": "client_software_version=2"},
            {"metrics": "a.", "interval.ms": "600000"},
        ],
        ID,
    )
    assert wanted.metrics == ("a.", "b.", "c.")
    assert wanted.interval_ms == 1000


def test_a_star_is_everything() -> None:
    assert wanted_of(CLIENT, [{"metrics": "a."}, {"metrics": "*"}], ID).metrics == ("*",)


def test_without_a_subscription_nothing_is_wanted() -> None:
    wanted = wanted_of(CLIENT, [], ID)
    assert (wanted.metrics, wanted.interval_ms) == ((), 300_000)


def test_the_id_tells_what_is_wanted_of_whom() -> None:
    one = wanted_of(CLIENT, [{"metrics": "a."}], ID)
    assert one == wanted_of(CLIENT, [{"metrics": "a."}], ID)
    others = [
        wanted_of(CLIENT, [{"metrics": "b."}], ID),
        wanted_of(CLIENT, [{"metrics": "a.", "interval.ms": "100"}], ID),
        wanted_of(CLIENT, [{"metrics": "a."}], bytes(16)),
    ]
    assert len({one.id, *(other.id for other in others)}) == 4
    assert all(-(2**31) <= each.id < 2**31 for each in (one, *others))
