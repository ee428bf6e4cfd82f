from __future__ import annotations

from itertools import count

import pytest

from ottla.client.progress import Progress
from ottla.model.ids import TopicPartition

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


class Reader:
    """A reader whose clock goes on by one whenever somebody looks at it."""

    def __init__(self) -> None:
        self.given: dict[TopicPartition, int] = {}
        ticks = count(1)
        self.now = lambda: float(next(ticks))
        self.progress = Progress(self.given, self.now)

    def give(self, tp: TopicPartition, *offsets: int) -> None:
        for offset in offsets:
            self.given[tp] = offset + 1
            self.progress.give(tp, offset)


@pytest.fixture
def reader() -> Reader:
    return Reader()


def test_the_first_records_that_no_commit_covers(reader: Reader) -> None:
    reader.give(T0, 5, 6)
    reader.give(T1, 9)
    assert reader.progress.first == {T0: 5, T1: 9}
    reader.progress.commit({T0: 7})
    assert reader.progress.first == {T1: 9}
    reader.give(T0, 7)
    assert reader.progress.first == {T0: 7, T1: 9}


def test_a_commit_of_a_part_leaves_the_rest_in_hand(reader: Reader) -> None:
    reader.give(T0, 5, 6, 7)
    reader.progress.commit({T0: 6})
    assert reader.progress.first == {T0: 6}


def test_an_abort_puts_back_what_was_promised(reader: Reader) -> None:
    reader.give(T0, 5)
    reader.give(T1, 3)
    restore = reader.progress.commit({T0: 6, T1: 4})
    reader.give(T0, 6)
    del reader.given[T1]  # taken away meanwhile
    restore()
    assert reader.progress.first == {T0: 5}


def test_what_is_taken_away_with_records_in_hand_is_an_objection(reader: Reader) -> None:
    reader.give(T0, 5)
    reader.progress.take_away([T0, T1])
    reader.progress.forget([T0, T1])
    assert "took t-0 away" in (reader.progress.objection(None) or "")
    reader.progress.settle()
    assert reader.progress.objection(None) is None


def test_what_is_taken_away_after_it_was_promised_is_none(reader: Reader) -> None:
    """A group waits for the end of the transaction before it tells others where to begin."""
    reader.give(T0, 5)
    reader.progress.commit({T0: 6})
    reader.progress.take_away([T0])
    assert reader.progress.objection(None) is None


def test_new_records_after_an_abort_are_an_objection(reader: Reader) -> None:
    reader.give(T0, 5)
    aborted = reader.now()
    assert reader.progress.objection(aborted) is None, "the same ones may be sent again"
    reader.give(T0, 6)
    assert "would be skipped" in (reader.progress.objection(aborted) or "")


def test_who_has_gone_back_after_an_abort_is_right(reader: Reader) -> None:
    reader.give(T0, 5)
    aborted = reader.now()
    reader.progress.settle()
    reader.give(T0, 5, 6)
    assert reader.progress.objection(aborted) is None


def test_who_has_moved_by_hand_has_decided(reader: Reader) -> None:
    reader.give(T0, 5)
    reader.give(T1, 5)
    aborted = reader.now()
    reader.progress.forget([T0])
    reader.progress.forget()
    reader.give(T0, 9)
    assert reader.progress.objection(aborted) is None
    assert reader.progress.first == {T0: 9}


def test_an_abort_after_the_promise_is_an_abort_of_those_records(reader: Reader) -> None:
    reader.give(T0, 5)
    restore = reader.progress.commit({T0: 6})
    restore()
    aborted = reader.now()
    reader.give(T0, 6)
    assert reader.progress.objection(aborted) is not None


def test_an_abort_before_the_first_record_does_not_matter(reader: Reader) -> None:
    aborted = reader.now()
    reader.give(T0, 5, 6)
    assert reader.progress.objection(aborted) is None
