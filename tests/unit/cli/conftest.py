"""The command line without a broker: a runner, and groups that are not there.

`SceneGroups` holds what tests/conformance/test_group_tools.py makes in a real broker, so that the
same files from Apache's tools can be compared with here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ottla.cli.main import cli
from ottla.client.descriptions import Node, OffsetInfo
from ottla.client.groups import (
    CommittedOffset,
    GroupDescription,
    GroupListing,
    GroupMember,
    Groups,
)
from ottla.client.router import Router
from ottla.client.topic_offsets import EARLIEST, LATEST, MAX_TIMESTAMP, TopicOffsets
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

MARK = "-########"
FIRST_TIMESTAMP = 1_700_000_000_000
ENDS = {
    **{TopicPartition(f"orders{MARK}", number): 10 * (number + 1) for number in range(3)},
    TopicPartition(f"empty{MARK}", 0): 0,
}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTTLA_BOOTSTRAP", raising=False)


@pytest.fixture(autouse=True)
def topics_there(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics that a command finds when it looks for the one that was meant."""
    names: list[str] = []
    monkeypatch.setattr("ottla.cli.names.known_topics", lambda _bootstrap: names)
    return names


@pytest.fixture
def ottla() -> Callable[..., Result]:
    """`ottla("topic", "list", input=…)`: run a command line in this process."""

    def run(*arguments: str, **options: Any) -> Result:
        return CliRunner().invoke(cli, arguments, prog_name="ottla", **options)

    return run


class SceneTopics(TopicOffsets):
    """The topics that they read."""

    def __init__(self) -> None: ...

    def partitions(self, topics: Iterable[str]) -> dict[str, tuple[TopicPartition, ...]]:
        found = {}
        for topic in topics:
            found[topic] = tuple(tp for tp in ENDS if tp.topic == topic)
            if not found[topic]:
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}"
                )
        return found

    def why_missing(self, partitions: Iterable[TopicPartition]) -> KafkaError | None:
        first = min(partitions)
        return KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"there is no partition {first.partition} of topic {first.topic!r}",
        )

    def offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetInfo]:
        found = {}
        for tp, timestamp in wanted.items():
            if tp not in ENDS:
                continue
            if timestamp == EARLIEST:
                offset = 0
            elif timestamp == LATEST:
                offset = ENDS[tp]
            elif timestamp == MAX_TIMESTAMP:
                offset = ENDS[tp] - 1
            else:
                offset = max(0, -(-(timestamp - FIRST_TIMESTAMP) // 1000))
                offset = offset if offset < ENDS[tp] else -1
            found[tp] = OffsetInfo(offset, FIRST_TIMESTAMP + 1000 * offset)
        return found


class SceneGroups(Groups):
    """A group without members, one of each protocol with a member, and two to be deleted."""

    def __init__(self) -> None:
        orders = [TopicPartition(f"orders{MARK}", number) for number in range(3)]
        empty = TopicPartition(f"empty{MARK}", 0)
        all_read = {tp: ENDS[tp] for tp in orders}
        self.committed: dict[str, dict[TopicPartition, int]] = {
            f"idle{MARK}": {orders[0]: 5, orders[1]: 7, empty: 0},
            f"live{MARK}": dict(all_read),
            f"fresh{MARK}": dict(all_read),
            f"gone1{MARK}": {orders[0]: 1},
            f"gone2{MARK}": {orders[0]: 1},
        }
        self.members = {
            f"live{MARK}": GroupMember("app-" + "#" * 36, None, "app", "/127.0.0.1", tuple(orders)),
            f"fresh{MARK}": GroupMember(
                "#" * 22, "one", "app", "/127.0.0.1", tuple(orders), 1, tuple(orders), "consumer"
            ),
        }
        self.router = Router("127.0.0.1:1")
        self.topics = SceneTopics()
        self.changes: list[tuple[Any, ...]] = []
        self.failure: KafkaError | None = None

    def list_groups(
        self, *, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> tuple[GroupListing, ...]:
        if self.failure is not None:
            raise self.failure
        found = []
        for name in self.committed:
            described = self._describe(name)
            found.append(GroupListing(name, described.type, described.protocol, described.state))
        return tuple(
            each
            for each in found
            if (not states or each.state in states) and (not types or each.type in types)
        )

    def _describe(self, name: str) -> GroupDescription:
        if self.failure is not None:
            raise self.failure
        if name not in self.committed:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {name} not found.")
        node = Node(1, "ADDRESS", 0)
        member = self.members.get(name)
        if member is None:
            return GroupDescription(name, "Classic", "", "Empty", "", node, ())
        if name.startswith("live"):
            return GroupDescription(name, "Classic", "consumer", "Stable", "range", node, (member,))
        return GroupDescription(
            name, "Consumer", "consumer", "Stable", "uniform", node, (member,), 1, 1
        )

    def offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        epoch = 0 if group in self.members else None
        found = self.committed.get(group, {})
        return {tp: CommittedOffset(offset, epoch) for tp, offset in sorted(found.items())}

    def set_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.changes.append(("set", group, dict(offsets)))

    def delete_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        if group not in self.committed:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        self.changes.append(("delete offsets", group, list(partitions)))
        if group in self.members:
            return dict.fromkeys(partitions, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return {tp: ErrorCode.NONE if tp in ENDS else unknown for tp in partitions}

    def delete(self, *names: str) -> dict[str, ErrorCode]:
        outcomes = {}
        for name in names:
            outcomes[name] = ErrorCode.NONE
            if name not in self.committed:
                outcomes[name] = ErrorCode.GROUP_ID_NOT_FOUND
            elif name in self.members:
                outcomes[name] = ErrorCode.NON_EMPTY_GROUP
            else:
                self.changes.append(("delete", name))
        return outcomes

    def close(self) -> None: ...


@pytest.fixture
def scene() -> SceneGroups:
    return SceneGroups()


@pytest.fixture
def over_the_scene(scene: SceneGroups, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands find the scene where they would have connected to a broker."""
    monkeypatch.setattr("ottla.cli.options.connect", lambda _bootstrap: None)
    monkeypatch.setattr("ottla.client.groups.Groups", lambda *_arguments, **_options: scene)
    monkeypatch.setattr("ottla.client.topic_offsets.TopicOffsets", lambda _router: scene.topics)
