"""The one way a batch can be wrong, and the one case of it that a caller may want to tell apart."""

from __future__ import annotations


class InvalidBatch(ValueError):
    """Bytes that are not a record batch: too short, a wrong checksum, a codec that fails."""


class TooLarge(InvalidBatch):
    """More than the caller allowed for, when decompressed."""
