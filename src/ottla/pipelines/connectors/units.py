"""Durations and sizes as people write them: 500ms, 30s, 5m, 2h, 1d; 64KiB, 128MiB, 1GB.

The one place that reads them. A sentence about what cannot be read does not show it: it may have
come from a variable, and be a secret in the wrong place.
"""

from __future__ import annotations

import re
from typing import Final

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:B|([KMGT])(i?)B)?\s*")
_POWERS: Final = " KMGT"


def seconds(given: object) -> float:
    """A duration; ValueError with a sentence if it is none."""
    found = _DURATION.fullmatch(str(given))
    if found is None:
        raise ValueError("a time has a unit: 500ms, 30s, 5m, 2h or 1d")
    return float(found[1]) * _SECONDS[found[2]]


def size(given: object) -> int:
    """A number of bytes; ValueError with a sentence if it is none."""
    found = None if isinstance(given, bool) else _SIZE.fullmatch(str(given))
    if found is None:
        raise ValueError("a size is expected here: 64KiB, 128MiB, 1GB or bytes")
    base = 1024 if found[3] else 1000
    return int(float(found[1]) * base ** _POWERS.index(found[2] or " "))


def duration_text(duration: float) -> str:
    """The shortest way to say it."""
    for unit in ("d", "h", "m", "s"):
        if duration and duration % _SECONDS[unit] == 0:
            return f"{duration / _SECONDS[unit]:.0f}{unit}"
    return f"{duration * 1000:g}ms" if duration else "0s"
