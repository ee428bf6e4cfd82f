"""`ottla topic elect`: what is asked of the cluster, and what is shown before a loss."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from click.testing import Result

from ottla.client import accepted_loss
from ottla.client.accepted_loss import Offer
from ottla.client.descriptions import PartitionDescription, TopicDescription
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

Run = Callable[..., Result]

TP = TopicPartition("orders", 0)
STUCK = Offer(TP, (1, 2, 3), (1,), False, (), (2, 3), 3, 7, 41)
NOBODY = Offer(TopicPartition("orders", 1), (1,), (1,), False)


class FakeAdmin:
    """Remembers elections, and answers as it was told."""

    def __init__(self) -> None:
        self.elections: list[tuple[Any, bool]] = []
        self.outcomes: dict[TopicPartition, KafkaError | None] = {TP: None}
        self.offers = [STUCK, NOBODY]

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(self, *_: object) -> None: ...

    def describe_topics(self, names: tuple[str, ...]) -> tuple[TopicDescription, ...]:
        part = PartitionDescription(0, None, (1, 2, 3), ())
        return tuple(TopicDescription(name, "id", False, (part,)) for name in names)

    def elect_leaders(self, partitions: Any, *, unclean: bool = False) -> Any:
        self.elections.append((partitions, unclean))
        return self.outcomes


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    made = FakeAdmin()
    monkeypatch.setattr("ottla.client.direct.DirectAdmin", lambda *_, **__: made)
    monkeypatch.setattr("ottla.cli.elections.connect", lambda _: None)

    def offers(_: object, topics: Any) -> list[Offer]:
        return [each for each in made.offers if not topics or each.partition.topic in topics]

    monkeypatch.setattr(accepted_loss, "offers", offers)
    return made


def test_preferred_leaders_are_elected_in_all_topics_or_in_some(
    ottla: Run, admin: FakeAdmin
) -> None:
    assert "elected leaders of 1 partition" in ottla("topic", "elect").stdout
    ottla("topic", "elect", "orders")
    assert admin.elections == [(None, False), ([TP], False)]


def test_a_loss_is_shown_and_nothing_is_done_without_yes(ottla: Run, admin: FakeAdmin) -> None:
    shown = ottla("topic", "elect", "--accept-loss")
    assert shown.exit_code == 0
    assert admin.elections == []
    lines = shown.stdout.splitlines()
    assert lines[0] == "2 partitions without a leader; nothing is changed without --yes"
    cells = "orders-0 broker 1 3 41 what only 1 had, from offset 41 on or before"
    assert " ".join(lines[2].split()) == cells
    assert "no replica answers" in lines[3]


def test_with_yes_it_is_done_where_somebody_can_lead(ottla: Run, admin: FakeAdmin) -> None:
    done = ottla("topic", "elect", "orders", "--accept-loss", "--yes")
    assert admin.elections == [([TP], True)]
    assert "elected leaders of 1 partition" in done.stdout


def test_programs_are_told_the_plan_and_what_became_of_it(ottla: Run, admin: FakeAdmin) -> None:
    admin.offers = [STUCK]
    told = json.loads(ottla("topic", "elect", "--accept-loss", "--json").stdout)
    plan = {
        "topic": "orders",
        "partition": 0,
        "waits_for": [1],
        "waits_for_all": False,
        "leader": 3,
        "last_epoch": 7,
        "end_offset": 41,
        "given_up": [1],
    }
    assert told == {"executed": False, "plan": [plan], "elected": [], "failed": []}
    admin.outcomes = {TP: KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "nobody")}
    failed = ottla("topic", "elect", "--accept-loss", "--yes", "--json")
    assert failed.exit_code == 1
    told = json.loads(failed.stdout)
    assert told["executed"] is True
    assert told["failed"] == [{"topic": "orders", "partition": 0, "error": "nobody"}]


def test_a_leader_without_its_log_has_to_be_stopped_first(ottla: Run, admin: FakeAdmin) -> None:
    admin.offers = [replace(STUCK, broken=(1,))]
    admin.outcomes = {TP: KafkaError(ErrorCode.ELECTION_NOT_NEEDED)}
    failed = ottla("topic", "elect", "--accept-loss", "--yes")
    assert failed.exit_code == 1
    assert "broker 1 leads it and cannot serve its log: stop that broker" in failed.stderr
    admin.offers = [STUCK]  # somebody eligible came back meanwhile
    assert ottla("topic", "elect", "--accept-loss", "--yes").exit_code == 0


def test_a_cluster_that_lost_nobody_needs_no_loss(ottla: Run, admin: FakeAdmin) -> None:
    admin.offers = []
    shown = ottla("topic", "elect", "--accept-loss", "--yes")
    assert "every partition has a leader" in shown.stdout
    assert admin.elections == []


def test_yes_belongs_to_a_loss(ottla: Run, admin: FakeAdmin) -> None:
    refused = ottla("topic", "elect", "--yes")
    assert refused.exit_code == 2
    assert "--accept-loss" in refused.stderr
    assert admin.elections == []


def test_where_nobody_leads_it_is_told_what_else_there_is(ottla: Run, admin: FakeAdmin) -> None:
    admin.outcomes = {TP: KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "not there")}
    for names in ((), ("orders",)):
        done = ottla("topic", "elect", *names)
        assert done.exit_code == 1
        line = " ".join(("ottla topic elect", *names, "--accept-loss"))
        assert "1 partition without a leader: " in done.stderr
        assert f"`{line}` shows who could lead" in done.stderr
    admin.outcomes = {TP: None}
    assert "--accept-loss" not in ottla("topic", "elect").stderr
