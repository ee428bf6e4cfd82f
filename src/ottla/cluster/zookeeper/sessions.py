"""What a client holds in ZooKeeper: a presence, or a role."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ottla.cluster.store import Check, Loss, epoch_key, holder_key

Release = Callable[["ZooKeeperSession"], Awaitable[None]]


class ZooKeeperSession:
    """An ephemeral key of ours."""

    def __init__(self, key: str, release: Release) -> None:
        self._release = release
        self.key = key
        self.lost = Loss()
        self.born: int | None = None
        """The transaction that created the key; None before."""

    async def release(self) -> None:
        await self._release(self)


class ZooKeeperTerm(ZooKeeperSession):
    """A role held: the session of its holder key, with the epoch that was won."""

    def __init__(self, role: str, version: int, release: Release) -> None:
        """The term whose epoch key is at `version`."""
        super().__init__(holder_key(role), release)
        self.epoch = version + 1
        self.fence = Check(epoch_key(role), version)
