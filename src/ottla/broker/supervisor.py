"""Supervisor: holds the metadata of a cluster on one machine, and keeps its brokers running.

It serves no clients. The metadata is in its data folder (`EmbeddedStore`) and is lent to the
brokers over a Unix socket (`cluster.lender`). When the store fails (the disk refused a write) it is
opened anew, after a pause; brokers meanwhile go on with what they know.

The brokers are processes of their own (`members`), and survive even kill -9 of the supervisor: the
next one on the same folder lends the metadata again, to which they come back by themselves, and
watches them further.

Where a ZooKeeper is wanted instead, it runs that as one more process, and lends nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from ottla.broker.cluster_folder import ClusterFolder
from ottla.broker.members import Member, MemberPlan, NotStarted
from ottla.broker.metadata_home import partition_folders
from ottla.broker.start_failed import StartFailed
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.lender import Lender
from ottla.cluster.registry import Registry
from ottla.cluster.store import StoreError
from ottla.runtime.files import FileSystem, OsFileSystem
from ottla.runtime.pid_file import hold, holder

logger = logging.getLogger(__name__)

SHOWN = 3
REOPEN_PAUSE = 1.0
JOIN_SECONDS = 15.0
LOOK_SECONDS = 0.05


class Supervisor:
    """`await start()`, `await wait_failed()`, `await stop()`."""

    def __init__(
        self,
        folder: ClusterFolder,
        plans: Sequence[MemberPlan],
        *,
        zookeeper: MemberPlan | None = None,
        fs: FileSystem | None = None,
    ) -> None:
        self._folder = folder
        self._fs = fs or OsFileSystem()
        self._members = [Member(plan) for plan in plans]
        self._zookeeper = None if zookeeper is None else Member(zookeeper)
        self._running = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Returns when all brokers serve clients; on failure what was started is stopped again.

        Raises StartFailed.
        """
        self._check_addresses()
        self._folder.prepare(self._fs, lent=self._zookeeper is None)
        try:
            hold(self._folder.supervisor)
        except BlockingIOError:
            raise StartFailed(self._in_use()) from None
        async with AsyncExitStack() as stack:
            kept = [member.keep for member in self._members]
            if self._zookeeper is None:
                lent = Lent(self._fs, self._folder)
                await lent.open(self._check)
                stack.push_async_callback(lent.close)
                kept.append(lent.keep)
            else:
                self._check_folders()
                stack.push_async_callback(self._zookeeper.stop)
                await self._started([self._zookeeper])
                kept.append(self._zookeeper.keep)
            await self._stop_others()
            stack.push_async_callback(self._stop_members)
            await self._started(self._members)
            if self._zookeeper is None:
                await lent.wait_joined({member.id for member in self._members})
            self._running = stack.pop_all()
        self._tasks = [asyncio.ensure_future(keep()) for keep in kept]

    async def wait_failed(self) -> None:
        """Returns never; raises what nobody expected."""
        await asyncio.gather(*self._tasks)

    async def stop(self) -> None:
        """One broker after the other, so that each can hand over what it leads; then the store."""
        await self._running.aclose()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def kill(self) -> None:
        """End all brokers at once, without waiting."""
        for member in self._members:
            member.kill()
        if self._zookeeper is not None:
            self._zookeeper.kill()

    # --- inside -----------------------------------------------------------------------------------

    def _check_addresses(self) -> None:
        """Refuse taken ports before anything is made or started."""
        if holder(self._folder.supervisor) is not None:
            raise StartFailed(self._in_use())
        every = self._members if self._zookeeper is None else [self._zookeeper, *self._members]
        taken = [why for member in every if (why := member.check_free()) is not None]
        if taken:
            raise StartFailed("\n  ".join(taken))

    def _in_use(self) -> str:
        process = holder(self._folder.supervisor)
        who = "another process" if process is None else f"process {process}"
        return (
            f"the cluster in {self._folder.home} is already run by {who}: "
            "stop that first, or name another folder with --data-dir"
        )

    def _check(self, registry: Registry) -> None:
        """Refuse to leave out brokers that have partitions."""
        wanted = {member.id for member in self._members}
        held: dict[int, list[str]] = {}
        for topic in registry.image.topics.values():
            for number, state in enumerate(topic.partitions):
                for broker in set(state.replicas) - wanted:
                    held.setdefault(broker, []).append(f"{topic.name}-{number}")
        self._refuse(held)

    def _check_folders(self) -> None:
        """The same, where the metadata is not ours to read: by what is on the disks."""
        wanted = {member.id for member in self._members}
        held: dict[int, list[str]] = {}
        for broker in set(self._folder.processes()) - wanted:
            for data in filter(self._fs.is_dir, self._folder.data(broker)):
                held.setdefault(broker, []).extend(partition_folders(self._fs, data))
        self._refuse({broker: found for broker, found in held.items() if found})

    def _refuse(self, held: dict[int, list[str]]) -> None:
        if not held:
            return
        wanted = {member.id for member in self._members}
        parts = []
        for broker, partitions in sorted(held.items()):
            more = ", …" if len(partitions) > SHOWN else ""
            # Those of the broker's own topics, which people do not know, come last.
            shown = ", ".join(sorted(partitions, key=lambda name: (name[:2] == "__", name))[:SHOWN])
            noun = "partition" if len(partitions) == 1 else "partitions"
            parts.append(f"broker {broker} has {len(partitions)} {noun} ({shown}{more})")
        highest = max(held) - min(wanted) + 1
        those = "1 broker is" if len(wanted) == 1 else f"{len(wanted)} brokers are"
        raise StartFailed(
            f"{those} fewer than before, but {' and '.join(parts)}: start {highest}, or delete "
            "those topics first"
        )

    async def _stop_others(self) -> None:
        """Brokers that an earlier supervisor has left, and that are not wanted any more."""
        wanted = {member.id for member in self._members}
        for broker in set(self._folder.processes()) - wanted:
            left = Member(MemberPlan(broker, (), self._folder.process(broker)))
            if holder(self._folder.process(broker)) is not None:
                await left.start()
                await left.stop()

    async def _started(self, members: Sequence[Member]) -> None:
        """Start members, all at once; StartFailed when one does not."""
        starting = [asyncio.ensure_future(member.start()) for member in members]
        try:
            await asyncio.gather(*starting)
        except NotStarted as error:
            raise StartFailed(str(error)) from None
        finally:
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)

    async def _stop_members(self) -> None:
        for member in reversed(self._members):
            await member.stop()


class Lent:
    """The store and its lender. `await open(check)`, `await keep()`, `await close()`."""

    def __init__(self, fs: FileSystem, folder: ClusterFolder) -> None:
        self._fs = fs
        self._folder = folder
        self._store: EmbeddedStore
        self._lender: Lender

    async def open(self, check: Callable[[Registry], None]) -> None:
        """Lend from now on. Raises StartFailed."""
        path = self._folder.store
        try:
            self._store = await EmbeddedStore.open(self._fs, path)
        except BlockingIOError:
            raise StartFailed(f"the metadata in {path} is in use by another process") from None
        except (OSError, StoreError) as error:
            raise StartFailed(f"the metadata in {path} cannot be opened: {error}") from None
        try:
            registry = Registry(self._store)
            await registry.load()
            check(registry)
            self._lender = Lender(self._store, self._folder.socket)
            await self._lender.start()
        except BaseException as error:
            await self._store.close()
            if isinstance(error, (OSError, StoreError)):
                raise StartFailed(f"the metadata in {path} cannot be lent: {error}") from None
            raise

    async def wait_joined(self, brokers: set[int]) -> None:
        """Wait until these brokers are in the cluster. One that an earlier supervisor has left
        comes back by itself, if it is not stuck, for which nobody has to wait."""
        registry = Registry(self._store)
        try:
            async with asyncio.timeout(JOIN_SECONDS):
                while not brokers <= set((await registry.load()).brokers):
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            missing = ", ".join(map(str, sorted(brokers - set(registry.image.brokers))))
            logger.warning("not in the cluster yet: %s", missing)
        except StoreError:
            pass  # which `keep` deals with

    async def keep(self) -> None:
        """Open the store again whenever it has failed, until `close`."""
        while True:
            try:
                async for _ in self._store.watch(""):
                    pass
                return
            except StoreError as error:
                logger.error("the metadata store has failed and is opened anew: %s", error)
            await self.close()
            while True:
                await asyncio.sleep(REOPEN_PAUSE)
                try:
                    await self.open(lambda registry: None)
                    break
                except StartFailed as failure:
                    logger.error("%s", failure)

    async def close(self) -> None:
        await self._lender.stop()
        await self._store.close()
