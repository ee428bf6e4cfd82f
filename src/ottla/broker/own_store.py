"""The metadata store of a broker that is not handed one: in its own data folders.

Found, opened or made anew, or refused with a sentence that says what is missing. `metadata_home`
knows where it is to be; Apache Kafka's metadata is taken over when that is what the folders hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ottla.broker.metadata_home import MetadataMissing, check_filled, find_home, remember
from ottla.broker.start_failed import StartFailed
from ottla.cluster import layout
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.store import MetadataStore
from ottla.runtime.files import FileSystem
from ottla.storage.directory import LogDirectories


class OwnStore:
    """Where this broker's store is. `open` it, `check` it, then `note` in every folder where."""

    def __init__(self, fs: FileSystem, logs: LogDirectories) -> None:
        self._fs = fs
        self._logs = logs
        with _looking():
            self._home = find_home(fs, logs.folders, logs.offline_folders)

    async def open(self) -> MetadataStore:
        path = self._home.path
        try:
            if self._home.kraft:
                return await _take_over(self._fs, path, self._logs.folders)
            return await EmbeddedStore.open(self._fs, path)
        except BlockingIOError:
            raise StartFailed(f"the metadata in {path} is in use by another process") from None
        except OSError as error:
            raise StartFailed(f"the metadata in {path} cannot be opened: {error}") from None

    async def check(self, store: MetadataStore) -> None:
        """An empty store beside partitions has lost what it held; one that was handed over is an
        old copy."""
        entries = (await store.read("")).entries
        if layout.HANDED_OVER in entries:
            where = layout.decode_hand_over(layout.HANDED_OVER, entries[layout.HANDED_OVER].value)
            raise StartFailed(
                f"the metadata in {self._home.path} was handed over to ZooKeeper at {where}: start "
                f"the broker with zookeeper.connect={where}"
            )
        if not entries:
            with _looking():
                check_filled(self._fs, self._home, self._logs.folders)

    def note(self) -> None:
        """Tell the next start where the store is."""
        logs = self._logs
        remember(self._fs, logs.folders, self._home.data_folder, logs.offline_folders)


@contextmanager
def _looking() -> Iterator[None]:
    try:
        yield
    except MetadataMissing as error:
        raise StartFailed(str(error)) from None
    except OSError as error:
        raise StartFailed(f"the metadata cannot be looked for: {error}") from None


async def _take_over(fs: FileSystem, path: str, folders: tuple[str, ...]) -> MetadataStore:
    """A store that begins with what Apache Kafka left; imported here, since it is rarely needed."""
    from ottla.cluster.kraft_import import ImportRefused, open_store

    try:
        store, _ = await open_store(fs, path, folders)
    except ImportRefused as error:
        raise StartFailed(str(error)) from None
    return store
