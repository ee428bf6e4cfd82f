"""`ottla metadata export` and `import` for a cluster whose metadata is in a ZooKeeper."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import click

from ottla.cli.output import Column, show_json, show_table
from ottla.cluster import backup as backups
from ottla.cluster import layout
from ottla.cluster.hand_over import bring_back as write_back
from ottla.cluster.journal import Contents
from ottla.cluster.restore import lasting, renewed
from ottla.cluster.store import Entry, StoreError
from ottla.cluster.zookeeper.address import BadAddress, access_of, parse_address
from ottla.cluster.zookeeper.store import NoStore, ZooKeeperStore
from ottla.model.ids import topic_id_text
from ottla.runtime.files import OsFileSystem
from ottla.runtime.loop import run

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig

T = TypeVar("T")

NOTE = (
    "what came after the backup is not known: topics, settings. Start the brokers afterwards; "
    "partitions wait for all of their replicas"
)


def export(config: BrokerConfig, file: str) -> None:
    """Write what is in ZooKeeper to a file."""

    async def read(store: ZooKeeperStore) -> Contents:
        found = await store.read("")
        return Contents(dict(found.entries), found.revision)

    try:
        contents = with_store(config, read, create=False)
    except NoStore:
        contents = Contents()
    if layout.HAND_OVER in contents.entries:
        raise click.ClickException(
            f"{config.zookeeper_connect} holds only a part of a cluster's metadata: an import, or "
            "the start of a broker that was alone, has not ended. Do that again; nothing was "
            "written"
        )
    contents = Contents(lasting(contents.entries), contents.revision)
    if layout.CLUSTER not in contents.entries:
        raise click.ClickException(
            f"{config.zookeeper_connect} holds no cluster: nothing to export"
        )
    cluster = layout.decode_cluster(contents.entries[layout.CLUSTER].value)
    text = backups.dump(backups.Backup(cluster, None, contents))
    if file == "-":
        click.echo(text, nl=False)
        return
    try:
        OsFileSystem().write_atomic(os.path.abspath(file), text.encode())
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror or error}") from None
    click.echo(f"wrote {len(contents.entries):,} entries of {config.zookeeper_connect} to {file}")


def bring_back(
    config: BrokerConfig, file: str, backup: backups.Backup, *, accept: bool, as_json: bool
) -> None:
    """Write a backup into an empty ZooKeeper, or show what would be written."""
    entries = renewed(backup.contents.entries, int(time.time() * 1000))
    if layout.CLUSTER not in entries:
        raise click.ClickException(f"{file} names no cluster: it cannot be brought back")
    where = config.zookeeper_connect or ""
    patience = 2 * config.zookeeper_session_timeout_ms / 1000

    async def look(store: ZooKeeperStore) -> None:
        found = await store.read("")
        if found.entries and layout.HAND_OVER not in found.entries:
            raise StoreError("it is not empty: only an empty one can be written to")

    async def write(store: ZooKeeperStore) -> None:
        await write_back(entries, store, where, patience=patience)

    if accept:
        with_store(config, write, create=True)
    else:
        with suppress(NoStore):  # nothing at all is as empty as can be
            with_store(config, look, create=False)
    if as_json:
        show_json(_document(entries, where, done=accept))
        return
    _show(entries, where)
    click.echo(f"note: {NOTE}")
    click.echo("done" if accept else "nothing was changed; do it with --yes")


def with_store(
    config: BrokerConfig, work: Callable[[ZooKeeperStore], Awaitable[T]], *, create: bool
) -> T:
    """Connect and do something; what is wrong becomes one line."""

    async def connected() -> T:
        store = await ZooKeeperStore.open(
            parse_address(config.zookeeper_connect or ""),
            access_of(config.static, "the settings"),
            create=create,
            session_timeout=config.zookeeper_session_timeout_ms / 1000,
            connect_timeout=config.zookeeper_connection_timeout_ms / 1000,
        )
        try:
            return await work(store)
        finally:
            await store.close()

    try:
        return run(connected())
    except NoStore:
        raise
    except (StoreError, BadAddress) as error:
        raise click.ClickException(
            f"zookeeper.connect={config.zookeeper_connect}: {error}"
        ) from None


def _topics(entries: Mapping[str, Entry]) -> list[tuple[str, layout.TopicEntry, int, int]]:
    """Name, id and settings, number of partitions, highest leader epoch."""
    found = []
    for key, entry in sorted(entries.items()):
        name = layout.parse_topic_key(key)
        if name is None:
            continue
        topic = layout.decode_topic(key, entry.value)
        epochs: list[int] = []
        chunk = 0
        while (states := entries.get(layout.partitions_key(topic.id, chunk))) is not None:
            decoded = layout.decode_partitions(key, states.value)
            epochs += [state.leader_epoch for state in decoded]
            chunk += 1
        found.append((name, topic, len(epochs), max(epochs, default=0)))
    return found


def _document(entries: Mapping[str, Entry], where: str, *, done: bool) -> dict[str, object]:
    """As of `ottla metadata rescue`."""
    return {
        "done": done,
        "metadata": where,
        "replaces": None,
        "cluster_id": layout.decode_cluster(entries[layout.CLUSTER].value),
        "node_id": None,
        "next_producer_id": _next_producer_id(entries),
        "topics": [
            {
                "name": name,
                "id": topic_id_text(topic.id),
                "partitions": partitions,
                "empty_partitions": [],
                "leader_epoch": epoch,
                "config": dict(topic.config),
                "origin": "the backup",
            }
            for name, topic, partitions, epoch in _topics(entries)
        ],
        "conflicts": [],
        "notes": [NOTE],
    }


def _show(entries: Mapping[str, Entry], where: str) -> None:
    click.echo(f"metadata          {where}")
    click.echo(f"cluster           {layout.decode_cluster(entries[layout.CLUSTER].value)}")
    click.echo(f"next producer id  {_next_producer_id(entries)}")
    show_table(
        [
            Column("TOPIC"),
            Column("ID"),
            Column("PARTITIONS", True),
            Column("EPOCH", True, is_name=True),
        ],
        [
            (name, topic_id_text(topic.id), partitions, epoch)
            for name, topic, partitions, epoch in _topics(entries)
        ],
    )


def _next_producer_id(entries: Mapping[str, Entry]) -> int:
    return layout.decode_counter(layout.PRODUCER_IDS, entries[layout.PRODUCER_IDS].value)
