"""Incremental fetch sessions: who keeps one, who loses it, what counts as news."""

from __future__ import annotations

from collections import OrderedDict
from itertools import count

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.replication import fetch_sessions
from ottla.replication.fetch_sessions import MAX_EPOCH, FetchSessions, Session, Wanted


def wanted(offset: int = 0) -> Wanted:
    return Wanted(offset, 1024, -1, -1)


def partitions(n: int) -> OrderedDict[tuple[str | bytes, int], Wanted]:
    return OrderedDict((("t", i), wanted()) for i in range(n))


def sessions(slots: int = 2) -> FetchSessions:
    ids = count(1)
    return FetchSessions(slots, lambda: next(ids))


def opened(table: FetchSessions, size: int = 1, now: float = 0.0) -> Session:
    session = table.open(partitions(size), False, now)
    assert session is not None
    return session


def refusal(table: FetchSessions, session_id: int, epoch: int, by_id: bool = False) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        table.resume(session_id, epoch, by_id, [], [], 1.0)
    return caught.value.code


def test_a_session_goes_on_with_the_next_epoch_each_time():
    table = sessions()
    session = opened(table)
    for epoch in (1, 2, 3):
        assert table.resume(session.id, epoch, False, [], [], 1.0) is session
    assert session.epoch == 4


def test_epochs_wrap_to_one():
    table = sessions()
    session = opened(table)
    session.epoch = MAX_EPOCH
    table.resume(session.id, MAX_EPOCH, False, [], [], 1.0)
    assert session.epoch == 1


def test_unknown_sessions_wrong_epochs_and_mixed_naming_are_told_apart():
    table = sessions()
    session = opened(table)
    assert refusal(table, 999, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert refusal(table, session.id, 2) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert refusal(table, session.id, 1, by_id=True) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_partitions_are_added_changed_and_forgotten():
    table = sessions()
    session = opened(table, 2)
    changed = [(("t", 1), wanted(7)), (("u", 0), wanted(3))]
    table.resume(session.id, 1, False, changed, [("t", 0)], 1.0)
    assert {key: item.offset for key, item in session.partitions.items()} == {
        ("t", 1): 7,
        ("u", 0): 3,
    }


def test_a_session_without_partitions_ends():
    table = sessions()
    session = opened(table, 1)
    table.resume(session.id, 1, False, [], [("t", 0)], 1.0)
    assert len(table) == 0


def test_a_full_table_refuses_newcomers_that_are_no_larger():
    table = sessions(slots=1)
    opened(table, 3)
    assert table.open(partitions(3), False, 1.0) is None
    assert table.open(partitions(4), False, 1.0) is not None
    assert table.evictions == 1


def test_a_session_idle_for_two_minutes_gives_way_to_anybody():
    table = sessions(slots=1)
    opened(table, 100)
    assert table.open(partitions(1), False, 121.0) is not None


def test_partitions_that_gave_records_go_to_the_end_of_the_line():
    session = opened(sessions(), 3)
    session.served(("t", 0))
    assert [key[1] for key in session.partitions] == [1, 2, 0]


def test_news_is_records_an_error_or_a_moved_mark():
    item = wanted()
    assert item.note_told(False, 0, 5, 0)  # told for the first time
    assert not item.note_told(False, 0, 5, 0)
    assert item.note_told(True, 0, 5, 0)
    assert item.note_told(False, 0, 6, 0)
    assert item.note_told(False, 0, 6, 1)
    assert item.note_told(False, ErrorCode.NOT_LEADER_OR_FOLLOWER, 6, 1)
    assert item.note_told(False, 0, 6, 1)  # the error went away: the marks are told again


def test_sessions_of_many_partitions_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "FEW", 10)
    monkeypatch.setattr(fetch_sessions, "MAX_PARTITIONS", 50)
    table = sessions(slots=100)
    first = opened(table, 30)
    assert table.open(partitions(30), False, 0.0) is None
    opened(table, 9)  # few can always be remembered
    table.waiting = 20
    assert table.open(partitions(10), False, 0.0) is None
    table.waiting = 0
    table.close(first.id)
    opened(table, 30)


def test_a_session_that_grows_beyond_the_limit_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "FEW", 10)
    monkeypatch.setattr(fetch_sessions, "MAX_PARTITIONS", 50)
    table = sessions()
    session = opened(table)
    with pytest.raises(KafkaError) as caught:
        table.resume(session.id, 1, False, partitions(60).items(), [], 1.0)
    assert caught.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(table) == 0
