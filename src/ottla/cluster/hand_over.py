"""One broker's metadata, carried from its own store into one that a cluster shares. Once.
A backup of a cluster that has lost its store is brought back in the same way (`bring_back`).

    1. claim   in an empty store: the cluster's id and `hand_over/state` in one commit, with
               the ephemeral `hand_over/holder`; where somebody began and was interrupted, a newer
               version of the state
    2. copy    every key that is not there yet; each commit checks that the claim still stands
    3. mark    `handed_over` in the broker's own store, which opens for nothing else from then on
    4. end     `hand_over/state` is deleted

Whoever is killed in between begins again and goes on where it was. While the state is there no
broker joins the cluster, so what was copied cannot have changed. Of two at once the second waits
for the first, and is then refused: its own store is not marked, and the other one is not empty.

What belongs to one store is not carried over: who is there, and the terms of controllers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from ottla.cluster import layout
from ottla.cluster.store import (
    Check,
    Conflict,
    Create,
    Delete,
    Entry,
    MetadataStore,
    Op,
    Session,
    Set,
    StoreError,
    covers,
)

BATCH_BYTES = 200_000
BATCH_KEYS = 500
_OF_ONE_STORE = (layout.CONTROLLER, layout.REGISTRATIONS, layout.CLUSTER, layout.HANDED_OVER)


class HandOverRefused(StoreError):
    """The metadata cannot go there; the text says why. Nothing was changed in either store."""


async def is_founder(source: MetadataStore) -> bool:
    """Whether a store holds a cluster's metadata that was not handed over yet."""
    entries = (await source.read("")).entries
    return layout.CLUSTER in entries and layout.HANDED_OVER not in entries


async def hand_over(
    source: MetadataStore, target: MetadataStore, where: str, *, patience: float
) -> int:
    """Carry everything over to `target`, which people know as `where`; returns how many keys.

    Nothing, when that was done before. Waits for `patience` seconds for somebody else who does the
    same. Raises HandOverRefused, StoreError.
    """
    entries = (await source.read("")).entries
    if layout.CLUSTER not in entries:
        return 0
    claimed = await _claim(entries, target, where, patience)
    if claimed is None:
        return 0
    session, claim = claimed
    try:
        copied = await _copy(entries, target, claim)
        if layout.HANDED_OVER not in entries:
            await source.commit(Create(layout.HANDED_OVER, layout.encode_hand_over(where)))
        await target.commit(Delete(claim.key, claim.version))
        return copied
    except Conflict as error:
        raise HandOverRefused(f"somebody else has taken the hand-over up: {error}") from None
    finally:
        await session.release()


async def bring_back(
    entries: Mapping[str, Entry], target: MetadataStore, where: str, *, patience: float
) -> int:
    """Write what a backup holds (`cluster.restore`) into an empty `target`; returns how many keys.
    May be called again after an interruption. Raises HandOverRefused, StoreError.
    """
    found = (await target.read("")).entries
    if found and layout.HAND_OVER not in found:
        raise HandOverRefused(f"{where} is not empty: {_whose(found)} is there")
    claimed = await _claim(entries, target, where, patience)
    assert claimed is not None
    session, claim = claimed
    try:
        await _remove(target, claim)  # what an attempt before this one has written
        copied = await _copy(entries, target, claim)
        await target.commit(Delete(claim.key, claim.version))
        return copied
    except Conflict as error:
        raise HandOverRefused(f"somebody else does the same: {error}") from None
    finally:
        await session.release()


async def _claim(
    entries: Mapping[str, Entry], target: MetadataStore, where: str, patience: float
) -> tuple[Session, Check] | None:
    """The right to write; None when all is done."""
    cluster = entries[layout.CLUSTER]
    value = layout.encode_hand_over(where)
    deadline = asyncio.get_running_loop().time() + patience
    while True:
        found = (await target.read("")).entries
        begun = found.get(layout.HAND_OVER)
        if begun is None and layout.HANDED_OVER in entries:
            return None
        if found and (begun is None or found[layout.CLUSTER].value != cluster.value):
            raise _not_empty(found, cluster)
        ops: tuple[Op, ...]
        if begun is None:
            claim = Check(layout.HAND_OVER, 0)
            ops = (Create(layout.CLUSTER, cluster.value), Create(layout.HAND_OVER, value))
        else:
            claim = Check(layout.HAND_OVER, begun.version + 1)
            ops = (Set(layout.HAND_OVER, value, begun.version),)
        try:
            return await target.join(layout.HAND_OVER_HOLDER, value, *ops), claim
        except Conflict:
            await _wait_released(target, deadline)


async def _wait_released(target: MetadataStore, deadline: float) -> None:
    """Until nobody is at it: done, or dead."""
    try:
        async with asyncio.timeout_at(deadline):
            async for _ in target.watch(layout.HAND_OVER_HOLDER):
                if not (await target.read(layout.HAND_OVER_HOLDER)).entries:
                    return
    except TimeoutError:
        raise HandOverRefused(
            "another broker is handing its metadata over to it; start again when that is done"
        ) from None


async def _remove(target: MetadataStore, claim: Check) -> None:
    claims = (layout.CLUSTER, layout.HAND_OVER, layout.HAND_OVER_HOLDER)
    for key, entry in (await target.read("")).entries.items():
        if key not in claims:
            await target.commit(claim, Delete(key, entry.version))


async def _copy(entries: Mapping[str, Entry], target: MetadataStore, claim: Check) -> int:
    found = (await target.read("")).entries
    missing: dict[str, bytes] = {}
    for key, entry in entries.items():
        if any(covers(prefix, key) for prefix in _OF_ONE_STORE):
            continue
        if key not in found:
            missing[key] = entry.value
        elif found[key].value != entry.value:
            raise HandOverRefused(
                f"a hand-over was begun there from another copy of this metadata ({key} differs)"
            )
    for batch in _batches(missing):
        await target.commit(claim, *batch)
    return len(missing)


def _batches(missing: Mapping[str, bytes]) -> Iterator[list[Op]]:
    batch: list[Op] = []
    size = 0
    for key, value in missing.items():
        if batch and (size + len(key) + len(value) > BATCH_BYTES or len(batch) == BATCH_KEYS):
            yield batch
            batch, size = [], 0
        batch.append(Create(key, value))
        size += len(key) + len(value)
    if batch:
        yield batch


def _not_empty(found: Mapping[str, Entry], cluster: Entry) -> HandOverRefused:
    ours = layout.decode_cluster(cluster.value)
    holds = _whose(found)
    if holds == f"cluster {ours}":
        return HandOverRefused(
            f"cluster {ours} is there already, and the metadata in these data folders was never "
            "handed over to it: they are a copy of others. Only one of them can be the broker"
        )
    return HandOverRefused(
        f"it holds {holds}, and the data folders have metadata of cluster {ours}, which can be "
        "handed over to an empty chroot only"
    )


def _whose(found: Mapping[str, Entry]) -> str:
    if layout.CLUSTER not in found:
        return "other metadata"
    return f"cluster {layout.decode_cluster(found[layout.CLUSTER].value)}"
