from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from ottla.client.records import Record, header_list

RECORD = Record(
    "t", 0, 7, 1_700_000_000_123, "create", b"k", b"v", (("h", b"1"), ("h", b"2"), ("n", None))
)


def test_the_time_of_a_record_is_exact_and_aware() -> None:
    assert RECORD.time == datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)


def test_the_last_header_of_a_name_counts() -> None:
    assert RECORD.header("h") == b"2"
    assert RECORD.header("n") is None
    assert RECORD.header("missing") is None


def test_headers_are_a_mapping_or_pairs_and_text_becomes_utf8() -> None:
    assert header_list({"a": "ä", "b": b"x", "c": None}) == [
        ("a", b"\xc3\xa4"),
        ("b", b"x"),
        ("c", None),
    ]
    assert header_list([("a", "1"), ("a", "2")]) == [("a", b"1"), ("a", b"2")]
    assert header_list(None) is None


@pytest.mark.parametrize(
    ("headers", "complaint"),
    [
        (["ab"], "pairs, 'ab' is not such a pair"),
        ([("a", "b", "c")], "not such a pair"),
        ([(1, b"x")], "a header's name is a str"),
        ({"a": 1}, "header 'a' has a int; give bytes, str or None"),
    ],
)
def test_other_headers_are_refused(headers: Any, complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        header_list(headers)
