from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from ottla.client.groups import CommittedOffset
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.pipelines.cluster import Cluster, Unreachable
from ottla.pipelines.source import commits
from ottla.pipelines.source.commits import GroupCommits
from ottla.pipelines.source.offsets import Mark, Progress

ORDERS = TopicPartition("orders", 0)
SECONDS = 10.0


class FakeCluster(Cluster):
    """Takes commits once `gate` is open; `fails` are raised first, in order."""

    def __init__(self, *fails: KafkaError) -> None:
        super().__init__("h:1")
        self.fails = list(fails)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.taken: list[CommittedOffset] = []

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        assert group == "g"
        self.entered.set()
        assert self.gate.wait(SECONDS)
        if self.fails:
            raise self.fails.pop(0)
        self.taken.append(offsets[ORDERS])


def progress(offset: int, epoch: int = 3) -> Progress:
    return Progress.initial({ORDERS: Mark(bytes(16), offset, epoch)})


def test_where_a_batch_ended_is_committed_with_its_epoch() -> None:
    cluster = FakeCluster()
    group = GroupCommits(lambda: cluster, "g")
    group.put(progress(5))
    assert group.flush(SECONDS)
    group.put(progress(9, epoch=-1))
    assert group.flush(SECONDS)
    assert cluster.taken == [CommittedOffset(5, 3), CommittedOffset(9, None)]


def test_nobody_waits_and_only_the_newest_is_kept() -> None:
    cluster = FakeCluster()
    cluster.gate.clear()
    group = GroupCommits(lambda: cluster, "g")
    group.put(progress(1))
    assert cluster.entered.wait(SECONDS)
    for offset in (2, 3, 4):
        group.put(progress(offset))
    assert not group.flush(0.01)
    cluster.gate.set()
    assert group.flush(SECONDS)
    assert [each.offset for each in cluster.taken] == [1, 4]


def test_a_cluster_out_of_reach_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "_PAUSE", 0.01)
    cluster = FakeCluster(*[Unreachable(ErrorCode.NETWORK_EXCEPTION, "gone")] * 3)
    group = GroupCommits(lambda: cluster, "g")
    group.put(progress(1))
    assert group.flush(SECONDS)
    assert [each.offset for each in cluster.taken] == [1]


def test_a_refusal_is_said_once_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster(*[KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "has members by now")] * 2)
    group = GroupCommits(lambda: cluster, "g")
    for offset in (1, 2, 3):
        group.put(progress(offset))
        assert group.flush(SECONDS)
    assert [each.offset for each in cluster.taken] == [3]
    [message] = caplog.messages
    assert "has members by now" in message
    assert "The checkpoint is not affected." in message


class SharedCluster(FakeCluster):
    """Keeps what was committed last, whoever did."""

    kept: dict[TopicPartition, CommittedOffset]

    def __init__(self) -> None:
        super().__init__()
        self.kept = {}

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        self.kept.update(offsets)

    def committed(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        return dict(self.kept)


def test_two_queries_that_share_a_derived_group_are_both_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = SharedCluster()
    one, other = (GroupCommits(lambda: cluster, "g", shared=True) for _ in range(2))
    for offset in range(4):
        for group in (one, other):
            group.put(progress(offset))
            assert group.flush(SECONDS)
    assert len(caplog.messages) == 2
    assert all("Group g is also committed to by another query" in each for each in caplog.messages)


def test_a_query_that_is_started_again_is_not_another_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = SharedCluster()
    for run in range(2):
        again = GroupCommits(lambda: cluster, "g", shared=True)
        for offset in range(3):
            again.put(progress(10 * run + offset))
            assert again.flush(SECONDS)
    assert caplog.messages == []
