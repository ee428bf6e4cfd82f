"""A look as somebody new, at a ZooKeeper that does not take its old client back.

A server that has seen fewer transactions than a client refuses this client, and only by closing the
connection: to the client that is as if nobody was there. So an emptied ZooKeeper, or one that was
taken back to an older state, is never seen as such by who knew it before. Who comes anew is let in,
also by a server that only lags behind: so that one catches up with its leader before it is read.
"""

from __future__ import annotations

import ssl
from typing import NamedTuple

from ottla.cluster.zookeeper.address import Access, Address
from ottla.cluster.zookeeper.connection import Broken, Denied, NoNode, Stat, connected
from ottla.cluster.zookeeper.nodes import CHANGES


class Seen(NamedTuple):
    """What is there: the founder's mark and what ZooKeeper counts. None: no metadata of ours."""

    found: tuple[bytes, Stat] | None


async def look_anew(
    address: Address, access: Access, tls: ssl.SSLContext | None, seconds: float
) -> Seen | None:
    """What somebody new finds there; None when nobody answers within so many seconds."""
    try:
        async with connected(address, access, tls, seconds, seconds) as connection:
            await connection.sync(CHANGES)
            return Seen(await connection.get(CHANGES))
    except NoNode:
        return Seen(None)
    except (TimeoutError, Broken, Denied):
        return None
