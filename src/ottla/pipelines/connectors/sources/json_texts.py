"""Rows of an answer in JSON, each as the server has written it.

What `json.loads` reads and `json.dumps` writes again is not the same: a number that has more digits
than a floating-point number is rounded, of two fields of one name the first is gone, and half of a
surrogate pair, which may be written as `\\ud83d`, cannot be written at all. So a row goes on as its
own text, on one line, and whoever decodes it says what is wrong with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Final

_DECODER: Final = json.JSONDecoder()
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_BREAK: Final = re.compile(r"[ \t]*[\r\n][ \t\r\n]*")
"""Never within a text of JSON, where a line break is written as `\\n`."""


def text_of(body: bytes) -> str:
    """The text of an answer; UnicodeDecodeError, a ValueError, if it is none."""
    return body.decode(json.detect_encoding(body))


def items_at(text: str, path: Sequence[str]) -> list[str]:
    """The texts of the items of an array, which is under a path of names.

    `text` is JSON that has such an array there. Of two fields of one name the last one counts, as
    for `json.loads`.
    """
    at = _skip(text, 0)
    for name in path:
        at = _member(text, at, name)
    return list(_items(text, at))


def _member(text: str, at: int, wanted: str) -> int:
    """Where the value of a member of the object at `at` begins."""
    found = at
    at = _skip(text, at + 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        at = _skip(text, _skip(text, at) + 1)
        if name == wanted:
            found = at
        at = _behind(text, at)
    return found


def _items(text: str, at: int) -> Iterator[str]:
    at = _skip(text, at + 1)
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        yield _BREAK.sub(" ", text[at:end])
        at = _behind(text, at, end)


def _behind(text: str, at: int, end: int | None = None) -> int:
    """Where what follows the value at `at` begins, behind a comma or not."""
    if end is None:
        _, end = _DECODER.raw_decode(text, at)
    at = _skip(text, end)
    return _skip(text, at + 1) if text[at] == "," else at


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None  # it may be empty
    return found.end()
