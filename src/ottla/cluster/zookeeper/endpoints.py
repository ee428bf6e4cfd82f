"""Where the brokers of a cluster listen, for those who know only its ZooKeeper.

Reads the registrations and nothing else, so it costs the same in a cluster of any size. Where every
server refuses the connection, it says so at once: a person waits for the answer.
"""

from __future__ import annotations

import asyncio
import socket

from ottla.cluster import layout
from ottla.cluster.zookeeper.address import Access, Address, tls_context
from ottla.cluster.zookeeper.connection import Broken, Connection, Denied, NoNode, connected
from ottla.cluster.zookeeper.nodes import decode_data
from ottla.model.broker import Broker

SESSION_SECONDS = 10.0


class NoBrokers(Exception):
    """ZooKeeper cannot be asked, or knows of no broker; the text says which."""


async def live_brokers(
    address: Address, access: Access | None = None, *, timeout: float = 10.0
) -> list[Broker]:
    """The brokers that are registered now, by id; at least one. Raises NoBrokers."""
    await _check_reachable(address, timeout)
    access = access or Access()
    tls = None if access.tls is None else await asyncio.to_thread(tls_context, access.tls)
    try:
        async with connected(address, access, tls, SESSION_SECONDS, timeout) as connection:
            brokers = await _read(connection)
    except TimeoutError:
        raise NoBrokers(
            f"no ZooKeeper answers at {address.hosts} within {timeout:g} s: is it running, and is "
            "the address right?"
        ) from None
    except (Broken, Denied) as error:
        raise NoBrokers(f"ZooKeeper at {address}: {error}") from None
    if not brokers:
        raise NoBrokers(
            f"no broker is registered in ZooKeeper at {address}: does one run, with this address "
            "as its zookeeper.connect?"
        )
    return brokers


async def _check_reachable(address: Address, timeout: float) -> None:
    """Raise NoBrokers when no server can be connected to, and none can be hoped for."""
    why = ""
    for host, port in address.servers:
        place = (host.strip("[]"), port)
        try:
            sock = await asyncio.to_thread(socket.create_connection, place, timeout)
        except TimeoutError:
            return  # it may be slow; kazoo tries again
        except OSError as error:
            why = why or error.strerror or str(error)
        else:
            sock.close()
            return
    raise NoBrokers(
        f"no ZooKeeper answers at {address.hosts} ({why}): is it running, and is the address right?"
    )


async def _read(connection: Connection) -> list[Broker]:
    try:
        names = await connection.children(layout.REGISTRATIONS)
    except NoNode:
        return []
    found = []
    for name in sorted(names, key=lambda name: (len(name), name)):
        key = f"{layout.REGISTRATIONS}/{name}"
        try:
            data, _ = await connection.get(key)
        except NoNode:
            continue  # it has just gone
        value, _ = decode_data(data)
        if value is not None:
            found.append(layout.decode_broker(key, value))
    return found
