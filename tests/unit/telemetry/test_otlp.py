"""Reading OpenTelemetry's metrics, good ones and bad ones."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from ottla.telemetry import otlp
from ottla.telemetry.otlp import Malformed, Point, Read

# --- OpenTelemetry's messages, written by hand ----------------------------------------------------


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, content: bytes | str | int) -> bytes:
    """A field with a message, a text or a number."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def point(value: float | int, **attributes: str) -> bytes:
    number = (
        varint(6 << 3 | 1) + struct.pack("<q", value)
        if isinstance(value, int)
        else varint(4 << 3 | 1) + struct.pack("<d", value)
    )
    pairs = (field(7, field(1, key) + field(2, field(1, text))) for key, text in attributes.items())
    return number + b"".join(pairs)


def gauge(name: str, *points: bytes) -> bytes:
    return field(1, name) + field(5, b"".join(field(1, each) for each in points))


def total(name: str, *points: bytes, delta: bool = False, monotonic: bool = True) -> bytes:
    kind = field(2, 1 if delta else 2) + field(3, int(monotonic))
    return field(1, name) + field(7, b"".join(field(1, each) for each in points) + kind)


def pushed(*metrics: bytes) -> bytes:
    scope = b"".join(field(2, metric) for metric in metrics)
    return field(1, field(1, field(1, b"")) + field(2, scope))


# --- reading them ---------------------------------------------------------------------------------


def read(data: bytes) -> Read:
    steps = otlp.read(data)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Read = end.value
            return found


def test_gauges_and_sums_are_read() -> None:
    data = pushed(
        gauge("latency", point(1.5, node_id="1"), point(2, node_id="2")),
        total("connections", point(7)),
        total("sent", point(3), delta=True),
        total("level", point(-3), monotonic=False),
    )
    assert read(data).points == [
        Point("latency", False, False, (("node_id", "1"),), 1.5),
        Point("latency", False, False, (("node_id", "2"),), 2.0),
        Point("connections", True, False, (), 7.0),
        Point("sent", True, True, (), 3.0),
        Point("level", False, False, (), -3.0),
    ]


def test_histograms_are_counted_and_left_out() -> None:
    histogram = field(1, "h") + field(9, b"")
    found = read(pushed(histogram, gauge("g", point(1.0))))
    assert [point.name for point in found.points] == ["g"]
    assert found.left_out == 1


def test_attributes_of_every_kind_are_text() -> None:
    values = (field(2, 1), field(3, (1 << 64) - 5), field(1, "é"))
    pairs = (field(7, field(1, f"k{n}") + field(2, value)) for n, value in enumerate(values))
    [one] = read(pushed(gauge("g", point(1.0) + b"".join(pairs)))).points
    assert one.attributes == (("k0", "true"), ("k1", "-5"), ("k2", "é"))


def test_what_is_too_much_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "MOST_POINTS", 3)
    found = read(pushed(gauge("g", *(point(1.0) for _ in range(10)))))
    assert (len(found.points), found.left_out) == (3, 7)
    many = {f"k{n}": "v" * 300 for n in range(20)}
    [one] = read(pushed(gauge("n" * 1000, point(1.0, **many)))).points
    assert len(one.attributes) == otlp.MOST_ATTRIBUTES
    assert {len(text) for _, text in one.attributes} == {otlp.LONGEST_TEXT}
    assert len(one.name) == otlp.LONGEST_TEXT


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",  # a length is missing
        b"\x0a\x05abc",  # fewer bytes than announced
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # far more than that
        b"\xff" * 11,  # a number without an end
        b"\x07",  # a kind that does not exist
        b"\x00\x00",  # a field without a number
        b"\x0a\x02\x12\x09",  # the same, one message further in
    ],
)
def test_what_is_no_message_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        read(data)


NOTHINGS = field(1, b"") * 20_000
UNKNOWN = field(15, 0) * 20_000


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(NOTHINGS, id="empty resources"),
        pytest.param(field(1, field(2, b"") * 20_000), id="empty scopes"),
        pytest.param(pushed(*[b""] * 20_000), id="empty metrics"),
        pytest.param(pushed(UNKNOWN), id="a metric of fields that mean nothing"),
        pytest.param(pushed(field(1, "g") + field(5, NOTHINGS)), id="a gauge of empty points"),
        pytest.param(pushed(field(1, "g") + field(5, UNKNOWN)), id="a gauge of nothing"),
        pytest.param(pushed(gauge("g", UNKNOWN)), id="a point of nothing"),
        pytest.param(pushed(gauge("g", field(7, field(1, "k") * 20_000))), id="a long attribute"),
    ],
)
def test_whatever_is_long_is_read_in_small_steps(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = 0
    read_number = otlp._varint

    def counted(*arguments: Any) -> Any:
        nonlocal numbers
        numbers += 1
        return read_number(*arguments)

    monkeypatch.setattr(otlp, "_varint", counted)
    for _ in otlp.read(data):
        assert numbers <= otlp.LONGEST_POINT
        numbers = 0


def test_a_point_that_says_nothing_is_left_out() -> None:
    found = read(pushed(gauge("g", b"", point(1.0), point(2.0, k="v" * 9000))))
    assert ([point.value for point in found.points], found.left_out) == ([1.0], 2)


def test_nothing_is_nothing() -> None:
    assert read(b"") == Read()
