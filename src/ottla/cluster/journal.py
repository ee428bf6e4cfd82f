"""The files of the embedded store: a snapshot, and a journal of what changed since.

    metadata/
      snapshot-00000000000000000007     everything, after journal frame 7
      journal-00000000000000000007      frames 8, 9, 10, …
      .lock

Both hold frames, the snapshot exactly one:

    offset  size
         0     4  magic: \\x89OJ1 in a journal, \\x89OS1 in a snapshot
         4     4  length of the body
         8     8  sequence number, one more than that of the frame before
        16     4  CRC-32 of the body
        20     4  CRC-32 of the 20 bytes above
        24        body: revision (8), number of changes (4), then each change:
                  kind (1; 1 put, 2 delete), version (8), key length (2), key,
                  and for a put value length (4), value

Why a crash loses nothing. A frame is synced before the next is written, so at most one frame is in
doubt, and it is the last. Commits that wait for the disk together share a frame for that reason:
with a frame each, a crash could keep the second and lose the first, and that could not be told from
rot. A frame that is wrong is therefore an unfinished write if no other follows it, and is cut
off and reported; if another frame does follow, the file is damaged and opening it is refused:
what was acknowledged is never dropped in silence.

Rotation makes the new, empty journal first and the snapshot second, both durable by name, and
removes the older pair last. So the snapshot's journal must exist whenever the snapshot does, and a
missing one is noticed. A store exists from the moment its first snapshot does.

Everything here blocks. The store calls it in a thread.
"""

from __future__ import annotations

import logging
import os
import re
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.cluster.store import Entry, StoreError
from ottla.runtime.files import File, FileSystem

logger = logging.getLogger(__name__)

JOURNAL_MAGIC = b"\x89OJ1"
SNAPSHOT_MAGIC = b"\x89OS1"

_HEADER = struct.Struct(">4sIQII")
_UNCHECKED = _HEADER.size - 4  # the header's own checksum covers what is before it
_BODY = struct.Struct(">QI")
_CHANGE = struct.Struct(">BQH")
_LENGTH = struct.Struct(">I")
_PUT = 1
_DELETE = 2

_NAME = re.compile(r"(snapshot|journal)-(\d{20})")


class DamagedStore(StoreError):
    """A file of the store is not what was written to it."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"{path}: {problem}. The metadata store refuses to open it, because continuing would "
            "silently forget committed topics or settings. Restore it from a backup (`ottla "
            "metadata import`), or rebuild it from the partitions (`ottla metadata rescue`)."
        )
        self.path = path


class Change(NamedTuple):
    """A key's new entry, or None when it was deleted."""

    key: str
    entry: Entry | None


@dataclass(slots=True)
class Contents:
    """What the files add up to."""

    entries: dict[str, Entry] = field(default_factory=dict)
    revision: int = 0
    sequence: int = 0


class Journal:
    """An open pair of files, positioned for the next frame."""

    __slots__ = ("_files", "_folder", "_journal", "_sequence", "_size", "_snapshot")

    def __init__(
        self, files: FileSystem, folder: str, journal: File, snapshot: int, sequence: int
    ) -> None:
        self._files = files
        self._folder = folder
        self._journal = journal
        self._snapshot = snapshot
        self._sequence = sequence
        self._size = journal.size()

    @property
    def size(self) -> int:
        """Bytes in the current journal file."""
        return self._size

    @property
    def path(self) -> str:
        return self._journal.path

    def append(self, revision: int, changes: Iterable[Change]) -> None:
        """Write one frame and make it durable.

        An OSError from the write leaves the journal as it was and usable. An OSError from the sync
        does not: the kernel may have dropped the dirty pages, so the file must not be used again.
        That one is raised as `SyncFailed`, and so is a write that could not be undone.
        """
        frame = encode_frame(JOURNAL_MAGIC, self._sequence + 1, revision, changes)
        try:
            self._journal.append(frame)
        except OSError:
            try:
                self._journal.truncate(self._size)
            except OSError as error:
                raise SyncFailed(self.path, error) from error
            raise
        try:
            self._journal.sync()
        except OSError as error:
            raise SyncFailed(self.path, error) from error
        self._sequence += 1
        self._size += len(frame)

    def rotate(self, revision: int, entries: Mapping[str, Entry]) -> None:
        """Begin a new journal behind a snapshot of `entries`, which are those of the last frame.

        After an OSError the older files stay, and what is in use continues them without a gap.
        """
        if self._snapshot == self._sequence:
            return
        fresh = _create(self._files, self._folder, self._sequence)
        self._journal.close()
        self._journal = fresh
        self._size = 0
        _write_snapshot(self._files, self._folder, self._sequence, revision, entries)
        self._snapshot = self._sequence
        _remove_unused(self._files, self._folder, self._snapshot, self._sequence)

    def close(self) -> None:
        self._journal.close()


class SyncFailed(OSError):
    """The disk did not confirm a write; what is on it is unknown until the next recovery."""

    def __init__(self, path: str, cause: OSError) -> None:
        super().__init__(cause.errno, cause.strerror, path)


def exists(files: FileSystem, folder: str) -> bool:
    """Whether a store was ever completely created in `folder`."""
    return files.is_dir(folder) and any(
        name.startswith("snapshot-") and _NAME.fullmatch(name) for name in files.listdir(folder)
    )


def create(files: FileSystem, folder: str, initial: Mapping[str, bytes]) -> None:
    """A new store holding `initial`. Raises DamagedStore when there are remains of another."""
    if files.is_dir(folder):
        for name in files.listdir(folder):
            path = os.path.join(folder, name)
            if name.startswith("journal-") and files.size(path):
                raise DamagedStore(path, "there is a journal but no snapshot beside it")
    entries = {key: Entry(value, 0) for key, value in initial.items()}
    restore(files, folder, Contents(entries, int(bool(entries))))


def restore(files: FileSystem, folder: str, contents: Contents) -> None:
    """A new store holding `contents`, versions included, in a folder without one. All or nothing:
    `exists` is true only at the very end."""
    _sync_names(files, folder)
    _create(files, folder, 0).close()
    _write_snapshot(files, folder, 0, contents.revision, contents.entries)


def read(files: FileSystem, folder: str, attempts: int = 10) -> Contents:
    """What is in a store, which may be in use by another process: nothing is locked or changed.

    One state that was committed, as of some moment during the call: a frame that is being written
    is not in it. Files that a rotation takes away meanwhile are looked for again.
    """
    while True:
        attempts -= 1
        try:
            return _survey(files, folder).contents
        except (DamagedStore, FileNotFoundError):
            if not attempts:
                raise


@dataclass(frozen=True, slots=True)
class _Survey:
    """What the files hold, and where the writing goes on."""

    contents: Contents
    start: int  # of the snapshot
    live: int  # of the journal in use
    torn: tuple[str, int] | None  # an unfinished write: its file, and how much of that is good


def recover(files: FileSystem, folder: str) -> tuple[Journal, Contents]:
    """Read everything back, cut off an unfinished last write, and open for more."""
    found = _survey(files, folder)
    contents, start = found.contents, found.start
    if found.torn is not None:
        _cut(files, *found.torn)
    journal = files.open(_journal_path(folder, found.live))
    # What was just read may exist in the page cache only: a process that is killed has its writes
    # done for it, but not its syncs. It becomes durable before anybody builds on it.
    journal.sync()
    files.sync_dir(folder)
    _remove_unused(files, folder, start, contents.sequence)
    return Journal(files, folder, journal, start, contents.sequence), contents


def _survey(files: FileSystem, folder: str) -> _Survey:
    snapshots: list[int] = []
    journals: list[int] = []
    for name in files.listdir(folder):
        if match := _NAME.fullmatch(name):
            (snapshots if match[1] == "snapshot" else journals).append(int(match[2]))
    start = max(snapshots)
    contents = _read_snapshot(files, _snapshot_path(folder, start))
    current = sorted(number for number in journals if number >= start)
    if not current or current[0] != start:
        raise DamagedStore(_journal_path(folder, start), "the file is missing")
    live = start
    torn: tuple[str, int] | None = None
    for index, number in enumerate(current):
        path = _journal_path(folder, number)
        data = files.read_bytes(path)
        size = len(data)
        if size == 0 and number < contents.sequence:
            continue  # a rotation that failed at its first step; the older journal stayed in use
        if number != contents.sequence:
            raise DamagedStore(
                path, f"it begins after frame {number}, but the last known is {contents.sequence}"
            )
        live = number
        good = _replay(path, data, contents)
        if good < size:
            if any(files.size(_journal_path(folder, later)) for later in current[index + 1 :]):
                raise DamagedStore(
                    path, f"the frame at byte {good} is damaged, and a later file exists"
                )
            torn = path, good
    return _Survey(contents, start, live, torn)


# --- frames ---------------------------------------------------------------------------------------


def encode_frame(magic: bytes, sequence: int, revision: int, changes: Iterable[Change]) -> bytes:
    parts = [b""]
    count = 0
    for key, entry in changes:
        count += 1
        name = key.encode()
        if entry is None:
            parts += (_CHANGE.pack(_DELETE, 0, len(name)), name)
        else:
            parts += (
                _CHANGE.pack(_PUT, entry.version, len(name)),
                name,
                _LENGTH.pack(len(entry.value)),
                entry.value,
            )
    parts[0] = _BODY.pack(revision, count)
    body = b"".join(parts)
    header = _HEADER.pack(magic, len(body), sequence, zlib.crc32(body), 0)[:_UNCHECKED]
    return b"".join((header, _LENGTH.pack(zlib.crc32(header)), body))


class _Header(NamedTuple):
    sequence: int
    body: int  # where it begins
    end: int
    crc: int


def _header_at(data: bytes, position: int, magic: bytes) -> _Header | None:
    """The header of a frame, when it is whole and correct."""
    body = position + _HEADER.size
    if body > len(data):
        return None
    found, length, sequence, body_crc, header_crc = _HEADER.unpack_from(data, position)
    if found != magic or zlib.crc32(data[position : position + _UNCHECKED]) != header_crc:
        return None
    return _Header(sequence, body, body + length, body_crc)


def _body(data: bytes, header: _Header) -> memoryview | None:
    """The body of a frame, when it is whole and correct."""
    body = memoryview(data)[header.body : header.end]
    if header.end > len(data) or zlib.crc32(body) != header.crc:
        return None
    return body


def _apply(body: memoryview, contents: Contents) -> None:
    contents.revision, count = _BODY.unpack_from(body)
    position = _BODY.size
    for _ in range(count):
        kind, version, length = _CHANGE.unpack_from(body, position)
        position += _CHANGE.size
        key = str(body[position : position + length], "ascii")
        position += length
        if kind == _DELETE:
            contents.entries.pop(key, None)
            continue
        (length,) = _LENGTH.unpack_from(body, position)
        position += _LENGTH.size
        contents.entries[key] = Entry(bytes(body[position : position + length]), version)
        position += length


def _replay(path: str, data: bytes, contents: Contents) -> int:
    """Apply the frames of one journal; returns how many bytes of it are good."""
    position = 0
    header = _header_at(data, position, JOURNAL_MAGIC)
    while header is not None:
        if header.sequence != contents.sequence + 1:
            raise DamagedStore(
                path,
                f"the frame at byte {position} has number {header.sequence} where "
                f"{contents.sequence + 1} belongs",
            )
        body = _body(data, header)
        if body is None:
            break
        _apply(body, contents)
        contents.sequence = header.sequence
        position = header.end
        header = _header_at(data, position, JOURNAL_MAGIC)
    # What is left can only be one unfinished frame: then the file ends with it.
    if header is not None and header.end < len(data):
        raise DamagedStore(path, f"the frame at byte {position} is damaged, and others follow")
    later = data.find(JOURNAL_MAGIC, position + 1)
    while later >= 0:
        following = _header_at(data, later, JOURNAL_MAGIC)
        if following is not None and following.sequence > contents.sequence:
            raise DamagedStore(
                path,
                f"the frame at byte {position} is damaged, and another one follows at {later}",
            )
        later = data.find(JOURNAL_MAGIC, later + 1)
    return position


# --- files ----------------------------------------------------------------------------------------


def _snapshot_path(folder: str, number: int) -> str:
    return os.path.join(folder, f"snapshot-{number:020d}")


def _journal_path(folder: str, number: int) -> str:
    return os.path.join(folder, f"journal-{number:020d}")


def _sync_names(files: FileSystem, folder: str) -> None:
    """Make the name of a folder durable, and the names of those it is in.

    They may be new even if they were there before this process: an earlier one may have made them
    and died, and the machine may still forget them.
    """
    while (parent := os.path.dirname(folder)) != folder:
        try:
            files.sync_dir(parent)
        except PermissionError:
            return  # a folder that may not be read was not made for us
        folder = parent


def _create(files: FileSystem, folder: str, number: int) -> File:
    """A new, empty journal with a durable name."""
    journal = files.open(_journal_path(folder, number), create=True)
    try:
        journal.truncate(0)
        journal.sync()
        files.sync_dir(folder)
    except BaseException:
        journal.close()
        raise
    return journal


def _write_snapshot(
    files: FileSystem, folder: str, number: int, revision: int, entries: Mapping[str, Entry]
) -> None:
    changes = (Change(key, entry) for key, entry in entries.items())
    frame = encode_frame(SNAPSHOT_MAGIC, number, revision, changes)
    files.write_atomic(_snapshot_path(folder, number), frame)


def _read_snapshot(files: FileSystem, path: str) -> Contents:
    data = files.read_bytes(path)
    header = _header_at(data, 0, SNAPSHOT_MAGIC)
    body = None if header is None else _body(data, header)
    if header is None or body is None or header.end != len(data):
        raise DamagedStore(path, "its checksum is wrong")
    if path != _snapshot_path(os.path.dirname(path), header.sequence):
        raise DamagedStore(path, f"it holds the snapshot of frame {header.sequence}")
    contents = Contents(sequence=header.sequence)
    _apply(body, contents)
    return contents


def _cut(files: FileSystem, path: str, size: int) -> None:
    lost = files.size(path) - size
    journal = files.open(path)
    try:
        journal.truncate(size)
    finally:
        journal.close()
    logger.warning(
        "%s: cut off %d bytes of an unfinished write at the end; nothing acknowledged was lost",
        path,
        lost,
    )


def _remove_unused(files: FileSystem, folder: str, snapshot: int, sequence: int) -> None:
    """Remove what the newest snapshot made superfluous, and the debris of failed rotations.

    What stays behind after an error or a crash does no harm and goes at the next start.
    """
    try:
        for name in files.listdir(folder):
            match = _NAME.fullmatch(name)
            path = os.path.join(folder, name)
            if (
                name.endswith(".tmp")
                or (match and int(match[2]) < snapshot)
                or (match and snapshot < int(match[2]) < sequence and not files.size(path))
            ):
                files.remove(path)
    except OSError as error:
        logger.warning("%s: an old file could not be removed: %s", folder, error)
