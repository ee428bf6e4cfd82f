"""The files of kafka-reassign-partitions, and what it makes of what is in progress."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.cli.kafka_compat.leader_election import read_partitions
from ottla.cli.kafka_compat.options import Failure
from ottla.cli.kafka_compat.reassign_partitions import describe_ongoing
from ottla.cli.kafka_compat.reassignment_files import (
    as_json,
    check_moves,
    read_brokers,
    read_moves,
    read_topics,
)
from ottla.client.direct import SET, DirectAdmin
from ottla.client.reassignments import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    Ongoing,
    limit_copies,
    movements,
)
from ottla.errors import KafkaError
from ottla.model.ids import Replica, TopicPartition

ONE, TWO = TopicPartition("t", 1), TopicPartition("t", 2)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "moves.json"


def test_what_is_printed_can_be_read(file: Path) -> None:
    file.write_text(as_json({TWO: [3], ONE: [1, 2]}, {Replica(2, ONE): "/b"}))
    moves = read_moves(str(file))
    assert moves.partitions == [(ONE, [1, 2]), (TWO, [3])]
    assert moves.folders == {Replica(2, ONE): "/b"}
    assert check_moves(moves) == {ONE: [1, 2], TWO: [3]}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is not valid JSON"),
        ("[]", "holds no JSON object"),
        ('{"version": 3}', "Not supported version field value 3"),
        ("{}", "Partition reassignment list cannot be empty"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": []}]}', "replica list cannot"),
        ('{"partitions": [{"topic": "t", "partition": "0", "replicas": [1]}]}', "correct the file"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": ["1"]}]}', "correct the file"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": 1}]}', "correct the file"),
        ('{"partitions": [{"partition": 0, "replicas": [1]}]}', "correct the file"),
        ('{"partitions": [7]}', "correct the file"),
        ('{"partitions": null}', "partitions has to be a list"),
        ('{"partitions": [{"topic": "t", "partition": 4294967296, "replicas": [1]}]}', "correct"),
        (r'{"partitions": [{"topic": "\ud800", "partition": 0, "replicas": [1]}]}', "correct"),
        ("[" * 100_000, "too many brackets"),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [2, 1, 2]}]}',
            "t-0 contains multiple entries for 2",
        ),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(file: Path, text: str, complaint: str) -> None:
    file.write_text(text)
    with pytest.raises(Failure, match=complaint):
        check_moves(read_moves(str(file)))


@pytest.mark.timeout(60)
def test_a_plan_of_very_many_partitions_is_read_at_once(file: Path) -> None:
    """Each was compared with all the others, which takes minutes for these."""
    many = {TopicPartition("t", index): [1, 2] for index in range(60_000)}
    file.write_text(as_json(many))
    assert check_moves(read_moves(str(file))) == many
    assert read_partitions(str(file)) == list(many)


def test_a_folder_is_named_with_or_without_a_slash_at_the_end(file: Path) -> None:
    file.write_text(as_json({ONE: [1, 2]}, {Replica(1, ONE): "/", Replica(2, ONE): "/b/"}))
    assert read_moves(str(file)).folders == {Replica(1, ONE): "/", Replica(2, ONE): "/b"}


def test_a_file_that_is_not_there_is_refused(file: Path) -> None:
    with pytest.raises(Failure, match="No such file"):
        read_topics(str(file))


def test_topics_and_brokers_are_named_once(file: Path) -> None:
    file.write_text('{"topics": [{"topic": "a"}, {"topic": "b"}]}')
    assert read_topics(str(file)) == ["a", "b"]
    file.write_text('{"topics": [{"topic": "a"}, {"topic": "a"}]}')
    with pytest.raises(Failure, match=r"duplicate entries: \[a\]"):
        read_topics(str(file))
    file.write_text('{"topics": [{"name": "a"}]}')
    with pytest.raises(Failure, match="correct the file"):
        read_topics(str(file))
    assert read_brokers("3,1") == [3, 1]
    with pytest.raises(Failure, match=r"duplicate entries: \[3\]"):
        read_brokers("3,1,3")
    with pytest.raises(Failure, match="expected broker ids"):
        read_brokers("3,x")


def test_what_is_in_progress_is_listed_by_partition() -> None:
    assert describe_ongoing({}) == "No partition reassignments found."
    active = {TWO: Ongoing((4, 1), (4,), ()), ONE: Ongoing((4, 2, 1), (4,), (1, 2))}
    assert describe_ongoing(active).splitlines() == [
        "Current partition reassignments:",
        "t-1: replicas: 4,2,1. adding: 4. removing: 1,2.",
        "t-2: replicas: 4,1. adding: 4.",
    ]


def test_a_copy_comes_from_those_who_had_it_before() -> None:
    active = {ONE: Ongoing((4, 1, 2), (4,), (1, 2))}
    moved = movements(active, {ONE: [5, 1], TWO: [1, 3]}, {ONE: [4, 1, 2], TWO: [1, 2]})
    assert moved == {ONE: ({1, 2}, {5}), TWO: ({1, 2}, {3})}


def test_the_throttle_of_many_topics_is_found_in_one_look_at_the_plan() -> None:
    looks = 0

    class Plan(dict[TopicPartition, tuple[set[int], set[int]]]):
        def items(self) -> Any:
            nonlocal looks
            looks += 1
            return super().items()

    set_to: dict[str, list[tuple[str, int, str | None]]] = {}
    admin = SimpleNamespace(alter_configs=lambda _, name, changes: set_to.update({name: changes}))
    plan = Plan({TopicPartition(f"t{index}", 0): ({1}, {2}) for index in range(50)})
    limit_copies(cast("DirectAdmin", admin), plan, 1000)
    assert looks == 1
    assert len(set_to) == 52
    assert set_to["t7"] == [(LEADER_REPLICAS, SET, "0:1"), (FOLLOWER_REPLICAS, SET, "0:2")]
    assert set_to["2"] == [(LEADER_RATE, SET, "1000"), (FOLLOWER_RATE, SET, "1000")]


@pytest.mark.parametrize("or_all", [False, True])
def test_a_topic_of_which_more_moves_than_a_throttle_can_name(or_all: bool) -> None:
    """Nothing is limited where that cannot be: topics before it in the alphabet were."""
    set_to: dict[str, list[tuple[str, int, str | None]]] = {}
    admin = SimpleNamespace(alter_configs=lambda _, name, changes: set_to.update({name: changes}))
    few = {TopicPartition("few", 0): ({1}, {2})}
    plan = few | {TopicPartition("many", index): ({1, 2}, {3}) for index in range(3_000)}
    if or_all:
        limit_copies(cast("DirectAdmin", admin), plan, 1000, or_all=True)
        assert set_to["few"] == [(LEADER_REPLICAS, SET, "0:1"), (FOLLOWER_REPLICAS, SET, "0:2")]
        assert [value for _, _, value in set_to["many"]] == ["*", text_of(3_000)]
        return
    with pytest.raises(KafkaError, match="many has 6000 replicas to be limited, more than a"):
        limit_copies(cast("DirectAdmin", admin), plan, 1000)
    assert not set_to
    kept = [("many", LEADER_REPLICAS)]
    limit_copies(cast("DirectAdmin", admin), plan, 1000, kept=kept)
    assert set_to["many"] == [(FOLLOWER_REPLICAS, SET, text_of(3_000))]


def text_of(partitions: int) -> str:
    """Broker 3's replica of each."""
    return ",".join(sorted(f"{index}:3" for index in range(partitions)))
