"""Committed offsets: who may commit, what expires, what a transaction holds back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.coordinator.group import journal
from ottla.coordinator.group.commands import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    FetchOffsets,
    FetchTopic,
    ForgetTopics,
    ListGroups,
)
from ottla.coordinator.group.commands import PartitionCommit as Commit
from ottla.coordinator.group.group import CommittedOffset
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId
from ottla.model.image import ClusterImage
from ottla.model.topic import PartitionState, Topic
from ottla.testing.shards import START_MS

DAY_MS = 24 * 3600 * 1000
RETENTION_MS = 7 * DAY_MS
Stable = Callable[..., list[Any]]


def commit(runner: Any, *partitions: Commit, group: str = "g", **fields: Any) -> list[ErrorCode]:
    codes: list[ErrorCode] = runner.run(CommitOffsets(group, partitions, **fields))
    return codes


def offsets(runner: Any, group: str = "g", **fields: Any) -> dict[tuple[str, int], int]:
    topics = runner.run(FetchOffsets(group, None, **fields))
    return {
        (topic.topic, each.partition): each.committed.offset
        for topic in topics
        for each in topic.partitions
        if each.committed is not None
    }


def groups(runner: Any) -> set[str]:
    return {each.group_id for each in runner.run(ListGroups())}


def test_a_commit_to_no_group_makes_a_simple_one(runner: Any) -> None:
    assert commit(runner, Commit("t", 0, 5)) == [ErrorCode.NONE]
    assert offsets(runner) == {("t", 0): 5}
    (listed,) = runner.run(ListGroups())
    assert listed == ("g", "", "Empty", "classic")


def test_offsets_are_there_after_a_restart(runner: Any) -> None:
    commit(runner, Commit("t", 0, 5, 3, "note", b"i" * 16), Commit("u", 1, 6))
    commit(runner, Commit("t", 0, 4))
    for compact in (False, True):
        runner.reload(compact=compact)
        assert offsets(runner) == {("t", 0): 4, ("u", 1): 6}


def test_the_note_may_not_be_too_long_and_fails_alone(
    runner: Any, settings: dict[str, Any]
) -> None:
    settings["offset_metadata_max_bytes"] = 3
    codes = commit(
        runner, Commit("t", 0, 5, -1, "long"), Commit("t", 1, 6, -1, "ok"), Commit("t", 2, 7, -1)
    )
    assert codes == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE, ErrorCode.NONE]
    assert offsets(runner) == {("t", 1): 6, ("t", 2): 7}


def test_offsets_of_a_topic_that_had_the_same_name_are_not_shown(runner: Any) -> None:
    old, new = b"o" * 16, b"n" * 16
    commit(runner, Commit("t", 0, 5, topic_id=old))

    def fetched(topic_id: bytes) -> CommittedOffset | None:
        (topic,) = runner.run(FetchOffsets("g", (FetchTopic("t", (0,), topic_id),)))
        found: CommittedOffset | None = topic.partitions[0].committed
        return found

    assert fetched(new) is None
    assert fetched(old) is not None
    assert fetched(bytes(16)) is not None


def test_deleting_offsets(runner: Any, stable: Stable) -> None:
    commit(runner, Commit("t", 0, 5), Commit("other", 0, 6), Commit("other", 1, 7))
    stable()
    codes = runner.run(DeleteOffsets("g", (("t", 0), ("other", 0), ("never", 0))))
    assert codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE, ErrorCode.NONE]
    assert offsets(runner) == {("t", 0): 5, ("other", 1): 7}
    with pytest.raises(KafkaError) as caught:
        runner.run(DeleteOffsets("nobody", ()))
    assert caught.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_deleted_group_takes_everything_along(runner: Any) -> None:
    commit(runner, Commit("t", 0, 5))
    commit(runner, Commit("t", 0, 5), group="other")
    runner.run(DeleteGroup("g"))
    assert groups(runner) == {"other"}
    runner.reload(compact=True)
    assert groups(runner) == {"other"}
    assert offsets(runner) == {}


def test_deleted_topics_are_forgotten_by_all_groups(runner: Any) -> None:
    for group in ("g", "h"):
        commit(runner, Commit("t", 0, 5), Commit("u", 0, 6), group=group)
    runner.run(ForgetTopics(frozenset({"t"})))
    assert offsets(runner, "g") == offsets(runner, "h") == {("u", 0): 6}


def test_what_is_committed_in_a_new_topic_of_the_same_name_stays(runner: Any) -> None:
    old, new = TopicId(b"o" * 16), TopicId(b"n" * 16)
    commit(runner, Commit("t", 0, 5, topic_id=old), Commit("t", 1, 6, topic_id=new))
    commit(runner, Commit("t", 2, 7))  # of a time when topics had no ids
    topic = Topic("t", new, (PartitionState(1, 0, 0, (1,), (1,)),) * 3)
    runner.shard.state.image = ClusterImage(topics={"t": topic}, topic_names={new: "t"})
    runner.run(ForgetTopics(frozenset({"t"})))
    assert offsets(runner) == {("t", 1): 6}


def test_topics_deleted_while_nobody_coordinated_are_forgotten_on_loading(runner: Any) -> None:
    here, gone = b"h" * 16, b"g" * 16
    commit(runner, Commit("t", 0, 5, topic_id=here), Commit("u", 0, 6, topic_id=gone))
    commit(runner, Commit("v", 0, 7))
    make = runner._make

    def with_topics() -> Any:
        shard = make()
        shard.state.image = ClusterImage(topic_names={here: "t"})
        return shard

    runner._make = with_topics
    runner.reload()
    assert offsets(runner) == {("t", 0): 5, ("v", 0): 7}


class TestExpiry:
    def test_offsets_of_a_simple_group_expire_after_the_last_commit(self, runner: Any) -> None:
        commit(runner, Commit("t", 0, 5), Commit("t", 1, 5))
        runner.advance(RETENTION_MS - DAY_MS)
        commit(runner, Commit("t", 1, 6))
        runner.advance(2 * DAY_MS)
        assert offsets(runner) == {("t", 1): 6}
        runner.advance(RETENTION_MS)
        assert offsets(runner) == {}
        assert groups(runner) == set()

    def test_those_of_an_empty_group_expire_after_the_last_member_left(
        self, runner: Any, stable: Stable
    ) -> None:
        (one,) = stable(session_timeout_ms=1_800_000)
        commit(runner, Commit("t", 0, 5), member_id=one.id, epoch=1)
        for _ in range(400):
            runner.advance(1_700_000)
            one.heartbeat()
        assert runner.ms > RETENTION_MS
        assert offsets(runner) == {("t", 0): 5}
        one.leave()
        runner.advance(RETENTION_MS - DAY_MS)
        assert offsets(runner) == {("t", 0): 5}
        runner.advance(2 * DAY_MS)
        assert offsets(runner) == {}
        assert groups(runner) == set()

    def test_those_of_topics_nobody_reads_expire_even_in_a_living_group(
        self, runner: Any, stable: Stable
    ) -> None:
        commit(runner, Commit("other", 0, 5), Commit("t", 0, 6))
        (one,) = stable(session_timeout_ms=1_800_000)
        for _ in range(400):
            runner.advance(1_700_000)
            one.heartbeat()
        assert offsets(runner) == {("t", 0): 6}

    def test_nothing_of_a_group_that_is_not_understood_expires(
        self, runner: Any, stable: Stable
    ) -> None:
        commit(runner, Commit("other", 0, 5))
        (one,) = stable(session_timeout_ms=1_800_000, protocols=(("range", b"?"),))
        for _ in range(400):
            runner.advance(1_700_000)
            one.heartbeat()
        assert offsets(runner) == {("other", 0): 5}

    def test_a_retention_of_its_own_counts_whatever_the_setting(self, runner: Any) -> None:
        commit(runner, Commit("t", 0, 5), retention_ms=DAY_MS)
        commit(runner, Commit("t", 1, 5), retention_ms=2 * RETENTION_MS)
        runner.advance(DAY_MS + 600_000)
        assert offsets(runner) == {("t", 1): 5}
        runner.reload()
        runner.advance(RETENTION_MS)
        assert offsets(runner) == {("t", 1): 5}

    def test_the_settings_are_read_each_time(self, runner: Any, settings: dict[str, Any]) -> None:
        settings["offsets_retention_check_interval_ms"] = 1_000
        commit(runner, Commit("t", 0, 5))
        runner.advance(600_000)
        settings["offsets_retention_minutes"] = 1
        runner.advance(1_000)
        assert offsets(runner) == {}

    def test_a_group_with_ids_given_out_is_not_deleted(self, runner: Any, client: Any) -> None:
        one = client(session_timeout_ms=1_800_000)
        one.id = one._join({}).member_id
        runner.advance(1_200_000)
        assert groups(runner) == {"g"}
        assert one.join() is None


class _Watched(str):
    """A group id that counts how often it is compared with another."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        _Watched.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


class TestTransactions:
    def replay(self, runner: Any, offset: int, position: int, producer_id: int) -> None:
        key, value = journal.offset("g", "t", 0, CommittedOffset(offset, commit_timestamp_ms=1))
        runner.shard.replay(key, value, offset=position, producer_id=producer_id)

    def test_offsets_of_an_open_transaction_do_not_count_yet(self, runner: Any) -> None:
        commit(runner, Commit("t", 0, 5))
        self.replay(runner, 9, 10, 77)
        assert offsets(runner) == {("t", 0): 5}
        (topic,) = runner.run(FetchOffsets("g", (FetchTopic("t", (0, 1)),), require_stable=True))
        assert [each.error for each in topic.partitions] == [
            ErrorCode.UNSTABLE_OFFSET_COMMIT,
            ErrorCode.NONE,
        ]

    @pytest.mark.parametrize(("committed", "expected"), [(True, 9), (False, 5)])
    def test_they_count_when_it_is_committed(
        self, runner: Any, committed: bool, expected: int
    ) -> None:
        commit(runner, Commit("t", 0, 5))
        self.replay(runner, 9, 10, 77)
        runner.shard.end_transaction(77, committed=committed)
        assert offsets(runner, require_stable=True) == {("t", 0): expected}

    def test_the_later_record_counts(self, runner: Any) -> None:
        self.replay(runner, 9, 10, 77)
        self.replay(runner, 8, 11, -1)
        runner.shard.end_transaction(77, committed=True)
        assert offsets(runner) == {("t", 0): 8}

    def test_a_deletion_reaches_them(self, runner: Any) -> None:
        self.replay(runner, 9, 10, 77)
        runner.run(DeleteOffsets("g", (("t", 0),)))
        runner.shard.end_transaction(77, committed=True)
        assert offsets(runner) == {}

    def test_what_two_transactions_commit_is_unstable_until_both_have_ended(
        self, runner: Any
    ) -> None:
        self.replay(runner, 8, 10, 77)
        self.replay(runner, 9, 11, 88)
        runner.shard.end_transaction(77, committed=True)
        assert offsets(runner) == {("t", 0): 8}
        assert offsets(runner, require_stable=True) == {}
        runner.shard.end_transaction(88, committed=True)
        assert offsets(runner, require_stable=True) == {("t", 0): 9}

    def test_what_another_group_has_open_is_not_looked_through(self, runner: Any) -> None:
        for number in range(100):
            entry = journal.OffsetEntry(_Watched("other"), "t", number, CommittedOffset(1))
            runner.shard.replay(b"", b"", offset=number, producer_id=77, meaning=entry)
        commit(runner, Commit("t", 0, 5))
        _Watched.compared = 0
        offsets(runner, require_stable=True)
        runner.run(DeleteOffsets("g", (("t", 0),)))
        runner.advance(RETENTION_MS)
        assert _Watched.compared < 100

    def test_a_group_with_open_transactions_stays(self, runner: Any) -> None:
        self.replay(runner, 9, 10, 77)
        runner.advance(2 * RETENTION_MS)
        assert groups(runner) == {"g"}


def test_the_time_of_a_commit_is_the_brokers(runner: Any) -> None:
    runner.advance(5)
    commit(runner, Commit("t", 0, 5))
    ((_, (each,)),) = runner.run(FetchOffsets("g", None))
    assert each.committed.commit_timestamp_ms == START_MS + 5
