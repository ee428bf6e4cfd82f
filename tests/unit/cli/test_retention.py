from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from click.testing import Result

from ottla.cli.retention import moment, summary, why
from ottla.client.descriptions import Node
from ottla.client.retention import (
    PartitionRetention,
    Position,
    SegmentRetention,
    TopicRetention,
    explain,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.messages.retention import (
    ExplainedHold,
    ExplainedPartition,
    ExplainedPosition,
    ExplainedSegment,
    ExplainRetentionResponse,
)

Run = Callable[..., Result]

NOW = 1_700_000_000_000
DAY = 86_400_000

SEGMENT = SegmentRetention(
    base_offset=0,
    end_offset=100,
    size=5_000_000,
    active=False,
    newest_ms=NOW - DAY,
    since_ms=NOW - DAY,
    rolls_ms=None,
    rule="time",
    due_ms=NOW + DAY + 1,
    unheld_ms=None,
    behind=None,
    readers=(Position("billing", 40),),
)
PARTITION = PartitionRetention(0, 1, None, 0, 100, 100, (SEGMENT,), ())
TOPIC = TopicRetention(
    "orders", NOW, 300_000, ("delete",), 2 * DAY, -1, 7 * DAY, 10_000_000, (PARTITION,), True
)


def test_why_names_the_rule_in_words() -> None:
    def said(rule: str, topic: TopicRetention = TOPIC, **changes: Any) -> str:
        return why(topic, replace(SEGMENT, rule=rule, **changes))

    assert said("time") == "its newest record is younger than retention.ms=172800000"
    assert said("time", due_ms=NOW) == "its newest record is older than retention.ms=172800000"
    assert said("time", behind=7) == "waits for the older segment at offset 7"
    assert said("time", newest_ms=None) == (
        "its file without timestamps is younger than retention.ms=172800000"
    )
    assert said("time", newest_ms=NOW * 1000) == (
        "its file (its newest timestamp, after the year 9999, lies too far ahead) is younger than "
        "retention.ms=172800000"
    )
    assert said("start") == "below the log start offset: goes with the next pass"
    sized = replace(TOPIC, retention_bytes=5)
    assert said("size", sized) == "the partition has retention.bytes=5 without it"
    assert said("hold", unheld_ms=0) == (
        "a group in ottla.retention.hold.groups has not read it; else due: next pass"
    )
    assert said("hold", unheld_ms=NOW + DAY).endswith("else due: 2023-11-15 22:13:20")
    assert said("watermark") == "reaches beyond the high watermark"
    assert said("empty") == "active, without records"
    assert said("unlimited") == "retention.ms=-1"
    assert said("unlimited", sized) == "retention.ms=-1, within retention.bytes=5"
    assert said("compact") == "kept by compaction: the last value of every key stays"
    assert said("none") == "cleanup.policy is empty: everything stays"
    assert said("of a later version") == "of a later version"


def test_a_sentence_about_each_partition() -> None:
    def said(*segments: SegmentRetention, holds: tuple[Position, ...] = ()) -> str:
        return summary(TOPIC, replace(PARTITION, segments=segments, holds=holds))

    empty = replace(SEGMENT, rule="empty", size=0, due_ms=None)
    assert said(empty) == "There are no records."
    assert said(SEGMENT, empty) == (
        "The oldest segment goes at 2023-11-15 22:13:20, in 1 d: its newest record is younger than "
        "retention.ms=172800000."
    )
    due = replace(SEGMENT, due_ms=0)
    assert (
        said(due, due, SEGMENT) == "2 segments (10.0 MB) will go with the next pass, within 5 min."
    )
    held = replace(SEGMENT, rule="hold", due_ms=None)
    waiting = (Position("a", 40), Position("b", None), Position("read", 100))
    assert said(held, holds=waiting) == (
        "Everything from offset 0 on waits for a (at 40), b (no offset), as long as the partition "
        "is not larger than 10.0 MB."
    )
    assert said(replace(SEGMENT, rule="unlimited", due_ms=None)) == (
        "Nothing goes by itself: retention.ms=-1."
    )


def test_offsets_are_written_as_asked_for() -> None:
    held = replace(SEGMENT, rule="hold", base_offset=12_000, end_offset=13_000)
    partition = replace(PARTITION, segments=(held,), holds=(Position("billing", 12_500),))
    assert "from offset 12000 on waits for billing (at 12500)" in summary(TOPIC, partition)
    shown = summary(TOPIC, partition, "{:,}".format)
    assert "from offset 12,000 on waits for billing (at 12,500)" in shown


def test_moments_are_in_utc() -> None:
    assert moment(NOW) == "2023-11-14 22:13:20"
    assert moment(None) is None


class FakeRouter:
    """One topic, `orders`, on two brokers that answer what they are told to."""

    def __init__(self, *answers: ExplainRetentionResponse | KafkaError) -> None:
        self.answers = answers
        self.asked = 0

    def metadata(self, topics: list[str] | None) -> MetadataResponse:
        names = ["orders", "payments"] if topics is None else topics
        return MetadataResponse(
            brokers=[],
            topics=[
                MetadataResponseTopic(
                    name=name,
                    error_code=0 if name == "orders" else 17 if "/" in name else 3,
                    partitions=[
                        MetadataResponsePartition(
                            partition_index=index,
                            leader_id=leader,
                            replica_nodes=[],
                            isr_nodes=[],
                        )
                        for index, leader in enumerate((1, 2, -1))
                    ],
                )
                for name in names
            ],
        )

    def ask_each_node(self, call: Callable[[Node], Any]) -> list[Any]:
        return [call(Node(number, "host", 9092)) for number in (1, 2)]

    def node(self, number: int) -> FakeRouter:
        self.asked = number
        self.host, self.port = "host", 9092
        return self

    def ask(self, request: object) -> ExplainRetentionResponse:
        answer = self.answers[self.asked - 1]
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    def __enter__(self) -> FakeRouter:
        return self

    def __exit__(self, *_: object) -> None: ...


def answer(
    *partitions: ExplainedPartition, positions: tuple[ExplainedPosition, ...] = ()
) -> ExplainRetentionResponse:
    return ExplainRetentionResponse(
        now_ms=NOW,
        check_interval_ms=300_000,
        cleanup_policy="compact,delete",
        retention_ms=2 * DAY,
        retention_bytes=-1,
        segment_ms=7 * DAY,
        hold_bytes=1,
        partitions=list(partitions),
        positions=list(positions),
    )


LED_BY_1 = ExplainedPartition(
    partition_index=0,
    log_start_offset=0,
    high_watermark=20,
    log_end_offset=20,
    segments=[
        ExplainedSegment(
            base_offset=0, end_offset=10, size=500, is_active=False, newest_ms=NOW, since_ms=NOW,
            rule="time", due_ms=NOW + DAY,
        ),
        ExplainedSegment(
            base_offset=10, end_offset=20, size=500, is_active=True, newest_ms=NOW, since_ms=NOW,
            rule="time", due_ms=NOW + DAY, rolls_ms=NOW + 5, behind=0,
        ),
    ],
    holds=[ExplainedHold(group="slow")],
)  # fmt: skip
OFFLINE = ExplainedPartition(
    partition_index=1, error_code=56, error_message="the disk is gone", segments=[], holds=[]
)


def test_the_answers_of_all_brokers_are_put_together() -> None:
    of_1 = ExplainedPosition(group="b", partition_index=0, offset=10)
    of_2 = ExplainedPosition(group="a", partition_index=0, offset=3)
    router = FakeRouter(answer(LED_BY_1, positions=(of_1,)), answer(OFFLINE, positions=(of_2,)))
    topic = explain(router, "orders")
    first, second, third = topic.partitions
    assert topic.cleanup_policy == ("compact", "delete")
    assert [each.readers for each in first.segments] == [
        (Position("a", 3),),
        (Position("a", 3), Position("b", 10)),
    ]
    assert first.holds == (Position("slow", None),)
    assert [each.behind for each in first.segments] == [None, 0]
    assert second.error is not None
    assert (second.leader, second.error.message) == (2, "the disk is gone")
    assert third.error is not None
    assert third.error.code is ErrorCode.LEADER_NOT_AVAILABLE


@pytest.fixture
def run(ottla: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    def go(router: FakeRouter, *arguments: str) -> Result:
        monkeypatch.setattr("ottla.cli.retention.connect", lambda _: None)
        monkeypatch.setattr("ottla.client.router.Router", lambda *_, **__: router)
        return ottla("topic", "explain-retention", *arguments)

    return go


def test_the_table(run: Run) -> None:
    shown = run(FakeRouter(answer(LED_BY_1), answer(OFFLINE)), "orders")
    assert shown.exit_code == 0, shown.output
    assert shown.output.splitlines() == [
        "orders-0  cleanup.policy=compact,delete",
        "OFFSETS   SIZE  COUNTED FROM         DUE                  "
        "WHY                                                       UNREAD BY",
        "0-9      500 B  2023-11-14 22:13:20  2023-11-15 22:13:20  "
        "its newest record is younger than retention.ms=172800000  -",
        "10-19    500 B  2023-11-14 22:13:20  2023-11-15 22:13:20  "
        "waits for the older segment at offset 0                   -",
        "The oldest segment goes at 2023-11-15 22:13:20, in 1 d: its newest record is younger than "
        "retention.ms=172800000.",
        "",
        "orders-1  cleanup.policy=compact,delete",
        "the disk is gone",
        "",
        "orders-2  cleanup.policy=compact,delete",
        ErrorCode.LEADER_NOT_AVAILABLE.text,
    ]


def test_as_json(run: Run) -> None:
    shown = json.loads(run(FakeRouter(answer(LED_BY_1), answer()), "orders", "--json").output)
    assert shown["settings"]["retention.ms"] == 2 * DAY
    first = shown["partitions"][0]
    assert first["holds"] == [{"group": "slow", "offset": None}]
    assert first["segments"][1] == {
        "base_offset": 10,
        "end_offset": 20,
        "size": 500,
        "active": True,
        "rule": "time",
        "why": "waits for the older segment at offset 0",
        "due": NOW + DAY,
        "due_unheld": None,
        "behind": 0,
        "newest_timestamp": NOW,
        "counted_from": NOW,
        "counted_from_file": False,
        "rolls": NOW + 5,
        "unread_by": [],
    }


def test_groups_that_are_being_loaded_are_mentioned(run: Run) -> None:
    loading = answer(LED_BY_1)
    loading.groups_complete = False
    assert "still loading groups" in run(FakeRouter(loading, answer()), "orders").output


def test_a_topic_that_is_not_there(run: Run, topics_there: list[str]) -> None:
    topics_there += ["orders"]
    shown = run(FakeRouter(), "order")
    assert shown.exit_code == 1
    assert shown.output == "Error: there is no topic 'order'; did you mean 'orders'?\n"
    assert run(FakeRouter(), "zebra").output == "Error: there is no topic 'zebra'\n"
    assert run(FakeRouter(), "a/b").output == "Error: 'a/b' cannot be a topic's name\n"


def test_a_broker_that_is_not_ottla(run: Run) -> None:
    closed = KafkaError(ErrorCode.NETWORK_EXCEPTION, "host:9092: the broker closed the connection")
    shown = run(FakeRouter(closed), "orders")
    assert shown.exit_code == 1
    assert shown.output == (
        "Error: broker 1 at host:9092 closed the connection: only brokers of Ottla explain their "
        "retention, and this one seems to be another, or an older one\n"
    )
