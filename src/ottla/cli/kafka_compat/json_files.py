"""JSON files for Kafka's tools, whatever is in them."""

from __future__ import annotations

import json
from typing import Any, TypeGuard

_LONGEST = 0x7FFF  # bytes of a name in a request


def load(path: str) -> Any:
    """What a file holds. Raises OSError, and ValueError when it is no JSON."""
    with open(path, encoding="utf-8") as file:
        try:
            return json.load(file)
        except RecursionError:
            raise ValueError("too many brackets in one another") from None


def is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def is_name(value: object) -> TypeGuard[str]:
    """Whether it is text that can be asked for: half a surrogate pair cannot."""
    if not isinstance(value, str):
        return False
    try:
        return len(value.encode()) <= _LONGEST
    except UnicodeEncodeError:
        return False


def is_integer(value: object, bits: int = 32) -> TypeGuard[int]:
    """Whether it is a whole number of so many bits: neither `true` nor 1e3 is."""
    return type(value) is int and -(1 << bits - 1) <= value < 1 << bits - 1
