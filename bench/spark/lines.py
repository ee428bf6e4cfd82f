"""Lines of text for the comparison with Kafka Connect, and whether all of them have arrived.

A line is its number in ten digits and some words, 100 bytes in all; in a file a line break follows.
No comma, quote or blank is at either end, so a csv file of one column has the same bytes.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np

from bench.processes import BenchError

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIZE = 100
_DIGITS = 10
_DIFFERENT = 1_000
_WORDS = ("offset", "epoch", "leader", "replica", "segment", "index", "batch", "record", "page")


def lines(first: int, count: int) -> bytes:
    """Lines with these numbers, each with its break."""
    rng = random.Random(15)
    some = np.frombuffer(b"".join(_line(rng) for _ in range(_DIFFERENT)), np.uint8)
    table = np.resize(some.reshape(_DIFFERENT, SIZE + 1), (count, SIZE + 1))
    numbers = np.arange(first, first + count)
    for digit in range(_DIGITS):
        table[:, digit] = ord("0") + numbers // 10 ** (_DIGITS - 1 - digit) % 10
    return table.tobytes()


def _line(rng: random.Random) -> bytes:
    text = "0" * _DIGITS
    while len(text) < SIZE:
        text += " " + rng.choice(_WORDS)
    return text[: SIZE - 1].encode() + b".\n"


def check_all_once(text: bytes, least: int, most: int, where: str) -> None:
    """Raise unless the lines from 0 to `least`, and at most those to `most`, are there once."""
    if len(text) % (SIZE + 1):
        raise BenchError(f"{where} has {len(text):,} bytes, which are no whole lines")
    table = np.frombuffer(text, np.uint8).reshape(-1, SIZE + 1)
    numbers: NDArray[np.int64] = np.zeros(len(table), np.int64)
    for digit in range(_DIGITS):
        numbers = numbers * 10 + (table[:, digit].astype(np.int64) - ord("0"))
    counted = np.bincount(numbers, minlength=most)
    if len(counted) > most or (counted[:least] != 1).any() or (counted[least:] > 1).any():
        raise BenchError(
            f"{where} has {len(table):,} lines of {least:,} to {most:,}: "
            f"{int((counted[:least] == 0).sum()):,} are missing, "
            f"{int((counted > 1).sum()):,} are there more than once"
        )
