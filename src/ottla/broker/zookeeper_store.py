"""The metadata store of a broker whose settings name a ZooKeeper.

Imported only then: kazoo takes a while. Whoever has data of a cluster founds none: its folders say
which one they belong to, and where that is not to be found the address is wrong.
"""

from __future__ import annotations

from ottla.broker.start_failed import StartFailed
from ottla.cluster import layout
from ottla.cluster.store import StoreError
from ottla.cluster.zookeeper.address import BadAddress, access_of, parse_address
from ottla.cluster.zookeeper.store import ZooKeeperStore
from ottla.config.broker import BrokerConfig


async def open_zookeeper(config: BrokerConfig, cluster_id: str | None) -> ZooKeeperStore:
    """Connect to what `zookeeper.connect` names; `cluster_id` is what the data folders say.

    Raises StartFailed.
    """
    assert config.zookeeper_connect is not None
    try:
        address = parse_address(config.zookeeper_connect)
        access = access_of(config.static, "the broker's settings")
        store = await ZooKeeperStore.open(
            address,
            access,
            create=cluster_id is None,
            session_timeout=config.zookeeper_session_timeout_ms / 1000,
            connect_timeout=config.zookeeper_connection_timeout_ms / 1000,
        )
        try:
            if cluster_id is not None:
                await _check_cluster(store, cluster_id)
        except BaseException:
            await store.close()
            raise
    except BadAddress as error:
        raise StartFailed(f"zookeeper.connect: {error}") from None
    except StoreError as error:
        whose = "" if cluster_id is None else f"; the data folders belong to cluster {cluster_id}"
        raise StartFailed(f"zookeeper.connect={config.zookeeper_connect}: {error}{whose}") from None
    return store


async def _check_cluster(store: ZooKeeperStore, cluster_id: str) -> None:
    found = (await store.read(layout.CLUSTER)).entries.get(layout.CLUSTER)
    if found is None:
        raise StoreError("there is no cluster: is the chroot right?")
    other = layout.decode_cluster(found.value)
    if other != cluster_id:
        raise StoreError(f"this is cluster {other}: is the chroot right, and log.dir?")
