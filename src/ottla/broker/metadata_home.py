"""Where the metadata store lives, and what is concluded when it is not there.

The embedded store is in the folder `metadata` of one data folder. The others must not be opened
without it: their partitions would belong to no topic, would be set aside, and would later be made
anew, empty. So every data folder carries a note (`ottla.metadata`) of where the store is, and a
broker that finds no store decides by what it does find:

    nothing is there at all                 fresh folders: a new cluster begins
    folders of Kafka, no note of ours       a first start: Kafka's metadata is taken over
    a note, or partitions without a store   the store is missed: the broker does not start, and says
                                            which folder it misses and what can be done

A store that is there and empty beside a note or partitions is missed in the same way: its journal
was cut off. (The note is written after the store's first entry.)

The note also lists the data folders in use. One of them that is empty at a start is most likely a
disk that is not mounted: the broker does not start either, since it would make the partitions that
were there anew, empty, and write below the mount point what vanishes when the disk comes back.

Kafka leaves files it does not know alone, so the note does not trouble it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ottla.cluster.embedded import EmbeddedStore
from ottla.model.names import CLUSTER_METADATA_TOPIC
from ottla.runtime.files import FileSystem
from ottla.storage import paths
from ottla.storage.checkpoints import CheckpointError, read_meta_properties
from ottla.storage.move_marks import is_unfinished

logger = logging.getLogger(__name__)

METADATA_FOLDER = "metadata"
KRAFT_FOLDER = f"{CLUSTER_METADATA_TOPIC}-0"
NOTE = "ottla.metadata"

_FIRST_LINE = "# Where this broker keeps the metadata of its topics."
_REMEDY = (
    "If there is a backup of the metadata, bring it back with `ottla metadata import`; if the "
    "metadata is lost for good, rebuild it from the partitions with `ottla metadata rescue`"
)


class MetadataMissing(Exception):
    """There must be a metadata store, and there is none: which folder is missed, what to do."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where the store is, or is to be."""

    data_folder: str
    exists: bool
    kraft: bool = False
    """There is none yet, and Kafka has left its metadata."""

    @property
    def path(self) -> str:
        return store_path(self.data_folder)


def store_path(data_folder: str) -> str:
    return os.path.join(data_folder, METADATA_FOLDER)


def find_home(fs: FileSystem, folders: Sequence[str], offline: Mapping[str, str]) -> Home:
    """The home among the usable data `folders`; `offline` ones cannot be opened, for a reason.

    Raises MetadataMissing, and OSError.
    """
    noted = noted_homes(fs, folders)
    stores = find_stores(fs, folders)
    if stores:
        home = _choose(stores, noted, offline)
        _miss_nothing(fs, home, folders)
        return Home(home, exists=True)
    if noted:
        raise MetadataMissing(_missed(fs, noted[0], folders, offline))
    if any(fs.is_dir(os.path.join(folder, KRAFT_FOLDER)) for folder in folders):
        return Home(folders[0], exists=False, kraft=True)
    for folder in folders:
        if count := len(partition_folders(fs, folder)):
            raise MetadataMissing(
                f"{folder} holds {count} partition(s){_of_cluster(fs, folder)}, and the metadata "
                f"that says what they are is in none of the data folders "
                f"({', '.join(folders)}){_offline(offline)}: is a data folder missing in log.dirs, "
                f"or its disk not mounted? {_REMEDY}"
            )
    used = {path: reason for path, reason in offline.items() if _was_used(fs, path)}
    if used:
        raise MetadataMissing(
            "there is no metadata in the data folders that can be opened, and there may be in one "
            f"that was used before{_offline(used)}: make it usable, or remove it from log.dirs"
        )
    return Home(folders[0], exists=False)


def check_filled(fs: FileSystem, home: Home, folders: Sequence[str]) -> None:
    """For a store that was found and has no entry at all: raises MetadataMissing unless it is that
    of a broker which was killed in its very first start. Raises OSError."""
    if noted_homes(fs, folders) or any(partition_folders(fs, folder) for folder in folders):
        raise MetadataMissing(
            f"the metadata in {home.path} is empty, and was not: its files were damaged, or copied "
            f"incompletely. {_REMEDY}, both with --replace"
        )


def find_stores(fs: FileSystem, folders: Sequence[str]) -> list[str]:
    """The data folders that have a store."""
    return [folder for folder in folders if EmbeddedStore.exists(fs, store_path(folder))]


def noted_homes(fs: FileSystem, folders: Sequence[str]) -> list[str]:
    """The data folders that the notes name, each once."""
    found: dict[str, None] = {}
    for folder in folders:
        home = _read_note(fs, folder)
        if home is not None:
            found[home] = None
    return list(found)


def remember(
    fs: FileSystem, folders: Sequence[str], home: str, offline: Iterable[str] = ()
) -> None:
    """Note in every folder that the store is in the data folder `home`, and which folders are in
    use: these, and of the `offline` ones those that were before."""
    try:
        before = _used(fs, home)
        used = [os.path.abspath(folder) for folder in folders if _is_ours(fs, folder)]
    except OSError as error:
        logger.warning("the data folders in use could not be noted: %s", error)
        return
    used += (path for path in map(os.path.abspath, offline) if path in before)
    lines = [_FIRST_LINE, "version=1", f"folder={os.path.abspath(home)}"]
    text = "\n".join([*lines, *(f"used={path}" for path in sorted(used)), ""])
    for folder in folders:
        path = os.path.join(folder, NOTE)
        try:
            if not fs.exists(path) or fs.read_bytes(path) != text.encode():
                fs.write_atomic(path, text.encode())
        except OSError as error:
            logger.warning("%s: where the metadata is could not be noted: %s", folder, error)


def partition_folders(fs: FileSystem, folder: str) -> list[str]:
    """The names of the partitions' folders in a data folder, without unfinished copies of logs
    that are in another."""
    found = ((name, paths.parse_partition_dir(name)) for name in fs.listdir(folder))
    return [
        name
        for name, partition in found
        if partition is not None
        and partition.topic != CLUSTER_METADATA_TOPIC
        and fs.is_dir(os.path.join(folder, name))
        and not is_unfinished(fs, os.path.join(folder, name))
    ]


def _read_note(fs: FileSystem, folder: str) -> str | None:
    try:
        named = _in_note(fs, folder, "folder")
    except FileNotFoundError:
        return None
    return named[0] if named else os.path.abspath(folder)  # damaged, but there was a store


def _used(fs: FileSystem, home: str) -> list[str]:
    """The data folders that were in use, as noted beside the store."""
    try:
        return _in_note(fs, home, "used")
    except FileNotFoundError:
        return []


def _in_note(fs: FileSystem, folder: str, wanted: str) -> list[str]:
    text = fs.read_bytes(os.path.join(folder, NOTE)).decode("utf-8", "replace")
    pairs = (line.partition("=") for line in text.splitlines())
    return [value.strip() for name, _, value in pairs if name.strip() == wanted and value.strip()]


def _miss_nothing(fs: FileSystem, home: str, folders: Sequence[str]) -> None:
    """Raises MetadataMissing when a folder that was in use is empty."""
    used = _used(fs, home)
    for folder in folders:
        if os.path.abspath(folder) in used and not _is_ours(fs, folder):
            raise MetadataMissing(
                f"{folder} was in use by this broker and is empty: is its disk mounted? If "
                "what was there is lost for good, start the broker once without it in log.dirs: "
                "the partitions that were there begin anew, empty"
            )


def _is_ours(fs: FileSystem, folder: str) -> bool:
    """Whether a data folder has been used by a broker."""
    return fs.exists(os.path.join(folder, paths.META_PROPERTIES)) or bool(
        partition_folders(fs, folder)
    )


def _choose(stores: list[str], noted: list[str], offline: Mapping[str, str]) -> str:
    for path, reason in offline.items():
        if os.path.abspath(path) in noted:
            raise MetadataMissing(
                f"the metadata was last in {store_path(path)}, and {path} cannot be opened: "
                f"{reason}. {store_path(stores[0])} may be an old copy: make {path} readable, or "
                f"remove it from log.dirs if the copy is the one to use"
            )
    if len(stores) == 1:
        return stores[0]
    named = [store for store in stores if os.path.abspath(store) in noted]
    if len(named) == 1:
        return named[0]
    raise MetadataMissing(
        f"there is metadata in {' and in '.join(map(store_path, stores))}: move all but one out "
        "of the way"
    )


def _missed(fs: FileSystem, home: str, folders: Sequence[str], offline: Mapping[str, str]) -> str:
    """What became of the store that the notes name."""
    usable = {os.path.abspath(folder): folder for folder in folders}
    failed = {os.path.abspath(folder): reason for folder, reason in offline.items()}
    cluster = next(filter(None, (_of_cluster(fs, folder) for folder in folders)), "")
    was = f"the metadata{cluster} was in {store_path(home)}"
    if home in failed:
        return f"{was}, and {home} cannot be opened: {failed[home]}. Make it readable. {_REMEDY}"
    if home not in usable:
        return f"{was}, and {home} is not in log.dirs: add it. {_REMEDY}"
    left = set(fs.listdir(usable[home])) - {paths.LOCK}
    if not left:
        return f"{was}, and {home} is empty: is its disk mounted? {_REMEDY}"
    return f"{was}, and is not there any more. {_REMEDY}"


def _was_used(fs: FileSystem, folder: str) -> bool:
    """Whether a folder that cannot be opened, but perhaps looked at, is some cluster's."""
    try:
        return fs.exists(os.path.join(folder, paths.META_PROPERTIES))
    except OSError:
        return False


def _of_cluster(fs: FileSystem, folder: str) -> str:
    try:
        meta = read_meta_properties(fs, folder)
    except CheckpointError:
        return ""
    return f" of cluster {meta.cluster_id}" if meta is not None and meta.cluster_id else ""


def _offline(offline: Mapping[str, str]) -> str:
    if not offline:
        return ""
    reasons = "; ".join(f"{path}: {reason}" for path, reason in offline.items())
    return f" (cannot be opened: {reasons})"
