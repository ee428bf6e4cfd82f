from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from ottla.client.descriptions import (
    ConfigEntry,
    NewTopic,
    OffsetInfo,
    PartitionDescription,
    TopicDescription,
    TopicListing,
)
from ottla.client.direct import DELETE, SET, TOPIC
from ottla.client.topic_offsets import EARLIEST
from ottla.errors import ErrorCode, KafkaError

Run = Callable[..., Result]

EXISTS = KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'a' already exists.")
MISSING = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host it.")


class FakeAdmin:
    """Remembers calls; answers with two topics, or with the failures it was given."""

    router = None

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.failures: dict[str, KafkaError] = {}

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(self, *_: object) -> None: ...

    def _call(self, name: str, *arguments: Any) -> dict[str, KafkaError]:
        self.calls.append((name, arguments))
        return self.failures

    def create_topics(self, topics: Any) -> dict[str, KafkaError]:
        return self._call("create", *topics)

    def delete_each(self, names: tuple[str, ...]) -> dict[str, KafkaError]:
        return self._call("delete", *names)

    def create_partitions(self, totals: dict[str, int], _assignments: Any) -> None:
        self._call("grow", *totals.items())

    def alter_configs(self, kind: int, name: str, changes: Any) -> None:
        self._call("alter", kind, name, list(changes))

    def list_topics(self, *, internal: bool = False) -> tuple[TopicListing, ...]:
        self._call("list", internal)
        return (TopicListing("a", 1, 1, False), TopicListing("long-name", 12, 3, False))

    def describe_each(self, names: tuple[str, ...]) -> dict[str, TopicDescription | KafkaError]:
        self._call("describe", *names)
        partitions = (
            PartitionDescription(0, 1, (1, 2), (1,)),
            PartitionDescription(1, None, (2,), ()),
        )
        described = {
            name: TopicDescription(name, f"id-{name}", False, partitions) for name in names
        }
        return {**described, **self.failures}

    def describe_configs(self, kind: int, name: str) -> tuple[ConfigEntry, ...]:
        return (
            ConfigEntry("retention.ms", "1", "topic"),
            ConfigEntry("segment.bytes", "2", "default"),
        )

    def list_offsets(self, wanted: dict[Any, int]) -> dict[Any, OffsetInfo]:
        return {tp: OffsetInfo(3 if at == EARLIEST else 8) for tp, at in wanted.items()}


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()
    monkeypatch.setattr("ottla.cli.topic._admin", lambda bootstrap: fake)
    return fake


def test_list_is_a_table(ottla: Run, admin: FakeAdmin) -> None:
    result = ottla("topic", "list")
    assert result.exit_code == 0
    assert result.output == (
        "TOPIC      PARTITIONS  REPLICATION\n"
        "a                   1            1\n"
        "long-name          12            3\n"
    )
    assert admin.calls == [("list", (False,))]


def test_list_as_json(ottla: Run, admin: FakeAdmin) -> None:
    result = ottla("topic", "list", "--internal", "--json")
    assert json.loads(result.output)[1] == {
        "name": "long-name",
        "partitions": 12,
        "replication": 3,
        "internal": False,
    }
    assert admin.calls == [("list", (True,))]


def test_create_passes_everything_on(ottla: Run, admin: FakeAdmin) -> None:
    result = ottla(
        "topic", "create", "a", "b", "--partitions", "3", "--replication", "2",
        "--config", "retention.ms=5", "--config", "cleanup.policy=compact,delete",
    )  # fmt: skip
    assert result.output == "created topic a\ncreated topic b\n"
    config = {"retention.ms": "5", "cleanup.policy": "compact,delete"}
    assert admin.calls == [("create", (NewTopic("a", 3, 2, config), NewTopic("b", 3, 2, config)))]


def test_create_leaves_numbers_to_the_broker(ottla: Run, admin: FakeAdmin) -> None:
    assert json.loads(ottla("topic", "create", "a", "--json").output) == {
        "created": ["a"],
        "existed": [],
    }
    assert admin.calls == [("create", (NewTopic("a"),))]


def test_create_of_what_exists_is_an_error_that_says_how_not_to_be_one(
    ottla: Run, admin: FakeAdmin
) -> None:
    admin.failures = {"a": EXISTS}
    result = ottla("topic", "create", "a")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "Error: Topic 'a' already exists; with --if-not-exists that is no error\n"
    )


def test_create_if_not_exists(ottla: Run, admin: FakeAdmin) -> None:
    admin.failures = {"a": EXISTS}
    result = ottla("topic", "create", "a", "--if-not-exists")
    assert (result.exit_code, result.output) == (0, "topic a exists\n")


def test_create_if_not_exists_still_fails_for_another_reason(ottla: Run, admin: FakeAdmin) -> None:
    bad = KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "bad name")
    admin.failures = {"a": EXISTS, "b b": bad}
    result = ottla("topic", "create", "a", "b b", "--if-not-exists")
    assert (result.exit_code, result.stderr) == (1, "Error: b b: bad name\n")


@pytest.mark.parametrize("option", ["--partitions", "--replication"])
def test_numbers_that_no_topic_can_have_are_refused(ottla: Run, option: str) -> None:
    result = ottla("topic", "create", "t", option, "99999999999")
    assert (result.exit_code, "is not in the range" in result.stderr) == (2, True)


def test_delete(ottla: Run, admin: FakeAdmin) -> None:
    assert ottla("topic", "delete", "a", "b").output == "deleted topic a\ndeleted topic b\n"
    assert admin.calls == [("delete", ("a", "b"))]


def test_delete_if_exists(ottla: Run, admin: FakeAdmin) -> None:
    admin.failures = {"a": MISSING}
    assert ottla("topic", "delete", "a").exit_code == 1
    result = ottla("topic", "delete", "a", "--if-exists")
    assert (result.exit_code, result.output) == (0, "no topic a\n")
    assert json.loads(ottla("topic", "delete", "a", "--if-exists", "--json").output) == {
        "deleted": [],
        "missing": ["a"],
    }


def test_describe_shows_partitions_offsets_and_own_settings(
    ottla: Run, admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ottla.client.offline.problems",
        lambda _router, partitions: {
            tp: KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{tp} is offline: why")
            for tp in partitions
        },
    )
    result = ottla("topic", "describe", "a")
    assert result.stdout == (
        "a  id id-a  retention.ms=1\n"
        "PARTITION   LEADER  REPLICAS  IN SYNC  EARLIEST  LATEST\n"
        "        0        1  1,2       1               3       8\n"
        "        1  offline  2                         -       -\n"
    )
    assert result.stderr == "a-1 is offline: why\n"


def test_describe_as_json(ottla: Run, admin: FakeAdmin) -> None:
    [document] = json.loads(ottla("topic", "describe", "a", "--json").output)
    assert document == {
        "name": "a",
        "id": "id-a",
        "internal": False,
        "replication": 1,
        "config": {"retention.ms": "1"},
        "partitions": [
            {
                "partition": 0,
                "leader": 1,
                "replicas": [1, 2],
                "isr": [1],
                "earliest": 3,
                "latest": 8,
            },
            {
                "partition": 1,
                "leader": None,
                "replicas": [2],
                "isr": [],
                "earliest": None,
                "latest": None,
            },
        ],
    }


def test_topics_that_are_not_there_are_named(ottla: Run, admin: FakeAdmin) -> None:
    admin.failures = {"a": MISSING}
    assert ottla("topic", "describe", "a").stderr == "Error: there is no topic 'a'\n"
    assert ottla("topic", "describe", "a", "b").stderr == "Error: a: there is no topic 'a'\n"
    assert ottla("topic", "delete", "a").stderr == (
        "Error: there is no topic 'a'; with --if-exists that is no error\n"
    )


def test_describe_without_a_name_is_of_all(ottla: Run, admin: FakeAdmin) -> None:
    ottla("topic", "describe")
    assert admin.calls == [("list", (False,)), ("describe", ("a", "long-name"))]


def test_alter_changes_settings_and_partitions(ottla: Run, admin: FakeAdmin) -> None:
    result = ottla(
        "topic", "alter", "a", "--partitions", "9", "--config", "x=1", "--delete-config", "y"
    )
    assert result.output == "altered topic a\n"
    assert admin.calls == [
        ("alter", (TOPIC, "a", [("x", SET, "1"), ("y", DELETE, None)])),
        ("grow", (("a", 9),)),
    ]


def test_alter_as_json(ottla: Run, admin: FakeAdmin) -> None:
    assert json.loads(ottla("topic", "alter", "a", "--config", "x=1", "--json").output) == {
        "name": "a",
        "partitions": None,
        "set": {"x": "1"},
        "deleted": [],
    }


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["alter", "a"], "nothing to change; give --partitions, --config or --delete-config"),
        (["alter", "a", "--config", "x"], "--config 'x': expected KEY=VALUE"),
        (["create"], "Missing argument 'NAME...'"),
        (["create", "a", "--partitions", "0"], "0 is not in the range 1<=x"),
        (["delete"], "Missing argument"),
    ],
)
def test_wrong_command_lines_are_usage_errors(
    ottla: Run, admin: FakeAdmin, arguments: list[str], complaint: str
) -> None:
    result = ottla("topic", *arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert admin.calls == []
