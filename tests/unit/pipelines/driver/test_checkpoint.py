"""Spark's checkpoint: which batch is finished, and a jump that reads nothing."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path

import pytest

from ottla.model.ids import TopicPartition
from ottla.pipelines.cluster import Topic
from ottla.pipelines.driver import offsets
from ottla.pipelines.driver.checkpoint import Checkpoint, LocalFiles, open_checkpoint
from ottla.pipelines.driver.home import Refused
from ottla.pipelines.source.offsets import Mark, Progress

CONF = '{"batchWatermarkMs":0,"batchTimestampMs":7,"conf":{"a":"b"}}'
ID = b"\x01" * 16
FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
TOPICS = {"orders": Topic("orders", ID, {0: None, 1: None})}


def progress(first: int, second: int) -> Progress:
    return Progress.initial({FIRST: Mark(ID, first, 2), SECOND: Mark(ID, second, 2)})


def checkpoint(folder: Path, planned: int, finished: int) -> Checkpoint:
    """Batch n of it ends at 10 n and 20 n."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text('{"id":"11-22"}')
    for number in range(planned + 1):
        document = json.dumps(progress(10 * number, 20 * number).to_json())
        (folder / "offsets").mkdir(exist_ok=True)
        (folder / "offsets" / str(number)).write_text(f"v1\n{CONF}\n{document}")
        (folder / "offsets" / f".{number}.crc").write_text("a sum")
    for number in range(finished + 1):
        (folder / "commits").mkdir(exist_ok=True)
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return Checkpoint("orders-copy", LocalFiles(folder))


def test_a_query_that_never_ran_stands_nowhere(tmp_path):
    found = Checkpoint("p", LocalFiles(tmp_path / "none"))
    assert (found.id, found.planned, found.finished, found.unfinished) == (None,) * 4
    assert found.position() is None
    found.remove()


def test_the_files_of_a_batch_are_those_that_spark_found_since_the_one_before(tmp_path):
    (tmp_path / "offsets").mkdir()
    for number, look in enumerate((1, 1, 9, 10)):
        (tmp_path / "offsets" / str(number)).write_text(f'v1\n{CONF}\n{{"logOffset":{look}}}')
    looks = tmp_path / "sources" / "0"
    looks.mkdir(parents=True)

    def entry(look):
        return json.dumps({"path": f"file:///in/{look}", "timestamp": 1, "batchId": look})

    for look in (0, 1, *range(2, 9), 10):
        (looks / str(look)).write_text(f"v1\n{entry(look)}")
    (looks / "9.compact").write_text("\n".join(["v1", *map(entry, range(10))]))
    found = Checkpoint("p", LocalFiles(tmp_path))
    assert found.files_of(0) == ["file:///in/0", "file:///in/1"]
    assert found.files_of(1) == []
    assert found.files_of(2) == [f"file:///in/{look}" for look in range(2, 10)]
    assert found.files_of(3) == ["file:///in/10"]
    (tmp_path / "offsets" / "2").unlink()  # Spark removes old ones
    assert found.files_of(3) == ["file:///in/10"]


def test_a_source_that_reads_no_files_has_none(tmp_path):
    assert checkpoint(tmp_path, 3, 2).files_of(3) == []


@pytest.mark.parametrize(
    ("planned", "finished", "unfinished"), [(3, 3, None), (3, 2, 3), (0, -1, 0), (12, 11, 12)]
)
def test_the_batch_that_is_planned_and_not_committed_is_repeated(
    tmp_path, planned, finished, unfinished
):
    found = checkpoint(tmp_path, planned, finished)
    assert found.id == "11-22"
    assert found.unfinished == unfinished
    position = offsets.progress_of(found.position())
    if finished < 0:
        assert position is None
    else:
        assert position is not None
        assert position.ends() == {FIRST: 10 * finished, SECOND: 20 * finished}


@pytest.mark.parametrize(("planned", "finished", "number"), [(3, 3, 4), (3, 2, 3)])
def test_a_jump_is_one_batch_that_reads_nothing(tmp_path, planned, finished, number):
    found = checkpoint(tmp_path, planned, finished)
    target = offsets.jump(offsets.standing(found), {FIRST: 4}, TOPICS, {})
    assert found.jump(target.to_json()) == number
    assert found.unfinished == number, "Spark repeats it, and so carries it out"
    lines = (tmp_path / "offsets" / str(number)).read_text().split("\n")
    assert lines[:2] == ["v1", CONF]
    assert not (tmp_path / "offsets" / f".{number}.crc").exists(), "the sum of another text"
    before, after = Progress.of_json(found.end(number - 1)), Progress.of_json(found.end(number))
    if planned == finished or number - 1 == finished:
        assert Progress.ranges(before, after) == []
    assert after.ends() == {FIRST: 4, SECOND: 20 * finished}


def test_a_jump_before_the_first_batch_says_where_every_partition_begins(tmp_path):
    found = Checkpoint("p", LocalFiles(tmp_path))
    target = offsets.jump(offsets.standing(found), {FIRST: 4}, TOPICS, {SECOND: 9})
    assert found.jump(target.to_json()) == 0
    after = Progress.of_json(found.end(0))
    assert after.ends() == {FIRST: 4, SECOND: 9}
    assert Progress.ranges(Progress({}), after) == []


def test_a_jump_that_spark_has_not_made_yet_may_be_moved_again(tmp_path):
    found = checkpoint(tmp_path, 3, 3)
    for place in (4, 7):
        target = offsets.jump(offsets.standing(found), {FIRST: place}, TOPICS, {})
        assert found.jump(target.to_json()) == 4
    stands = offsets.standing(found)
    assert stands.position is not None
    assert stands.position.ends() == {FIRST: 7, SECOND: 60}
    assert stands.repeats is None, "it reads nothing, so nothing is repeated"
    before = Progress.of_json(found.end(3))
    assert Progress.ranges(before, Progress.of_json(found.end(4))) == []


def test_an_unfinished_batch_with_rows_is_repeated(tmp_path):
    found = checkpoint(tmp_path, 3, 2)
    before = (tmp_path / "offsets" / "3").read_text()
    grown = progress(20, 40).advance({FIRST: Mark(ID, 31, 2), SECOND: Mark(ID, 40, 2)})
    (tmp_path / "offsets" / "3").write_text(
        "\n".join([*before.split("\n")[:2], json.dumps(grown.to_json())])
    )
    assert offsets.standing(found).repeats == 3
    assert offsets.standing(found).position == offsets.standing(found).reached


def test_what_spark_did_not_write_is_refused_by_name(tmp_path):
    found = checkpoint(tmp_path, 1, 1)
    (tmp_path / "offsets" / "1").write_text("v1\nhalf")
    with pytest.raises(Refused, match="pipeline orders-copy has a damaged checkpoint: offsets/1"):
        found.position()


class Killed(BaseException):
    pass


@pytest.mark.parametrize("renames", [True, False], ids=["", "on a mount of its own"])
def test_a_kill_while_it_is_forgotten_leaves_no_query_of_the_same_id(
    tmp_path, monkeypatch, renames
):
    """Sinks know a batch by the query's id and its number: a query that began anew with batch 0
    under the old id would find all of its batches written."""

    def counting(call):
        def counted(*args, **named):
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return call(*args, **named)

        return counted

    def id_last(*args):
        """Any order is possible; this one is the worst."""
        with scandir(*args) as entries:
            found = sorted(entries, key=lambda each: each.name == "metadata")
        return contextlib.nullcontext(found)

    def busy(*_):
        raise OSError(errno.EBUSY, "Device or resource busy")

    scandir = os.scandir
    for steps in range(40):
        folder = tmp_path / str(steps) / "checkpoint"
        found = checkpoint(folder, planned=3, finished=2)
        left = steps
        with monkeypatch.context() as patch:
            for name in ("unlink", "rmdir", "rename"):
                patch.setattr(os, name, counting(getattr(os, name)))
            patch.setattr(os, "scandir", id_last)
            if not renames:
                patch.setattr(os, "rename", busy)
            with contextlib.suppress(Killed):
                found.remove()
                break
        whole = (found.planned, found.finished) == (3, 2)
        assert found.id is None or whole, steps
        if renames:
            assert whole or (found.planned, found.finished) == (None, None), steps
        found.remove()
        assert (found.id, found.planned, found.finished) == (None,) * 3
        assert not any(folder.parent.iterdir())
    assert steps > 8, "it was never killed"


def test_a_checkpoint_elsewhere_needs_spark():
    with pytest.raises(Refused, match="hdfs://names/orders, which only Spark can reach"):
        open_checkpoint("p", "hdfs://names/orders")


def test_a_source_that_is_no_topic_has_a_document_of_its_own(tmp_path):
    found = checkpoint(tmp_path, 0, 0)
    (tmp_path / "offsets" / "0").write_text(f"v1\n{CONF}\n5")
    assert found.position() == {"offset": "5"}
    assert offsets.progress_of(found.position()) is None


def test_a_checkpoint_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "checkpoint"
    place.touch()
    with pytest.raises(Refused, match=r"pipeline large cannot read .*checkpoint: Not a directory"):
        open_checkpoint("large", str(place))
