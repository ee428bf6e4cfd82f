"""The rows of the table."""

from __future__ import annotations

from bench.rows import ROWS


def test_keys_are_unique() -> None:
    keys = [row.key for row in ROWS]
    assert len(set(keys)) == len(keys)


def test_every_row_but_the_bare_sockets_has_a_ratio_to_reach() -> None:
    assert [row.key for row in ROWS if row.target is None] == ["requests-64-raw"]
