"""What is said on a driver whose installation has no native code."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.pipelines.native import driver_notices, missing_here
from ottla.pipelines.source.batch import OttlaReader
from ottla.pipelines.source.options import ReadOptions
from ottla.pipelines.source.stream import OttlaStreamReader
from ottla.records import walker

NOBODY = {
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "subscribe": "t",
    "fetchOffset.numRetries": "1",
    "kafkaConsumer.pollTimeoutMs": "1",
}


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walker, "NATIVE", False)
    monkeypatch.setattr(walker, "TURNED_OFF", False)
    monkeypatch.setattr(walker, "WHY_PLAIN", "the native code is not there")


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "native code is missing on the driver" in line]


def plan_a_batch() -> None:
    # Nobody answers; what is said comes before that.
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
        OttlaReader(ReadOptions.of(NOBODY, streaming=False)).partitions()


def plan_a_stream() -> None:
    reader: Any = OttlaStreamReader(ReadOptions.of(NOBODY, streaming=True))
    for _ in range(3):
        start = reader.initialOffset()
        assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
    reader.stop()


@pytest.mark.parametrize("plan", [plan_a_batch, plan_a_stream])
def test_a_read_that_is_planned_without_native_code_says_so_once(plan, plain, caplog):
    plan()
    [line] = logged(caplog)
    assert "thirty times slower: the native code is not there; install Ottla where" in line
    assert "python -m ottla.pipelines.pack" in line


@pytest.mark.parametrize("plan", [plan_a_batch, plan_a_stream])
def test_it_is_silent_where_all_is_well(plan, monkeypatch, caplog):
    monkeypatch.setattr(walker, "NATIVE", True)
    plan()
    assert logged(caplog) == []
    assert driver_notices() == ()
    assert missing_here() == ""
