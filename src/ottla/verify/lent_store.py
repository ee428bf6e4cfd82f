"""The metadata store of a cluster under test that has no ZooKeeper, as a process of its own.

    python -m ottla.verify.lent_store FOLDER

The brokers of the folder find it at its socket; it runs until it is killed.
"""

from __future__ import annotations

import asyncio
import sys

from ottla.broker.cluster_folder import ClusterFolder
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.lender import Lender
from ottla.runtime.files import OsFileSystem
from ottla.runtime.loop import run


async def lend(folder: str) -> None:
    """Lend the store of a folder, for ever."""
    place, files = ClusterFolder((folder,)), OsFileSystem()
    place.prepare(files)
    store = await EmbeddedStore.open(files, place.store)
    lender = Lender(store, place.socket)
    await lender.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    run(lend(sys.argv[1]))
