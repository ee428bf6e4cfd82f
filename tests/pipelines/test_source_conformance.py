"""The published checks of sources, against one that is right and some that are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.pipelines.connectors.contract import HIDDEN, HIDDEN_TYPE
from ottla.testing.connectors import (
    SOURCE_CHECKS,
    SourceCase,
    a_batch_that_is_run_again_has_the_same_rows,
    rows_say_where_they_came_from,
)

WORDS = ["one", "two", "three", "four"]


class Lines:
    """The lines of text files; `fault` is what is wrong with it."""

    def __init__(self, path: Path, fault: str = "") -> None:
        self._path = str(path)
        self._fault = fault

    def stream(self, spark: Any, place: Any) -> Any:
        return spark.readStream.format("text").load(self._path)

    def sample(self, spark: Any, place: Any, count: int) -> Any:
        return spark.read.format("text").load(self._path).limit(count)

    def rows(self, batch: Any) -> Any:
        where = {
            "": "to_json(named_struct('file', 'words', 'row', value))",
            "same positions": "to_json(named_struct('file', 'words'))",
            "other rows": "to_json(named_struct('row', uuid()))",
        }[self._fault]
        hidden = (
            f"named_struct('position', {where}, 'line', 0L, 'sequence', 0L, 'timestamp', null,"
            " 'key', null, 'value', encode(value, 'utf-8'), 'headers', null, 'error', null)"
        )
        return batch.selectExpr("value", f"cast({hidden} as {HIDDEN_TYPE}) as {HIDDEN}")


@pytest.fixture
def words(tmp_path: Path) -> Path:
    folder = tmp_path / "words"
    folder.mkdir()
    (folder / "words.txt").write_text("\n".join(WORDS))
    return folder


def case(spark: Any, words: Path, tmp_path: Path, fault: str = "") -> SourceCase:
    folder = tmp_path / "case"
    folder.mkdir()
    rows = [(word,) for word in WORDS]
    return SourceCase(spark, lambda: Lines(words, fault), rows, folder)


@pytest.mark.parametrize("check", SOURCE_CHECKS, ids=lambda check: check.__name__)
def test_a_source_that_keeps_its_promises_passes(spark, words, tmp_path, check):
    check(case(spark, words, tmp_path))


@pytest.mark.parametrize(
    ("check", "fault", "told"),
    [
        (rows_say_where_they_came_from, "same positions", "two rows say that they are from"),
        (a_batch_that_is_run_again_has_the_same_rows, "other rows", "had other rows"),
    ],
)
def test_a_source_that_does_not_is_found_out(spark, words, tmp_path, check, fault, told):
    with pytest.raises(AssertionError, match=told):
        check(case(spark, words, tmp_path, fault))
