"""How many partitions the groups' topic had, or the transactions', told from what is in them.

A group's records are in the partition that its name's hash gives, modulo the number of partitions;
so are those of a transactional id. Folders alone do not tell that number, since those of the last
partitions may never have been made, and with a wrong one every group would be looked for in the
wrong place.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence

from ottla.coordinator.key_hash import key_hash
from ottla.records.batch import InvalidBatch, batches, checksum_ok
from ottla.records.reader import iter_records
from ottla.runtime.files import FileSystem
from ottla.storage import paths

ENOUGH = 50
"""So many groups of a partition are looked at."""
_MOST_BYTES = 4 << 20
_LARGEST = 10_000


def likely_count(
    fs: FileSystem, folders: Mapping[int, str], candidates: Sequence[int]
) -> int | None:
    """The number that fits every group: the first of `candidates` if one does, else the smallest;
    None when none fits, or no group is found."""
    hashes = [
        (index, key_hash(group))
        for index, folder in folders.items()
        for group in _groups(fs, folder)
    ]
    if not hashes:
        return None
    counts: list[int] = [*candidates, *range(max(folders) + 1, _LARGEST)]
    for count in counts:
        if count > max(folders) and all(value % count == index for index, value in hashes):
            return count
    return None


def _groups(fs: FileSystem, folder: str) -> set[str]:
    """Some of the groups with records in a partition."""
    found: set[str] = set()
    for name in fs.listdir(folder):
        parsed = paths.parse_offset_file(name)
        if parsed is None or parsed[1] != paths.LOG_SUFFIX:
            continue
        for key in _keys(fs, f"{folder}/{name}"):
            # Every key of these topics is a version, then the name of the group or transaction.
            if len(key) >= 4:
                (length,) = struct.unpack_from(">h", key, 2)
                found.add(key[4 : 4 + length].decode("utf-8", "replace"))
            if len(found) >= ENOUGH:
                return found
    return found


def _keys(fs: FileSystem, path: str) -> Iterator[bytes]:
    file = fs.open(path)
    try:
        data = memoryview(file.pread(_MOST_BYTES, 0))
    finally:
        file.close()
    try:
        for position, header in batches(data):
            if not header.is_control and checksum_ok(data, position, header):
                for record in iter_records(data[position : position + header.size], header):
                    yield record.key or b""
    except InvalidBatch:
        return  # damaged: what came before tells enough
