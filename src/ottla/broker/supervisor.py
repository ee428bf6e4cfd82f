"""Supervisor: holds the metadata of a cluster on one machine, and keeps its brokers running.

It serves no clients. The metadata is in its data folder (`EmbeddedStore`) and is lent to the
brokers over a Unix socket (`cluster.lender`). When the store fails (the disk refused a write) it is
opened anew, after a pause; brokers meanwhile go on with what they know.

The brokers are processes of their own (`members`), and survive even kill -9 of the supervisor: the
next one on the same folder lends the metadata again, to which they come back by themselves, and
watches them further.

Where a ZooKeeper is wanted instead, it runs that as one more process, and lends nothing.

While it runs it can be asked for one more broker (`control`), which stays one of its brokers: they
are noted in the folder, and the next supervisor starts them all.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Protocol

from ottla.broker.cluster_folder import ClusterFolder, Seat, in_order
from ottla.broker.control import Added, Control
from ottla.broker.members import Member, MemberPlan, NotStarted
from ottla.broker.metadata_home import partition_folders
from ottla.broker.start_failed import StartFailed
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.lender import Lender
from ottla.cluster.registry import Registry
from ottla.cluster.store import StoreError
from ottla.runtime.files import FileSystem, OsFileSystem
from ottla.runtime.pid_file import hold, holder, release
from ottla.storage.checkpoints import CheckpointError, read_meta_properties

logger = logging.getLogger(__name__)

SHOWN = 3
REOPEN_PAUSE = 1.0
JOIN_SECONDS = 15.0
LOOK_SECONDS = 0.05


class Growth(Protocol):
    """What one more broker would be."""

    def seat(self, known: Sequence[Seat], broker: int | None, port: int | None) -> Seat:
        """The broker with this id and port, or with the next ones. Raises StartFailed."""

    def address(self, seat: Seat) -> str: ...

    def plan(self, seat: Seat) -> MemberPlan: ...


class Supervisor:
    """`await start()`, `await wait_failed()`, `await stop()`."""

    def __init__(
        self,
        folder: ClusterFolder,
        plans: Sequence[MemberPlan],
        *,
        zookeeper: MemberPlan | None = None,
        fs: FileSystem | None = None,
        seats: Sequence[Seat],
        growth: Growth,
    ) -> None:
        self._folder = folder
        self._seats = list(seats)
        self._growth = growth
        self._adding = asyncio.Lock()
        self.renewal = asyncio.Event()
        """Somebody asks this process to begin anew, with the program that is on the disk by now."""
        self._fs = fs or OsFileSystem()
        self._members = [Member(plan) for plan in plans]
        self._zookeeper = None if zookeeper is None else Member(zookeeper)
        self._running = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._broken: asyncio.Future[None]

    async def start(self) -> None:
        """Returns when all brokers serve clients; on failure what was started is stopped again.

        Raises StartFailed.
        """
        self._check_addresses()
        self._folder.prepare(self._fs, lent=self._zookeeper is None)
        try:
            held = hold(self._folder.supervisor)
        except BlockingIOError:
            raise StartFailed(self._in_use()) from None
        async with AsyncExitStack() as stack:
            stack.callback(release, self._folder.supervisor, held)
            kept = [member.keep for member in self._members]
            if self._zookeeper is None:
                lent = Lent(self._fs, self._folder)
                await lent.open(self._check)
                stack.push_async_callback(lent.close)
                kept.append(lent.keep)
            else:
                self._check_folders()
                stack.push_async_callback(self._stop_zookeeper)
                await self._started([self._zookeeper])
                kept.append(self._zookeeper.keep)
            await self._stop_others()
            stack.push_async_callback(self._stop_members)
            await self._start_members()
            if self._zookeeper is None:
                await lent.wait_joined({each.id for each in self._members if each.pid is not None})
            control = Control(self._folder.control, self.add, self.renewal.set)
            try:
                self._folder.note_seats(self._fs, self._seats)
                await control.start()
            except OSError as error:
                raise StartFailed(f"{self._folder.home} cannot be written to: {error}") from None
            stack.push_async_callback(control.stop)
            self._running = stack.pop_all()
        self._broken = asyncio.get_running_loop().create_future()
        for keep in kept:
            self._keep(keep())

    async def wait_failed(self) -> None:
        """Returns never; raises what nobody expected."""
        await self._broken

    async def add(self, broker: int | None, port: int | None) -> Added:
        """Run one more broker, with this id and port or the next ones; returns when it serves
        clients. Raises StartFailed, and then everything is as it was."""
        async with self._adding:
            seat = self._growth.seat(self._seats, broker, port)
            data = self._folder.data(seat.broker)
            made = [each for each in data if not self._fs.exists(each)]
            member = Member(self._growth.plan(seat))
            self._check_newcomer(seat, member)
            # Noted first: should this process be killed now, the next one knows of the broker.
            seats = [*self._seats, seat]
            self._members.append(member)  # from now on a signal to stop ends it too
            try:
                self._folder.note_seats(self._fs, seats)
                await self._started([member])
            except (OSError, StartFailed) as error:
                self._members.remove(member)
                self._folder.note_seats(self._fs, self._seats)
                for each in filter(self._fs.exists, made):
                    if not partition_folders(self._fs, each):  # else it was a replica's for a while
                        shutil.rmtree(each, ignore_errors=True)
                raise StartFailed(str(error)) from None
            self._seats = seats
            self._keep(member.keep())
            logger.info("broker %d was added", seat.broker)
            return Added(seat.broker, self._growth.address(seat), data)

    async def stop(self) -> None:
        """One broker after the other, so that each can hand over what it leads; then the store."""
        await self._running.aclose()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def leave(self) -> None:
        """Let the brokers run on, and give everything else back, for the next supervisor."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._members.clear()
        self._zookeeper = None
        await self._running.aclose()

    def kill(self) -> None:
        """End all brokers at once, without waiting."""
        for member in self._members:
            member.kill()
        if self._zookeeper is not None:
            self._zookeeper.kill()

    # --- inside -----------------------------------------------------------------------------------

    def _keep(self, keeping: Coroutine[None, None, None]) -> None:
        """Keep something running from now on."""
        task = asyncio.ensure_future(keeping)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._broken.done():
            self._broken.set_exception(error)

    def _check_addresses(self) -> None:
        """Refuse taken ports before anything is made or started."""
        if holder(self._folder.supervisor) is not None:
            raise StartFailed(self._in_use())
        every = self._members if self._zookeeper is None else [self._zookeeper, *self._members]
        taken = [why for member in every if (why := member.check_free()) is not None]
        if taken:
            raise StartFailed("\n  ".join(taken))

    def _check_newcomer(self, seat: Seat, member: Member) -> None:
        """Refuse an id or port that is taken, and folders of somebody else."""
        if any(each.id == seat.broker for each in self._members):
            raise StartFailed(f"broker {seat.broker} is there already: choose another id")
        if (process := holder(self._folder.process(seat.broker))) is not None:
            raise StartFailed(f"broker {seat.broker} still runs, as process {process}: end it")
        why = member.check_free()
        if why is not None:
            raise StartFailed(why)
        ours = self._cluster_ids(each.broker for each in self._seats)
        for folder in filter(self._fs.exists, self._folder.data(seat.broker)):
            try:
                meta = read_meta_properties(self._fs, folder)
            except (CheckpointError, OSError) as error:
                raise StartFailed(f"{folder} cannot be used: {error}") from None
            if meta is None and self._fs.listdir(folder):
                raise StartFailed(f"{folder} is no broker's folder, and not empty: move it away")
            if meta is not None and (
                meta.node_id not in (None, seat.broker) or meta.cluster_id not in ours
            ):
                raise StartFailed(
                    f"{folder} belongs to broker {meta.node_id} of cluster {meta.cluster_id}: "
                    "choose another id, or move it away"
                )

    def _cluster_ids(self, brokers: Iterable[int]) -> set[str | None]:
        """The cluster that the data of these brokers is of."""
        folders = (each for broker in brokers for each in self._folder.data(broker))
        metas = (read_meta_properties(self._fs, each) for each in filter(self._fs.exists, folders))
        return {None, *(meta.cluster_id for meta in metas if meta is not None)}

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
        for broker in set(self._folder.brokers()) - wanted:
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
        known = [seat.broker for seat in in_order(self._folder.seats(self._fs))]
        known += sorted({*wanted, *held, *self._folder.brokers()} - {*known})
        needed = 1 + max(map(known.index, held))
        commands = " and ".join(f"`ottla cluster drain {each} --yes`" for each in sorted(held))
        those = "1 broker is" if len(wanted) == 1 else f"{len(wanted)} brokers are"
        raise StartFailed(
            f"{those} fewer than before, but {' and '.join(parts)}: start {needed}, and have "
            f"{commands} move them to the others first"
        )

    async def _stop_others(self) -> None:
        """Brokers that an earlier supervisor has left, and that are not wanted any more."""
        wanted = {member.id for member in self._members}
        for broker in sorted({seat.broker for seat in self._folder.seats(self._fs)} - wanted):
            logger.warning("broker %d was there before, and is left out now", broker)
        for broker in set(self._folder.brokers()) - wanted:
            left = Member(MemberPlan(broker, (), self._folder.process(broker)))
            if holder(self._folder.process(broker)) is not None:
                await left.start()
                await left.stop()

    async def _start_members(self) -> None:
        """All of them; StartFailed when one does not start. Where an earlier supervisor has left
        some that serve clients, these are not stopped for that: the other one is tried again."""
        if all(member.check_running() is None for member in self._members):
            await self._started(self._members)
            return
        starting = (member.start() for member in self._members)
        for outcome in await asyncio.gather(*starting, return_exceptions=True):
            if isinstance(outcome, NotStarted):
                logger.error("%s", outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

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

    async def _stop_zookeeper(self) -> None:
        if self._zookeeper is not None:
            await self._zookeeper.stop()

    async def _stop_members(self) -> None:
        for member in self._members[::-1]:
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
