"""The checkpoint beside the group: what somebody has moved, and what is merely old."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ottla.client.groups import CommittedOffset
from ottla.client.resets import ShiftBy, ToCurrent, ToEarliest
from ottla.client.topology import Leader
from ottla.model.ids import TopicPartition
from ottla.pipelines.cluster import Topic
from ottla.pipelines.driver import offsets
from ottla.pipelines.driver.home import Home, Refused
from ottla.pipelines.driver.moving import _check_same_topics
from ottla.pipelines.source.offsets import Mark, Progress

ID = b"\x01" * 16
FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
POSITION = Progress.initial({FIRST: Mark(ID, 100, 2), SECOND: Mark(ID, 200)})


def test_a_commit_of_ours_that_is_old_is_no_surprise():
    committed = offsets.commits(POSITION, "run-1", 7)
    assert committed[FIRST] == CommittedOffset(100, 2, "ottla pipeline run-1 batch 7")
    assert committed[SECOND].leader_epoch is None
    behind = {FIRST: CommittedOffset(40, None, offsets.stamp("run-1", 3))}
    assert offsets.moved(POSITION, "run-1", committed | behind) == []


def test_what_a_tool_has_committed_is_a_difference():
    committed = {FIRST: CommittedOffset(40), SECOND: CommittedOffset(200)}
    [found] = offsets.moved(POSITION, "run-1", committed)
    assert found == offsets.Difference(FIRST, 100, 40)
    assert offsets.told([found]) == "orders-0 at 40 (checkpoint: 100)"


def test_the_commits_of_another_checkpoint_are_a_difference():
    committed = {FIRST: CommittedOffset(40, None, offsets.stamp("run-0", 3))}
    assert len(offsets.moved(POSITION, "run-1", committed)) == 1
    [found] = offsets.moved(None, None, committed)
    assert offsets.told([found]) == "orders-0 at 40 (checkpoint: nothing)"


def test_what_has_expired_is_none():
    assert offsets.moved(POSITION, "run-1", {}) == []


def test_many_differences_are_told_in_part():
    found = [offsets.Difference(TopicPartition("t", n), 0, 1) for n in range(9)]
    assert offsets.told(found).endswith("t-4 at 1 (checkpoint: 0) and 4 more")


def test_targets_that_depend_on_where_the_pipeline_stands():
    assert offsets.current(POSITION, ToCurrent()) == {FIRST: 100, SECOND: 200}
    assert offsets.current(POSITION, ShiftBy(-150)) == {FIRST: 0, SECOND: 50}
    assert offsets.current(POSITION, ToEarliest()) is None


def test_a_topic_that_was_made_anew_is_not_moved_with_another():
    """At its old offset, under its new id, it would be read without what comes before."""
    other = TopicPartition("other", 0)
    position = Progress.initial(
        {FIRST: Mark(ID, 100, 2), SECOND: Mark(ID, 200), other: Mark(ID, 5)}
    )
    anew = Topic("orders", b"\x02" * 16, {0: Leader(1, 0), 1: Leader(1, 0)})
    topics = {"orders": anew, "other": Topic("other", ID, {0: Leader(1, 0)})}
    stands = offsets.Standing(position, position, None)
    moved = offsets.jump(stands, {other: 0}, topics, {})
    assert moved.topics["orders"].topic_id == ID, "it is still found out"
    assert moved.ends() == {FIRST: 100, SECOND: 200, other: 0}
    assert not Progress.ranges(position, moved)
    moved = offsets.jump(stands, {FIRST: 7}, topics, {SECOND: 3})
    assert moved.topics["orders"].topic_id == anew.id
    assert moved.ends() == {FIRST: 7, SECOND: 3, other: 5}
    assert not Progress.ranges(position, moved)


@pytest.mark.parametrize("now", [ID, bytes(16), b"\x02" * 16])
def test_a_place_in_a_topic_that_was_made_anew_is_no_place_to_go_on_from(tmp_path, now):
    """The records of the new one before that offset would not be read."""
    answer = SimpleNamespace(topics=[SimpleNamespace(name="orders", topic_id=now)])
    groups = SimpleNamespace(router=SimpleNamespace(metadata=lambda names: answer))
    if now != b"\x02" * 16:
        _check_same_topics(Home(tmp_path, "p"), groups, POSITION, ["orders"])
        return
    with pytest.raises(Refused, match=r"stands in topic orders, .* --topic orders --to earliest`"):
        _check_same_topics(Home(tmp_path, "p"), groups, POSITION, ["orders"])
