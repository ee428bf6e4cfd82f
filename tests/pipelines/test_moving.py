"""Moving and forgetting a pipeline whose driver was killed: on a real broker, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla.client.descriptions import NewTopic
from ottla.client.direct import DirectAdmin
from ottla.client.groups import CommittedOffset, Groups
from ottla.client.resets import ToEarliest, ToGiven
from ottla.model.ids import TopicPartition
from ottla.pipelines.connectors.option import Declaration
from ottla.pipelines.connectors.process import Way
from ottla.pipelines.connectors.spec.values import Connector, PipelineSpec
from ottla.pipelines.driver.home import Home, Refused
from ottla.pipelines.driver.member import Member, client_id, new_member_id
from ottla.pipelines.driver.membership import Membership
from ottla.pipelines.driver.moving import forget, move_to, planned, whereabouts
from ottla.pipelines.driver.run import Driver
from ottla.pipelines.driver.start import Choices, Follow


class Killed:
    """A pipeline of one topic with one finished batch, whose driver is still in the group."""

    def __init__(self, bootstrap: str, folder: Path, topic: str) -> None:
        with DirectAdmin(bootstrap) as admin:
            admin.create_topic(NewTopic(topic, 2, 1))
        self.first = TopicPartition(topic, 0)
        self.group = f"ottla-{topic}"
        self.home = Home(folder, topic)
        self.home.make()
        self.checkpoint = self.home.folder / "checkpoint"
        self.member = new_member_id()
        self.home.remember(
            {"name": topic, "group": self.group, "bootstrap": bootstrap, "member": self.member,
             "checkpoint": str(self.checkpoint), "topics": [topic], "source": "topic"}
        )  # fmt: skip
        self.batch("offsets", 0, {"0": [0, 5, -1], "1": [0, 7, -1]})
        self.batch("commits", 0, {})
        (self.checkpoint / "metadata").write_text('{"id":"run"}')
        self.groups = Groups(bootstrap, client_id=client_id())

    def batch(self, kind: str, number: int, partitions: dict[str, list[int]]) -> None:
        (self.checkpoint / kind).mkdir(parents=True, exist_ok=True)
        topics = {self.first.topic: {"id": None, "partitions": partitions}}
        text = json.dumps({"v": 1, "topics": topics})
        (self.checkpoint / kind / str(number)).write_text(f"v1\n{{}}\n{text}")

    def join(self, member: str) -> None:
        """A driver joins, and is killed."""
        driver = Member(
            self.groups,
            Membership(self.group, member, [self.first.topic]),
            "p",
            lost=lambda _: None,
        )
        driver.join()
        driver._over = True  # no more heartbeats


@pytest.fixture
def killed(bootstrap: str, tmp_path: Path, unique: Callable[..., str]) -> Iterator[Killed]:
    made = Killed(bootstrap, tmp_path, unique())
    yield made
    made.groups.close()


def test_the_member_of_a_killed_driver_does_not_keep_the_pipeline_from_being_moved(
    bootstrap: str, killed: Killed
) -> None:
    killed.join(killed.member)
    with Groups(bootstrap) as groups:
        assert move_to(killed.home, groups, {killed.first: 2}) == 1
        assert groups.offsets(killed.group)[killed.first].offset == 2
        rows = whereabouts(killed.home, groups).partitions
    assert [row.checkpoint for row in rows] == [2, 7]


def test_nor_from_being_forgotten(bootstrap: str, killed: Killed) -> None:
    killed.join(killed.member)
    with Groups(bootstrap) as groups:
        assert f"group {killed.group}" in forget(killed.home, groups)
    assert not killed.checkpoint.exists()


def test_while_a_driver_runs_elsewhere_nothing_is_moved_or_forgotten(
    bootstrap: str, killed: Killed
) -> None:
    killed.join(new_member_id())
    with Groups(bootstrap) as groups:
        with pytest.raises(Refused, match="is run by process"):
            move_to(killed.home, groups, {killed.first: 2})
        with pytest.raises(Refused, match="is run by process"):
            forget(killed.home, groups)
    assert sorted(path.name for path in (killed.checkpoint / "offsets").iterdir()) == ["0"]


def test_nor_does_a_second_driver_move_the_checkpoint_of_one_that_runs(
    bootstrap: str, killed: Killed, tmp_path: Path
) -> None:
    """Both see the same checkpoint, each from a folder of its own."""
    topic, names = killed.first.topic, ("topic", "x")
    source, sink = (Connector(name, {}, Declaration(name, "", (), dict)) for name in names)
    spec = PipelineSpec(topic, bootstrap, source, sink, checkpoint=str(killed.checkpoint))

    class Reads:
        def topics_read(self) -> list[str]:
            return [topic]

    home = Home(tmp_path / "another machine", topic)
    home.make()
    with Groups(bootstrap) as groups:
        groups.set_offsets(killed.group, {killed.first: CommittedOffset(3)})
    killed.join(new_member_id())
    choices = Choices(once=True, follow=Follow.GROUP, accept_changes=True)
    second = Driver(spec, Way(Reads(), lambda rows: rows, object()), home, choices)
    with pytest.raises(Refused, match=r"is run by process .*UNRELEASED_INSTANCE_ID"):
        second.run()
    assert sorted(path.name for path in (killed.checkpoint / "offsets").iterdir()) == ["0"]
    assert not home.remembered(), "it has not become that pipeline"


def test_after_a_kill_in_the_first_batch_what_is_not_moved_stays_where_it_began(
    bootstrap: str, killed: Killed
) -> None:
    killed.batch("offsets", 0, {"0": [3, 5, -1], "1": [4, 7, -1]})  # it did not begin at 0
    (killed.checkpoint / "commits" / "0").unlink()
    with Groups(bootstrap) as groups:
        found = whereabouts(killed.home, groups)
        assert [row.checkpoint for row in found.partitions] == [3, 4]
        assert found.unfinished == 0
        assert move_to(killed.home, groups, {killed.first: 2}) == 0
        found = whereabouts(killed.home, groups)
    assert [row.checkpoint for row in found.partitions] == [2, 4]
    assert found.unfinished is None


def test_a_topic_that_a_pattern_has_found_since_the_start_keeps_its_place(
    bootstrap: str, killed: Killed, unique: Callable[..., str]
) -> None:
    found = unique()
    with DirectAdmin(bootstrap) as admin:
        admin.create_topic(NewTopic(found, 1, 1))
    path = killed.checkpoint / "offsets" / "0"
    *lines, last = path.read_text().split("\n")
    document = json.loads(last)
    document["topics"][found] = {"id": None, "partitions": {"0": [0, 9, -1]}}
    path.write_text("\n".join([*lines, json.dumps(document)]))
    with Groups(bootstrap) as groups:
        move_to(killed.home, groups, {killed.first: 2})
        rows = whereabouts(killed.home, groups).partitions
        assert {str(row.partition): row.checkpoint for row in rows}[f"{found}-0"] == 9
        there = planned(killed.home, groups, ToGiven({TopicPartition(found, 0): 0}))
        assert there == {TopicPartition(found, 0): 0}


def test_a_topic_that_was_deleted_is_left_behind_by_a_move(
    bootstrap: str, killed: Killed, unique: Callable[..., str]
) -> None:
    """One that a pattern has matched: the pipeline stops at it, and a move is the way out."""
    path = killed.checkpoint / "offsets" / "0"
    *lines, last = path.read_text().split("\n")
    document = json.loads(last)
    document["topics"][unique()] = {"id": None, "partitions": {"0": [0, 9, -1]}}
    path.write_text("\n".join([*lines, json.dumps(document)]))
    with Groups(bootstrap) as groups:
        wanted = planned(killed.home, groups, ToEarliest())
        assert wanted == {killed.first: 0, TopicPartition(killed.first.topic, 1): 0}
        move_to(killed.home, groups, wanted)
        rows = whereabouts(killed.home, groups).partitions
    assert {row.partition.topic for row in rows} == {killed.first.topic}
