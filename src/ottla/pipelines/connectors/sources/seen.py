"""Which rows of an overlap were given already."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

MOST: Final = 50_000
"""Rows that are remembered: they are in every offset of the checkpoint."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A hash of each row, and its moment in microseconds."""

    moments: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str | None) -> Seen:
        data = base64.b64decode(text or "")
        return cls(dict(struct.iter_unpack(">Qq", data)))

    def text(self) -> str | None:
        """As in a cursor; `of` reads it."""
        if not self.moments:
            return None
        packed = b"".join(struct.pack(">Qq", who, when) for who, when in self.moments.items())
        return base64.b64encode(packed).decode()

    @property
    def newest(self) -> int:
        return max(self.moments.values())

    def has(self, who: str) -> bool:
        return _hash(who) in self.moments

    def with_rows(self, who: Sequence[str], when: Sequence[int]) -> Seen:
        return Seen({**self.moments, **dict(zip(map(_hash, who), when, strict=True))})

    def since(self, moment: int) -> Seen:
        return Seen({who: when for who, when in self.moments.items() if when >= moment})


def _hash(who: str) -> int:
    return int.from_bytes(hashlib.blake2b(who.encode(), digest_size=8).digest())
