"""Whether a broker has compacted, as its folder tells, and the arithmetic around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from bench import cleaning
from bench.compaction import Beside, keys_for
from bench.processes import BenchError
from bench.rows import FULL

if TYPE_CHECKING:
    from pathlib import Path


def test_checkpoint_is_read_in_kafkas_format() -> None:
    assert cleaning.parse_checkpoint("0\n2\na.b 0 17\n__consumer_offsets 49 5\n") == {
        ("a.b", 0): 17,
        ("__consumer_offsets", 49): 5,
    }


@pytest.mark.parametrize("text", ["", "0\n", "0\n2\na 0 17\n", "1\n0\n", "0\nx\n"])
def test_checkpoint_that_is_not_whole_says_nothing(text: str) -> None:
    assert cleaning.parse_checkpoint(text) == {}


def test_active_segment_is_the_last(tmp_path: Path) -> None:
    for offset in (0, 90, 100):
        (tmp_path / f"{offset:020}.log").touch()
    (tmp_path / f"{200:020}.log.deleted").touch()
    assert cleaning.active_offset(tmp_path) == 100


def test_folder_without_segments_is_told(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no segments"):
        cleaning.active_offset(tmp_path)


def test_segments_that_wait_for_their_removal_do_not_count(tmp_path: Path) -> None:
    (tmp_path / f"{0:020}.log").write_bytes(bytes(10))
    (tmp_path / f"{5:020}.log.deleted").write_bytes(bytes(100))
    assert cleaning.log_bytes(tmp_path) == 10


def test_waiting_ends_when_every_log_has_reached_its_goal(tmp_path: Path) -> None:
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n2\na 0 7\na 1 9\n")
    cleaning.wait_compacted("it", tmp_path, {("a", 0): 7, ("a", 1): 8}, sign=0, patience=0)


def test_broker_without_a_cleaner_is_told_from_a_slow_one(tmp_path: Path) -> None:
    goals = {("a", 0): 7, ("a", 1): 8}
    with pytest.raises(BenchError, match=r"it does not compact: .* a-0 and 1 more"):
        cleaning.wait_compacted("it", tmp_path, goals, sign=0, patience=60)
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\na 0 7\n")
    with pytest.raises(BenchError, match="it had not compacted a-1 after 0 s"):
        cleaning.wait_compacted("it", tmp_path, goals, sign=0, patience=0)


def test_whole_run_compacts_ten_million_keys_in_batches_that_are_full() -> None:
    assert keys_for(FULL.compacted_bytes) == 10_000_000
    assert keys_for(1) == 2_000


def test_what_a_producer_keeps_is_its_rate_over_the_one_around_it() -> None:
    beside = Beside(
        before_records=1_200,
        before_seconds=2,
        beside_records=4_000,
        beside_seconds=10,
        after_records=800,
        after_seconds=2,
    )
    assert beside.rate == 400
    assert beside.kept == pytest.approx(0.8)
