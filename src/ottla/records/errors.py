"""The one way a batch can be wrong."""

from __future__ import annotations


class InvalidBatch(ValueError):
    """Bytes that are not a record batch: too short, a wrong checksum, a codec that fails."""
