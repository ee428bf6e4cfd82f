"""Seeded mutation of real requests: mostly valid, wrong in one or a few places."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus.txt"

# What stands in the corpus for the tests' random topic names and ids; both have the real length.
TOPIC_NAME = b"topic-000000000000"
TOPIC_ID = b"ottla-fuzz-topic"

CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS = 19, 20, 37
# These change the world for all the others; a few of them go a long way.
SELDOM = {CREATE_TOPICS: 0.1, DELETE_TOPICS: 0.1, CREATE_PARTITIONS: 0.1}

NUMBERS = [
    0, 1, -1, -2, 2, 3, 7, 8, 15, 16, 61, 62, 64, 100, 127, 128, 255, 256, 999, 1000, 4096,
    32767, 32768, 65535, 65536, 1 << 20, 1 << 24, (1 << 31) - 1, -(1 << 31), 1 << 31,
    (1 << 32) - 1, 1 << 32, (1 << 63) - 1, -(1 << 63),
]  # fmt: skip
VARINTS = [b"\x00", b"\x01", b"\x7f", b"\xff\x7f", b"\xff\xff\xff\xff\x07", b"\xff" * 10 + b"\x01"]
HEADER = 10  # api key, version, correlation id, length of the client id


@dataclass(frozen=True, slots=True)
class Seed:
    """One request of the corpus."""

    api: int
    version: int
    frame: bytes


def load_corpus() -> list[Seed]:
    seeds = []
    for line in CORPUS.read_text().splitlines():
        api, version, frame = line.split()
        seeds.append(Seed(int(api), int(version), bytes.fromhex(frame)))
    return seeds


class Mutator:
    """Frames by number: the same seed and number give the same frame."""

    def __init__(self, seed: int, corpus: list[Seed]) -> None:
        self.seed = seed
        self._corpus = corpus
        self._weights = []
        total = 0.0
        for one in corpus:
            total += SELDOM.get(one.api, 1.0)
            self._weights.append(total)

    def frames(self, chunk: int, count: int, topic_id: bytes) -> list[bytes]:
        """`count` frames with their length prefix. `topic_id` is that of the topic that exists."""
        rng = random.Random(self.seed * 1_000_003 + chunk)
        made = []
        for seed in rng.choices(self._corpus, cum_weights=self._weights, k=count):
            body = bytearray(seed.frame.replace(TOPIC_ID, topic_id))
            for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
                self._mutate(rng, body)
            size = len(body)
            if rng.random() < 0.02:
                size = rng.choice(NUMBERS)
            made.append(struct.pack(">i", (size + 2**31) % 2**32 - 2**31) + body)
        return made

    def _mutate(self, rng: random.Random, body: bytearray) -> None:
        # The header decides which decoder runs: usually leave it, or little else is reached.
        low = 0 if rng.random() < 0.1 else min(HEADER, len(body))
        if low >= len(body):
            body += rng.randbytes(rng.randrange(1, 20))
            return
        at = rng.randrange(low, len(body))
        kind = rng.randrange(10)
        if kind <= 2:
            body[at] ^= 1 << rng.randrange(8)
        elif kind == 3:
            body[at] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF))
        elif kind <= 5:
            width = rng.choice((1, 2, 4, 8))
            number = rng.choice(NUMBERS) % (1 << (8 * width))
            body[at : at + width] = number.to_bytes(width, "big")
        elif kind == 6:
            body[at : at + 1] = rng.choice(VARINTS)
        elif kind == 7:
            del body[at : at + rng.choice((1, 2, 4, 8, 16, 10_000))]
        elif kind == 8:
            body[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, 64)))
        else:
            other = rng.choice(self._corpus).frame
            start = rng.randrange(len(other))
            body[at:at] = other[start : start + rng.randrange(1, 64)]
