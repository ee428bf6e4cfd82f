"""Whatever bytes come, they are read or malformed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.telemetry import otlp
from ottla.telemetry.otlp import Malformed

# Tags and short lengths are what gets one deep into a message.
LIKELY = st.sampled_from([b"\x0a", b"\x12", b"\x2a", b"\x3a", b"\x21", b"\x31", b"\x01", b"\x08"])
PIECES = st.lists(st.one_of(LIKELY, st.binary(max_size=12)), max_size=40).map(b"".join)


def nested(content: bytes, tags: list[int]) -> bytes:
    """The content inside of messages, so that it is not refused at the door."""
    for tag in tags:
        size = len(content)
        head = bytes([tag, size]) if size < 128 else bytes([tag, size & 0x7F | 0x80, size >> 7])
        content = head + content
    return content


@given(PIECES, st.sampled_from([[], [0x0A], [0x12, 0x0A], [0x12, 0x12, 0x0A]]))
def test_anything_is_read_or_malformed(content: bytes, tags: list[int]) -> None:
    try:
        for _ in otlp.read(nested(content, tags)):
            pass
    except Malformed:
        pass
