"""The metadata store of a broker whose settings name a ZooKeeper.

Imported only then: kazoo takes a while. Whoever has data of a cluster founds none: its folders say
which one they belong to, and where that is not to be found the address is wrong. One exception: a
broker that was alone, with the metadata in its own folders, brings it along, once
(`cluster.hand_over`).
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

from ottla.broker.metadata_home import find_stores
from ottla.broker.own_store import OwnStore
from ottla.broker.start_failed import StartFailed
from ottla.cluster import layout
from ottla.cluster.hand_over import hand_over, is_founder
from ottla.cluster.store import MetadataStore, StoreError
from ottla.cluster.zookeeper.address import BadAddress, access_of, parse_address
from ottla.cluster.zookeeper.store import Interrupted, ZooKeeperStore
from ottla.config.broker import BrokerConfig
from ottla.runtime.files import FileSystem
from ottla.storage.directory import LogDirectories

logger = logging.getLogger(__name__)

PAUSE = 0.2
NOTICE_SECONDS = 2.0
"""After so long without an answer a line says what is waited for."""


async def open_zookeeper(
    config: BrokerConfig, fs: FileSystem, logs: LogDirectories, cluster_id: str | None
) -> ZooKeeperStore:
    """Connect to what `zookeeper.connect` names; `cluster_id` is what the data folders say.

    A connection that ends meanwhile is made again until `zookeeper.connection.timeout.ms` have
    passed. Raises StartFailed.
    """
    assert config.zookeeper_connect is not None
    async with AsyncExitStack() as closing:
        source: MetadataStore | None = None
        if find_stores(fs, logs.folders):
            source = await OwnStore(fs, logs).open()
            closing.push_async_callback(source.close)
        notice = asyncio.get_running_loop().call_later(
            NOTICE_SECONDS,
            logger.warning,
            "waiting for ZooKeeper at %s, for up to %g s (zookeeper.connection.timeout.ms)",
            config.zookeeper_connect,
            config.zookeeper_connection_timeout_ms / 1000,
        )
        closing.callback(notice.cancel)
        try:
            return await _open_in_time(config, source, cluster_id)
        except BadAddress as error:
            raise StartFailed(f"zookeeper.connect: {error}") from None
        except StoreError as error:
            whose = ""
            if cluster_id is not None and cluster_id not in str(error):
                whose = f"; the data folders belong to cluster {cluster_id}"
            raise StartFailed(
                f"zookeeper.connect={config.zookeeper_connect}: {error}{whose}"
            ) from None


async def _open_in_time(
    config: BrokerConfig, source: MetadataStore | None, cluster_id: str | None
) -> ZooKeeperStore:
    loop = asyncio.get_running_loop()
    seconds = config.zookeeper_connection_timeout_ms / 1000
    deadline = loop.time() + seconds
    while True:
        try:
            return await _open(config, source, cluster_id, seconds)
        except Interrupted as error:
            seconds = round(deadline - loop.time() - PAUSE, 1)
            if seconds <= 0:
                raise
            logger.warning("zookeeper.connect: %s; trying again for %.1f s", error, seconds)
        await asyncio.sleep(PAUSE)


async def _open(
    config: BrokerConfig, source: MetadataStore | None, cluster_id: str | None, seconds: float
) -> ZooKeeperStore:
    """One attempt: the first connection may take so long."""
    store = await ZooKeeperStore.open(
        parse_address(config.zookeeper_connect or ""),
        access_of(config.static, "the broker's settings"),
        create=cluster_id is None or (source is not None and await is_founder(source)),
        session_timeout=config.zookeeper_session_timeout_ms / 1000,
        connect_timeout=seconds,
    )
    async with AsyncExitStack() as failed:
        failed.push_async_callback(store.close)
        await _take_along(config, source, store)
        if cluster_id is not None:
            await _check_cluster(store, cluster_id)
        failed.pop_all()
    return store


async def _take_along(
    config: BrokerConfig, source: MetadataStore | None, store: ZooKeeperStore
) -> None:
    """What the broker knew when it was alone."""
    if source is None:
        return
    where = str(parse_address(config.zookeeper_connect or ""))
    # One that was killed meanwhile is there until its session ends.
    patience = 2 * config.zookeeper_session_timeout_ms / 1000
    copied = await hand_over(source, store, where, patience=patience)
    if copied:
        logger.info("the metadata of this broker (%d keys) was handed over to %s", copied, where)


async def _check_cluster(store: ZooKeeperStore, cluster_id: str) -> None:
    found = (await store.read(layout.CLUSTER)).entries.get(layout.CLUSTER)
    if found is None:
        raise StoreError("there is no cluster: is the chroot right?")
    other = layout.decode_cluster(found.value)
    if other != cluster_id:
        raise StoreError(f"this is cluster {other}: is the chroot right, and log.dir?")
