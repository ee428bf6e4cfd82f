from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.client.descriptions import OffsetInfo
from ottla.client.resets import (
    ToTime,
    format_plans,
    parse_datetime,
    parse_duration,
    parse_plans,
    parse_topic_argument,
    plan_reset,
)
from ottla.model.ids import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("2023-11-14T22:13:20.000Z", 1_700_000_000_000),
        ("2023-11-14T22:13:20.123", 1_700_000_000_123),
        ("2023-11-14T23:13:20.000+01:00", 1_700_000_000_000),
        ("2023-11-14T22:13:20.000+0000", 1_700_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
    ],
)
def test_a_time_without_a_zone_is_utc(text: str, milliseconds: int) -> None:
    assert parse_datetime(text) == milliseconds


@pytest.mark.parametrize("text", ["2023-11-14", "soon", "2023-13-99T00:00:00.000", ""])
def test_what_is_not_a_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"timestamp|Unparseable"):
        parse_datetime(text)


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("P1D", timedelta(days=1)),
        ("PT15M", timedelta(minutes=15)),
        ("P2DT3H4M5.5S", timedelta(days=2, hours=3, minutes=4, seconds=5.5)),
        ("-PT1H", timedelta(hours=-1)),
        ("pt-10m", timedelta(minutes=-10)),
    ],
)
def test_durations_are_read_as_java_reads_them(text: str, span: timedelta) -> None:
    assert parse_duration(text) == span


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "1D", "P1H", "PT1D", "P1Y"])
def test_what_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be parsed to a Duration"):
        parse_duration(text)


def test_a_record_that_comes_while_the_end_is_asked_for_is_not_left_out() -> None:
    moment = 1_000
    written: list[int] = []  # the timestamps of what is written meanwhile, from offset 5 on

    class Topics:
        def offsets(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, OffsetInfo]:
            return {tp: OffsetInfo(self._offset(tp, at), -1, None) for tp, at in wanted.items()}

        def _offset(self, tp: TopicPartition, at: int) -> int:
            if at == moment:
                return 5 if written and tp == A0 else -1
            if tp == A0:
                written.append(moment + 1)
            return 5 + len(written) if tp == A0 else 8

    groups: Any = SimpleNamespace(topics=Topics())
    plan = plan_reset(groups, "g", [A0, A1], ToTime(moment))
    assert (plan.offsets, plan.too_young) == ({A0: 5, A1: 8}, (A1,))


def test_partitions_of_a_topic_argument() -> None:
    assert parse_topic_argument("a:0,1") == [A0, A1]


@pytest.mark.parametrize("text", ["a:", ":1", "a:1:2", "a:x", "a:1,"])
def test_a_topic_argument_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Invalid"):
        parse_topic_argument(text)


def test_plans_survive_a_file_with_and_without_groups() -> None:
    plans = {"g": {A0: 3, A1: 4}}
    assert format_plans(plans, with_group=False) == "a,0,3\na,1,4\n"
    assert parse_plans(format_plans(plans, with_group=False), ["g"]) == plans
    two = {"g": {A0: 3}, "with,comma": {A1: 4}}
    assert parse_plans(format_plans(two, with_group=True), ["g", "with,comma"]) == two


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the file is empty"),
        ("a,0\n", "line 1: expected topic,partition,offset"),
        ("a,0,1\na,x,1\n", "line 2: a partition is a number, not 'x'"),
        ("a,0,many\n", "line 1: an offset is a number, not 'many'"),
        ("g,a,0,1,2\n", "line 1: expected"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_plans(text, ["g"])


def test_lines_without_a_group_are_ambiguous_for_two() -> None:
    with pytest.raises(ValueError, match="group,topic,partition,offset for several"):
        parse_plans("a,0,1\n", ["g", "h"])
