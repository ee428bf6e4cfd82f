"""CRC-32C (Castagnoli), which covers a batch from its attributes to its end.

The door to the `crc32c` package: it uses the processor's instruction and takes any buffer without
copying (38 microseconds for 1 MB).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crc32c import crc32c as _crc32c

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def crc32c(data: ReadableBuffer, initial: int = 0) -> int:
    """The checksum of `data`; pass an earlier result as `initial` to continue it."""
    return _crc32c(data, initial)
