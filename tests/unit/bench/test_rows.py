"""The rows of the table."""

from __future__ import annotations

from bench.rows import ROWS


def test_keys_are_unique() -> None:
    keys = [row.key for row in ROWS]
    assert len(set(keys)) == len(keys)


def test_only_rows_added_for_information_have_no_ratio_to_reach() -> None:
    untargeted = {row.key for row in ROWS if row.target is None}
    assert untargeted == {"java-produce-100b", "requests-64-raw"}
