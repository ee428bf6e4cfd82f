"""Whether the metadata store answers: what is known and logged of its outages."""

from __future__ import annotations

import pytest

from ottla.cluster.contact import LOG_SECONDS, SILENT_SECONDS, StoreContact
from ottla.testing.clock import ManualClock

AWAY = ConnectionError("away")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_an_outage_of_minutes_is_two_lines(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    contact = StoreContact(clock)
    since = clock.now_ms()
    for _ in range(100):
        contact.asked()
        contact.failed(AWAY)
        assert contact.away_since_ms == since
        clock.advance(2_000)
    contact.answered()
    assert contact.away_since_ms is None
    assert [record.getMessage() for record in caplog.records] == [
        "the metadata store cannot be used: away; the broker goes on with what it knows, and tries "
        "again until it can",
        "the metadata store answers again, after 200 s",
    ]


def test_silence_is_an_outage_before_anybody_says_so(clock: ManualClock) -> None:
    contact = StoreContact(clock)
    contact.asked()
    since = clock.now_ms()
    clock.advance(int(SILENT_SECONDS * 1_000))
    assert contact.away_since_ms is None
    clock.advance(1)
    assert contact.away_since_ms == since


def test_a_store_that_comes_and_goes_is_logged_once_a_minute(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    contact = StoreContact(clock)
    for _ in range(3):
        contact.failed(AWAY)
        contact.answered()
    assert len(caplog.records) == 2
    clock.advance(int(LOG_SECONDS * 1_000))
    contact.failed(AWAY)
    assert caplog.text.count("cannot be used") == 2
