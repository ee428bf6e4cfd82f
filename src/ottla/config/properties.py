"""Java's .properties format, the one Kafka's files are written in.

Comments start with # or !, a key ends at the first unescaped =, : or blank, a backslash at the
end of a line continues it, and \\t \\n \\r \\f \\uXXXX are escapes while any other escaped
character stands for itself. Java reads such files as Latin-1; files are UTF-8 today, so UTF-8
is tried first and only text that is not UTF-8 falls back to Latin-1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BLANK = " \t\f"
_LINES = re.compile(r"\r\n|\r|\n")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class MalformedProperties(ValueError):
    """A file that is not in the .properties format."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")


@dataclass(frozen=True, slots=True)
class Property:
    """One key with its value, and the line it begins on (from 1)."""

    key: str
    value: str
    line: int


def decode(data: bytes) -> str:
    """The text of a file."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def parse_properties(text: str) -> list[Property]:
    """Every property in the order of the file, repetitions included."""
    found = []
    for line, logical in _logical_lines(text):
        key_end, value_start = _split(logical)
        found.append(
            Property(
                _unescape(logical[:key_end], line), _unescape(logical[value_start:], line), line
            )
        )
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    pending = ""
    begun = 0  # the line a continued property began on; 0 outside of one
    for number, natural in enumerate(_LINES.split(text), start=1):
        content = natural.lstrip(_BLANK)
        # A line of nothing but a backslash continues nothing: what follows may be a comment.
        if not pending and (not content or content[0] in "#!"):
            begun = 0
            continue
        start = begun or number
        backslashes = len(content) - len(content.rstrip("\\"))
        if backslashes % 2:
            pending += content[:-1]
            begun = start
        else:
            yield start, pending + content
            pending, begun = "", 0
    if begun:
        yield begun, pending


def _split(logical: str) -> tuple[int, int]:
    """Where the key ends and where the value starts."""
    end = 0
    while end < len(logical):
        if logical[end] == "\\":
            end += 2
            continue
        if logical[end] in "=:" or logical[end] in _BLANK:
            break
        end += 1
    end = min(end, len(logical))
    start = end
    while start < len(logical) and logical[start] in _BLANK:
        start += 1
    if start < len(logical) and logical[start] in "=:":
        start += 1
        while start < len(logical) and logical[start] in _BLANK:
            start += 1
    return end, start


def _unescape(text: str, line: int) -> str:
    if "\\" not in text:
        return text
    out = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\" or position == len(text):
            out.append(char if char != "\\" else "")
            continue
        char = text[position]
        position += 1
        if char == "u":
            digits = text[position : position + 4]
            if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
                raise MalformedProperties(line, f"\\u{digits} is not \\u with four hex digits")
            out.append(chr(int(digits, 16)))
            position += 4
        else:
            out.append(_ESCAPES.get(char, char))
    # Characters beyond the basic plane are written as two escapes; join the halves.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
