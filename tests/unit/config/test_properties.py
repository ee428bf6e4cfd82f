"""Java's .properties format."""

from __future__ import annotations

import pytest

from ottla.config.properties import MalformedProperties, decode, parse_properties


def pairs(text: str) -> list[tuple[str, str]]:
    return [(one.key, one.value) for one in parse_properties(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", [("a", "b")]),
        ("a:b", [("a", "b")]),
        ("a b", [("a", "b")]),
        (" \t a \t = \t b c ", [("a", "b c ")]),
        ("a = = b", [("a", "= b")]),
        ("a", [("a", "")]),
        ("=b", [("", "b")]),
        ("# c\n! c\n  # c\na=#b", [("a", "#b")]),
        ("a\\=b=c", [("a=b", "c")]),
        ("a\\ b=c", [("a b", "c")]),
        ("a=b\\\n   c", [("a", "bc")]),
        ("a=b\\\\\nc=d", [("a", "b\\"), ("c", "d")]),
        ("a=b\\\n#c", [("a", "b#c")]),
        ("\\\n# a comment\na=b", [("a", "b")]),
        ("a=\\t\\n\\r\\f\\z", [("a", "\t\n\r\fz")]),
        ("a=\\u00e9\\u20ac", [("a", "é€")]),
        ("a=\\ud83d\\ude00", [("a", "😀")]),
        ("a=1\r\nb=2\rc=3\n", [("a", "1"), ("b", "2"), ("c", "3")]),
        ("a=1\na=2", [("a", "1"), ("a", "2")]),
        ("a=b\\", [("a", "b")]),
        ("\n \n\t\n", []),
    ],
)
def test_lines_are_read_as_java_reads_them(text: str, expected: list[tuple[str, str]]) -> None:
    assert pairs(text) == expected


def test_a_property_knows_the_line_it_begins_on() -> None:
    found = parse_properties("# one\n\na=1,\\\n  2,\\\n  3\nb=4")
    assert [(one.key, one.value, one.line) for one in found] == [("a", "1,2,3", 3), ("b", "4", 6)]


def test_half_a_unicode_escape_is_an_error_that_names_its_line() -> None:
    with pytest.raises(MalformedProperties, match=r"line 2: .*four hex digits"):
        parse_properties("a=b\nc=\\u12")


def test_files_are_utf8_and_old_ones_latin1() -> None:
    assert decode("é".encode()) == "é"
    assert decode("é".encode("latin-1")) == "é"
    assert decode("\ufeffa=b".encode()) == "a=b"
