"""The folder of a cluster on one machine: its metadata, and the data of each of its brokers.

    ottla.cluster       says that this is such a folder, and no broker's data folder
    supervisor.pid      held by the supervisor, while there is one
    metadata.socket     where it lends the metadata
    control.socket      where it is asked for one more broker
    rolling.pid         held by a command that restarts the brokers one after the other
    brokers.json        which brokers there are, and how far their ports are from the first one's
    cluster/            the metadata, or
    zookeeper/          that of a ZooKeeper, and zookeeper.pid and zookeeper.log
    broker-1.pid        held by broker 1, while it runs, and gone after a clean stop
    broker-1/           its data

With several data folders (`log.dirs`) each has a `broker-1/`, and the first has all the rest.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ottla.broker.metadata_home import NOTE, find_stores
from ottla.broker.start_failed import StartFailed
from ottla.cluster.embedded import EmbeddedStore
from ottla.runtime.files import FileSystem
from ottla.storage import paths

MARK = "ottla.cluster"
_BROKER = re.compile(r"broker-(\d+)(\.pid)?")
_TEXT = b"# The brokers of one machine, started together. Each has its data in a folder below.\n"


class Seat(NamedTuple):
    """A broker of a cluster on one machine; its ports are so much higher than the first one's."""

    broker: int
    offset: int


def in_order(seats: Iterable[Seat]) -> list[Seat]:
    """As they are started: by their ports. The first one's are the lowest, whatever the ids are
    of those that were added later."""
    return sorted(seats, key=lambda seat: (seat.offset, seat.broker))


@dataclass(frozen=True, slots=True)
class ClusterFolder:
    """Where everything is."""

    roots: tuple[str, ...]

    @property
    def home(self) -> str:
        return self.roots[0]

    @property
    def store(self) -> str:
        return os.path.join(self.home, "cluster")

    @property
    def socket(self) -> str:
        return os.path.join(self.home, "metadata.socket")

    @property
    def zookeeper(self) -> str:
        """The data of a ZooKeeper that is run along."""
        return os.path.join(self.home, "zookeeper")

    @property
    def zookeeper_log(self) -> str:
        """What that ZooKeeper tells."""
        return os.path.join(self.home, "zookeeper.log")

    @property
    def supervisor(self) -> str:
        """The file that the supervisor holds."""
        return os.path.join(self.home, "supervisor.pid")

    @property
    def control(self) -> str:
        """The socket at which the supervisor is asked for one more broker."""
        return os.path.join(self.home, "control.socket")

    @property
    def rolling(self) -> str:
        """The file that a rolling restart holds."""
        return os.path.join(self.home, "rolling.pid")

    @property
    def roster(self) -> str:
        """The file that says which brokers there are."""
        return os.path.join(self.home, "brokers.json")

    def seats(self, fs: FileSystem) -> tuple[Seat, ...]:
        """The brokers of the last run, by their ids; none when nobody has noted them."""
        try:
            noted = json.loads(fs.read_bytes(self.roster))
            return tuple(sorted(Seat(int(each), int(noted[each])) for each in noted))
        except FileNotFoundError:
            return ()
        except (ValueError, TypeError, OSError) as error:
            raise StartFailed(f"{self.roster} cannot be read: {error}") from None

    def note_seats(self, fs: FileSystem, seats: Sequence[Seat]) -> None:
        """Remember the brokers for the next run. Raises OSError."""
        noted = {str(seat.broker): seat.offset for seat in sorted(seats)}
        fs.write_atomic(self.roster, json.dumps(noted).encode() + b"\n")

    def process(self, broker: int) -> str:
        """The file that a broker holds."""
        return os.path.join(self.home, f"broker-{broker}.pid")

    def data(self, broker: int) -> tuple[str, ...]:
        """A broker's data folders."""
        return tuple(os.path.join(root, f"broker-{broker}") for root in self.roots)

    def brokers(self) -> list[int]:
        """The brokers that were ever here: they have a process, or left their data."""
        found = map(_BROKER.fullmatch, os.listdir(self.home))
        return sorted({int(each[1]) for each in found if each is not None})

    def prepare(self, fs: FileSystem, *, lent: bool = True) -> None:
        """Make the folders, or refuse those that are something else. Raises StartFailed.

        `lent` tells whether the metadata is to be here, and not in a ZooKeeper."""
        try:
            for root in self.roots:
                fs.makedirs(root)
                if fs.exists(os.path.join(root, MARK)):
                    continue
                if _of_one_broker(fs, root):
                    raise StartFailed(
                        f"{root} is the data folder of a single broker; several brokers need a "
                        "folder of their own: name another one with --data-dir"
                    )
                fs.write_atomic(os.path.join(root, MARK), _TEXT)
            if lent:
                self._miss_nothing(fs)
            elif EmbeddedStore.exists(fs, self.store):
                raise StartFailed(
                    f"the cluster in {self.home} has its metadata in {self.store}, not in a "
                    "ZooKeeper: start it without --zookeeper, or name another --data-dir"
                )
        except OSError as error:
            raise StartFailed(f"{self.home} cannot be used: {error}") from None

    def _miss_nothing(self, fs: FileSystem) -> None:
        """Brokers that have been there belong to metadata that must be there."""
        if EmbeddedStore.exists(fs, self.store):
            return
        if fs.exists(self.zookeeper):
            raise StartFailed(
                f"the cluster in {self.home} has its metadata in a ZooKeeper: start it with "
                "--zookeeper, or name another --data-dir"
            )
        for name in fs.listdir(self.home):
            meta = os.path.join(self.home, name, paths.META_PROPERTIES)
            if name.startswith("broker-") and fs.exists(meta):
                raise StartFailed(
                    f"{self.home} has the data of brokers, and their metadata, which was in "
                    f"{self.store}, is not there any more: bring it back from a backup, or start "
                    "with another --data-dir"
                )


def belongs_to_cluster(fs: FileSystem, folders: Sequence[str]) -> str | None:
    """Why a broker by itself must not use these folders; None if it may."""
    for folder in folders:
        home = cluster_home(fs, folder)
        if home == folder:
            return f"{folder} has the data of several brokers"
        if home is not None:
            return f"{folder} has the data of one of the brokers in {home}"
    return None


def cluster_home(fs: FileSystem, folder: str) -> str | None:
    """The folder of a cluster that this one is, or in which it is that of a broker."""
    if fs.exists(os.path.join(folder, MARK)):
        return folder
    home, name = os.path.split(os.path.normpath(folder))
    found = _BROKER.fullmatch(name)
    if found is None or found[2] or not fs.exists(os.path.join(home, MARK)):
        return None
    return home or "."


def _of_one_broker(fs: FileSystem, folder: str) -> bool:
    return bool(find_stores(fs, [folder])) or any(
        fs.exists(os.path.join(folder, name)) for name in (paths.META_PROPERTIES, NOTE)
    )
