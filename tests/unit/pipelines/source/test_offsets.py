"""The JSON of the checkpoint: written, read, and refused in words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ottla.model.ids import ZERO_TOPIC_ID, TopicPartition, topic_id_text
from ottla.pipelines.errors import OptionError
from ottla.pipelines.source.offsets import Mark, Place, Progress
from ottla.pipelines.source.ranges import Range

A, B, C = (TopicPartition("orders", number) for number in range(3))
OLD = bytes(range(16))
NEW = bytes(range(1, 17))


def mark(offset: int, topic_id: bytes = OLD, epoch: int = 3) -> Mark:
    return Mark(topic_id, offset, epoch)


START = Progress.initial({A: mark(100), B: mark(80)})


def read(start: Progress, end: Progress) -> list[tuple[int, int, int]]:
    return [(r.partition, r.start, r.end) for r in Progress.ranges(start, end)]


def test_a_new_query_stands_where_it_begins() -> None:
    assert START.to_json() == {
        "v": 1,
        "topics": {
            "orders": {
                "id": topic_id_text(OLD),
                "partitions": {"0": [100, 100, 3], "1": [80, 80, 3]},
            }
        },
    }
    assert START.ends() == {A: 100, B: 80}
    assert START.marks() == {A: mark(100), B: mark(80)}


def test_a_batch_reads_from_where_the_last_one_ended() -> None:
    end = START.advance({A: mark(250, epoch=4), B: mark(80)}, min_partitions=4)
    assert end.to_json()["topics"]["orders"]["partitions"] == {"0": [100, 250, 4], "1": [80, 80, 3]}
    assert end.to_json()["splits"] == {"orders": {"0": [137, 175, 212]}}
    assert end.to_json()["plan"] == {"minPartitions": 4}
    assert Progress.ranges(START, end) == [
        Range("orders", OLD, 0, first, last, 4)
        for first, last in ((100, 137), (137, 175), (175, 212), (212, 250))
    ]


def test_the_next_batch_begins_at_the_end_of_this_one() -> None:
    first = START.advance({A: mark(110)})
    second = first.advance({A: mark(111), B: mark(90)})
    assert read(first, second) == [(0, 110, 111), (1, 80, 90)]


def test_nothing_new_is_the_very_same_document() -> None:
    end = START.advance({A: mark(250)}, min_partitions=4)
    assert end.advance({A: mark(250, epoch=9), B: mark(80)}, max_records=1) is end
    assert read(end, end) == []


def test_a_stale_answer_moves_nothing_back() -> None:
    assert START.advance({A: mark(40)}) is START
    assert START.advance({A: mark(40), B: mark(81)}).ends() == {A: 100, B: 81}


def test_a_partition_that_was_not_asked_about_keeps_its_place() -> None:
    end = START.advance({B: mark(90)})
    assert end.ends() == {A: 100, B: 90}
    assert read(START, end) == [(1, 80, 90)]


def test_a_new_partition_begins_where_it_is_told() -> None:
    end = START.advance({C: mark(7)}, begins={C: 2})
    assert read(START, end) == [(2, 2, 7)]
    noted = START.advance({C: mark(0)}, begins={C: 0})
    assert noted.ends()[C] == 0, "an empty one is noted, so that nothing in it is missed later"
    with pytest.raises(ValueError, match="orders-2 is new"):
        START.advance({C: mark(7)})


def test_a_jump_over_lost_records_is_noted_and_not_read() -> None:
    end = START.advance({A: mark(250)}, begins={A: 200})
    assert end.to_json()["topics"]["orders"]["partitions"]["0"] == [200, 250, 3, 100]
    assert read(START, end) == [(0, 200, 250)]
    later = end.advance({A: mark(260)})
    assert read(end, later) == [(0, 250, 260)]


def test_a_jump_alone_is_worth_a_batch() -> None:
    end = START.advance({A: mark(200)}, begins={A: 200})
    assert end is not START
    assert read(START, end) == []


def test_a_jump_back_reads_again() -> None:
    end = START.advance({A: mark(30)}, begins={A: 0})
    assert read(START, end) == [(0, 0, 30)]


def test_a_topic_made_anew_begins_anew() -> None:
    end = START.advance({A: mark(5, NEW, 0)}, begins={A: 0})
    assert Progress.ranges(START, end) == [Range("orders", NEW, 0, 0, 5, 0)]
    assert end.ends() == {A: 5}, "a partition that the new topic does not have is forgotten"
    with pytest.raises(ValueError, match="is new"):
        START.advance({A: mark(500, NEW)})


def test_a_topic_made_anew_and_empty_is_noted() -> None:
    end = Progress.initial({A: mark(0)}).advance({A: mark(0, NEW)}, begins={A: 0})
    assert end.topics["orders"].topic_id == NEW


def test_a_topic_that_is_gone_is_left_out() -> None:
    end = START.advance({}, gone=START.ends())
    assert end.ends() == {}
    assert read(START, end) == []
    assert end.advance({}, gone=START.ends()) is end


def test_documents_that_are_not_neighbours_leave_nothing_out() -> None:
    first = START.advance({A: mark(150)})
    second = first.advance({A: mark(180)}, max_records=10)
    assert read(START, second) == [(0, 100, 160), (0, 160, 170), (0, 170, 180)]
    jumped = first.advance({A: mark(300)}, begins={A: 200})
    assert read(START, jumped) == [(0, 100, 150), (0, 200, 300)]


def test_a_checkpoint_of_sparks_connector_is_taken_over() -> None:
    start = Progress.of_json('{"orders":{"1":80,"0":100}}')
    end = Progress.of_json('{"orders":{"0":120,"1":80,"2":5}}')
    assert Progress.ranges(start, end) == [
        Range("orders", ZERO_TOPIC_ID, 0, 100, 120, -1),
        Range("orders", ZERO_TOPIC_ID, 2, 0, 5, -1),
    ]
    assert end.advance({A: mark(120), B: mark(80), C: mark(5)}) is end, "an id makes no batch"
    ours = end.advance({A: mark(130)})
    assert ours.topics["orders"].topic_id == OLD
    assert Progress.ranges(end, ours) == [Range("orders", OLD, 0, 120, 130, 3)]


def test_a_topic_of_sparks_connector_may_be_called_v() -> None:
    assert Progress.of_json({"v": {"0": 3}}).ends() == {TopicPartition("v", 0): 3}


def test_what_was_written_is_read_as_it_was() -> None:
    end = START.advance({A: mark(250), C: mark(9)}, begins={A: 120, C: 0}, max_records=50)
    assert Progress.of_json(end.to_json()) == end
    assert Progress.of_json(json.dumps(end.to_json())) == end
    taken = Progress.of_json({"orders": {"0": 5}})
    assert Progress.of_json(taken.to_json()) == taken
    assert taken.topics["orders"].partitions[0] == Place(None, 5)


def document(**changes: Any) -> dict[str, Any]:
    return START.to_json() | changes


def topic(**changes: Any) -> dict[str, Any]:
    entry = {"id": topic_id_text(OLD), "partitions": {"0": [1, 2, 3]}} | changes
    return document(topics={"orders": entry})


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ("{", "the document is not JSON"),
        ("[]", "the document is not a JSON object"),
        ({"orders": 5}, "orders is not a JSON object"),
        ({"orders": {"zero": 5}}, "orders.zero is not the number of a partition"),
        ({"orders": {"0": "5"}}, "orders.0 is '5' and not a whole number"),
        ({"orders": {"0": -1}}, "orders.0 is -1 and may not be below 0"),
        ({"v": 1}, "topics is not a JSON object"),
        (document(more=1), "more is nothing that version 1 knows"),
        (document(topics=[]), "topics is not a JSON object"),
        (document(topics={"orders": {}}), "topics.orders does not hold id and partitions"),
        (topic(id="x"), "topics.orders.id is 'x' and not the id of a topic"),
        (topic(id=7), "topics.orders.id is 7 and not the id of a topic"),
        (topic(partitions=[]), "topics.orders.partitions is not a JSON object"),
        (topic(partitions={"-1": [1, 2, 3]}), "topics.orders.partitions.-1 is not the number"),
        (topic(partitions={"0": [1, 2]}), "topics.orders.partitions.0 is not [from, to, epoch]"),
        (topic(partitions={"0": [5, 2, 3]}), "topics.orders.partitions.0[1] is 2 and may not"),
        (topic(partitions={"0": [1, True, 3]}), "topics.orders.partitions.0[1] is True and not"),
        (topic(partitions={"0": [1, 2, -2]}), "topics.orders.partitions.0[2] is -2 and may not"),
        (topic(partitions={"0": [1, 2, 3, None]}), "topics.orders.partitions.0[3] is None"),
        (document(splits={"orders": {"9": [1]}}), "splits.orders.9 is of a partition that"),
        (document(splits={"orders": {"0": 5}}), "splits.orders.0 is not a list of offsets"),
        (document(splits={"orders": {"0": [5, 4]}}), "splits.orders.0 is not in rising order"),
        (document(splits={"orders": {"0": [5, "6"]}}), "splits.orders.0[1] is '6' and not"),
        (document(plan={"minPartitions": 0}), "plan.minPartitions is 0 and may not be below 1"),
    ],
)
def test_a_malformed_document_is_refused_with_the_place(wrong: Any, where: str) -> None:
    with pytest.raises(OptionError) as caught:
        Progress.of_json(wrong)
    assert caught.value.option == "checkpointLocation"
    assert where in str(caught.value)
    assert "use another checkpointLocation" in str(caught.value)


@pytest.mark.parametrize("version", [2, "1", None, True])
def test_another_version_is_refused(version: object) -> None:
    with pytest.raises(OptionError, match="this Ottla reads version 1"):
        Progress.of_json({"v": version})
