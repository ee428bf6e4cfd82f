"""Log lines: one form, and no flood."""

from __future__ import annotations

import io
import json
import logging

import pytest

from ottla.runtime import logs


class FakeClock:
    def __init__(self) -> None:
        self.time = 100.0

    def monotonic(self) -> float:
        return self.time

    def now_ms(self) -> int:
        return int(self.time * 1000)


@pytest.fixture
def stream(monkeypatch):
    for name in ("logThreads", "logProcesses", "logMultiprocessing", "_srcfile"):
        monkeypatch.setattr(logging, name, getattr(logging, name))  # what `setup` may change
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:], root.level = handlers, level


def test_human_lines_name_the_room_and_the_message(stream):
    logs.setup("human", "info", stream)
    logging.getLogger("ottla.storage.log").warning("torn tail of %d bytes", 7)
    assert stream.getvalue().endswith("WARNING storage.log: torn tail of 7 bytes\n")


def test_human_lines_begin_with_the_time_as_logging_writes_it():
    ours, usual = logs.HumanFormatter(), logging.Formatter("%(asctime)s")
    record = logging.makeLogRecord({"name": "ottla.x", "levelname": "INFO", "msg": "said"})
    for moment in (1_700_000_000.25, 1_700_000_000.5, 1_700_000_001.0, 1_700_000_000.75):
        record.created = moment
        record.msecs = moment % 1 * 1000
        assert ours.format(record) == f"{usual.format(record)} INFO    x: said"


def test_json_lines_are_one_object_each_with_the_error_inside(stream):
    logs.setup("json", "info", stream)
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("ottla.x").exception("it failed")
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert entry["level"] == "error"
    assert entry["message"] == "it failed"
    assert "ValueError: boom" in entry["error"]


def test_a_label_begins_every_line_of_a_process_among_others(stream):
    logs.setup("human", "info", stream, label="broker 2")
    logging.getLogger("ottla.x").info("one\ntwo")
    first, second = stream.getvalue().splitlines()
    assert first.startswith("broker 2 | 2")
    assert first.endswith("INFO    x: one")
    assert second == "broker 2 | two"


def test_a_label_is_a_field_of_its_own_in_json(stream):
    logs.setup("json", "info", stream, label="broker 2")
    logging.getLogger("ottla.x").info("one")
    assert json.loads(stream.getvalue())["label"] == "broker 2"


def test_a_flood_is_held_back_and_counted(caplog):
    clock = FakeClock()
    limit = logs.RateLimit(logging.getLogger("flood"), clock, burst=2, interval=10)
    for _ in range(50):
        limit.warning("bytes", "bad bytes from %s", "somewhere")
    assert len(caplog.records) == 2
    clock.time += 11
    limit.warning("bytes", "bad bytes from %s", "elsewhere")
    assert [record.getMessage() for record in caplog.records[2:]] == [
        "48 more lines of this kind were held back",
        "bad bytes from elsewhere",
    ]


def test_one_kind_of_line_does_not_silence_another(caplog):
    limit = logs.RateLimit(logging.getLogger("flood"), FakeClock(), burst=1, interval=10)
    for _ in range(10):
        limit.warning("a", "first kind")
    limit.warning("b", "second kind")
    assert [record.getMessage() for record in caplog.records] == ["first kind", "second kind"]


def test_kinds_without_an_end_share_one_budget(caplog):
    limit = logs.RateLimit(logging.getLogger("flood"), FakeClock(), burst=1, interval=10)
    for number in range(1000):
        limit.warning(f"made up {number}", "line")
    assert len(caplog.records) == limit.KINDS + 1
