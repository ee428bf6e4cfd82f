"""A history is what its recorder was told, also after the recorder was killed."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from ottla.verify.history import History, NoHistory, Recorder, excerpt

GZIP_TRAILER = 8
END_MARK = 16


def record_three(path: Path) -> Recorder:
    recorder = Recorder(path, {"seed": 7})
    recorder.record("writer-0", "send", "invoke", p=0, writer=0, first=0, count=2)
    recorder.record("writer-0", "send", "ok", offset=0)
    recorder.record("reader", "read", "ok", p=0, runs=[[0, 0, 0, 2]])
    return recorder


def test_what_was_recorded_is_read(tmp_path: Path) -> None:
    path = tmp_path / "history.gz"
    record_three(path).close()
    history = History(path)
    events = list(history)
    assert history.header["seed"] == 7
    assert history.complete
    assert [(event.number, event.client, event.phase) for event in events] == [
        (1, "writer-0", "invoke"),
        (2, "writer-0", "ok"),
        (3, "reader", "ok"),
    ]
    assert events[2].data["runs"] == [[0, 0, 0, 2]]
    assert events[0].time <= events[1].time <= events[2].time


def test_a_history_may_be_read_twice(tmp_path: Path) -> None:
    path = tmp_path / "history.gz"
    record_three(path).close()
    history = History(path)
    assert list(history) == list(history)


def test_what_was_flushed_survives_the_end_of_the_recorder(tmp_path: Path) -> None:
    path = tmp_path / "history.gz"
    recorder = record_three(path)
    recorder.flush()
    recorder.record("writer-0", "send", "invoke", p=0, writer=0, first=2, count=1)
    history = History(path)
    assert [event.number for event in history] == [1, 2, 3]
    assert not history.complete
    recorder.close()


def test_a_run_that_ends_with_an_error_has_not_come_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "history.gz"

    def stop_at_once() -> None:
        with Recorder(path, {"seed": 7}) as recorder:
            recorder.record("writer-0", "send", "invoke", p=0, writer=0, first=0, count=1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_at_once()
    history = History(path)
    assert [event.number for event in history] == [1]
    assert not history.complete


def test_a_history_cut_anywhere_gives_the_events_before_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "history.gz"
    recorder = record_three(path)
    recorder.flush()
    begun = path.stat().st_size
    for number in range(200):
        recorder.record("writer-0", "send", "invoke", p=0, writer=0, first=number, count=1)
    recorder.close()
    content = path.read_bytes()
    cut = tmp_path / "cut.gz"
    lengths = []
    # The mark of the end is the last thing written: it can be read without the very last bytes.
    for size in range(begun, len(content) - GZIP_TRAILER - END_MARK, 7):
        cut.write_bytes(content[:size])
        history = History(cut)
        numbers = [event.number for event in history]
        assert numbers == list(range(1, len(numbers) + 1))
        assert not history.complete
        lengths.append(len(numbers))
    assert lengths == sorted(lengths)
    assert lengths[0] >= 3


def test_a_history_is_one_from_its_beginning(tmp_path: Path) -> None:
    """Also if its writer is killed at once."""
    path = tmp_path / "history.gz"
    recorder = Recorder(path, {"seed": 7})
    history = History(path)
    assert history.header["seed"] == 7
    assert list(history) == []
    assert not history.complete
    recorder.close()


@pytest.mark.parametrize("tail", [bytes(100), b"\xff" * 100], ids=["zeros", "ones"])
def test_a_history_whose_tail_is_damaged_gives_what_is_before(tmp_path: Path, tail: bytes) -> None:
    """A machine that loses its power may leave that."""
    path = tmp_path / "history.gz"
    recorder = Recorder(path, {"seed": 7})
    for number in range(50_000):
        recorder.record("writer-0", "send", "invoke", p=0, writer=0, first=number * 7919, count=1)
    recorder.flush()
    path.write_bytes(path.read_bytes() + tail)
    history = History(path)
    numbers = [event.number for event in history]
    assert numbers == list(range(1, len(numbers) + 1))
    assert numbers
    assert not history.complete
    recorder.close()


@pytest.mark.parametrize(
    "content",
    [b"", b"no gzip", gzip.compress(b"no json\n", mtime=0)],
    ids=["empty", "plain", "lines"],
)
def test_a_file_that_is_no_history_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(NoHistory, match="is not a history"):
        History(path)


def test_a_history_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "history.gz"
    path.write_bytes(gzip.compress(b'{"history": 99}\n'))
    with pytest.raises(NoHistory, match="version 99"):
        History(path)


def test_an_excerpt_has_the_events_that_were_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "history.gz"
    record_three(path).close()
    assert [event.number for event in excerpt(History(path), (3, 1))] == [1, 3]


def test_an_event_is_one_line_for_people(tmp_path: Path) -> None:
    path = tmp_path / "history.gz"
    record_three(path).close()
    text = str(next(iter(History(path))))
    assert text.startswith("#1 ")
    assert text.endswith("writer-0 send invoke p=0 writer=0 first=0 count=2")
