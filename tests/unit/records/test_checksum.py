"""CRC-32C, by the vectors of RFC 3720."""

from __future__ import annotations

import pytest

from ottla.records.checksum import crc32c


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"123456789", 0xE3069283),
    ],
)
def test_known_vectors(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected
    assert crc32c(memoryview(bytearray(data))) == expected


def test_a_checksum_can_be_continued() -> None:
    assert crc32c(b"456789", crc32c(b"123")) == crc32c(b"123456789")
