"""Which partition a record goes to.

A keyed record must land where Java's client would put it, or two producers of one topic would
spread one key over two partitions and lose its order. Java hashes with murmur2 in a variant of
its own; librdkafka has the same under the name `murmur2`, and `murmur2_random` spreads records
without a key. Names are therefore handed to librdkafka. A Python callable is asked per record.
"""

from __future__ import annotations

from collections.abc import Callable

Partitioner = Callable[["bytes | None", int], int]
"""(key, number of partitions) -> partition"""

DEFAULT_PARTITIONER = "murmur2_random"

NAMES = (
    "murmur2_random",  # Java's hash; records without a key anywhere (the default)
    "murmur2",  # Java's hash; records without a key all go to one partition
    "consistent_random",  # CRC-32, librdkafka's own default
    "consistent",
    "fnv1a_random",  # as Sarama, the Go client
    "fnv1a",
    "random",
)

_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C
_M = 0x5BD1E995
_R = 24


def murmur2(data: bytes) -> int:
    """Java's `Utils.murmur2`: a signed 32-bit hash."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for position in range(0, whole, 4):
        k = int.from_bytes(data[position : position + 4], "little") * _M & _MASK
        k = (k ^ (k >> _R)) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if tail := data[whole:]:
        h = (h ^ int.from_bytes(tail, "little")) * _M & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h


def murmur2_partition(key: bytes, partitions: int) -> int:
    """Where Java's client puts a record with this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def check_name(name: str) -> str:
    """A name librdkafka knows, or a ValueError with those it does."""
    if name not in NAMES:
        raise ValueError(
            f"there is no partitioner {name!r}; give one of {', '.join(NAMES)}, "
            f"or a function (key, partitions) -> partition"
        )
    return name


def ask(partitioner: Partitioner, key: bytes | None, partitions: int) -> int:
    """Ask a callable, and hold it to its contract."""
    chosen = partitioner(key, partitions)
    if isinstance(chosen, bool) or not isinstance(chosen, int):
        raise TypeError(
            f"the partitioner returned {chosen!r}; it must return a partition from 0 to "
            f"{partitions - 1}"
        )
    if not 0 <= chosen < partitions:
        raise ValueError(
            f"the partitioner chose partition {chosen}, but the topic has {partitions}: "
            f"0 to {partitions - 1}"
        )
    return chosen
