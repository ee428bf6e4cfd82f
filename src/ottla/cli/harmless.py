"""What records and names hold, without what a terminal would obey.

A record can set a window's title, or more. Tabs and line ends stay."""

from __future__ import annotations

import re
from typing import IO, Any

_CONTROLS = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")


def for_terminals(line: bytes) -> bytes:
    """A record's bytes without what a terminal would obey: control characters are spelt out, tabs
    and line ends stay."""
    return _CONTROLS.sub(lambda found: b"\\x%02x" % found[0][-1], line)


_CONTROL_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def harmless(text: str) -> str:
    """`for_terminals` of text."""
    return _CONTROL_TEXT.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


class HarmlessOutput:
    """A terminal that gets no control characters but tabs and line ends."""

    def __init__(self, terminal: IO[str]) -> None:
        self._terminal = terminal

    def write(self, text: str) -> int:
        return self._terminal.write(harmless(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._terminal, name)
