"""The metadata store inside the broker: a dictionary in memory, a journal on disk.

For one broker, or for many brokers in one test process that share one `EmbeddedStore`.

All changes pass through one queue. `_drain` takes everything that waits, judges each commit in
order against the state as the ones before it left it, writes the changes of the survivors as one
journal frame, syncs it in a thread, and only then makes them visible and answers. So commits that
arrive during a sync share the next one; nothing is visible that is not durable; and a `Conflict`
is reported only when the state that caused it can be read. Presence and roles go through the
same queue, which is why a role changes hands atomically with its epoch. Ephemeral keys are
never written to disk.

When the disk does not confirm a write, the store fails for good: every waiter gets `Unavailable`,
every session and term is lost, and only a restart, which re-reads the disk, tells what survived. A
full disk is milder: the write is undone, its commits fail, and later ones may succeed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ottla.cluster import journal as disk
from ottla.cluster.store import (
    Check,
    Conflict,
    Create,
    Delete,
    Entry,
    Loss,
    Op,
    Revision,
    Set,
    Snapshot,
    StoreClosed,
    StoreError,
    StoreFailed,
    Unavailable,
    check_ops,
    covers,
    epoch_key,
    holder_key,
    why_not,
)
from ottla.runtime.files import FileSystem, Lock

logger = logging.getLogger(__name__)

JOURNAL_LIMIT = 1 << 20
"""Bytes after which the journal is replaced by a snapshot; replaying this much takes some 20 ms."""


class EmbeddedSession:
    """A presence in an `EmbeddedStore`."""

    __slots__ = ("_store", "key", "lost")

    def __init__(self, store: EmbeddedStore, key: str) -> None:
        self._store = store
        self.key = key
        self.lost = Loss()

    async def release(self) -> None:
        await self._store._leave(self)


class EmbeddedTerm(EmbeddedSession):
    """A role held: the session of its holder key, with the epoch that was won."""

    __slots__ = ("epoch", "fence")

    def __init__(self, store: EmbeddedStore, role: str) -> None:
        super().__init__(store, holder_key(role))
        self.begin(role, 0)

    def begin(self, role: str, version: int) -> None:
        """The term whose epoch key is at `version`."""
        self.epoch = version + 1
        self.fence = Check(epoch_key(role), version)


@dataclass(slots=True, eq=False)
class _Request:
    """One waiting change: a commit, or somebody joining, leaving or standing for a role."""

    done: asyncio.Future[Revision]
    ops: tuple[Op, ...] = ()
    joining: EmbeddedSession | None = None
    leaving: EmbeddedSession | None = None
    role: str | None = None
    value: bytes = b""


@dataclass(slots=True)
class _Batch:
    """The state that a batch of requests would produce: only what differs from the visible one."""

    revision: int
    entries: dict[str, Entry | None] = field(default_factory=dict)
    owners: dict[str, EmbeddedSession | None] = field(default_factory=dict)
    accepted: list[tuple[_Request, int]] = field(default_factory=list)
    refused: list[tuple[_Request, Conflict]] = field(default_factory=list)


class EmbeddedStore:
    """A `MetadataStore` in one process and one folder."""

    session_seconds = math.inf

    def __init__(
        self, journal: disk.Journal, contents: disk.Contents, lock: Lock, journal_limit: int
    ) -> None:
        # On disk.
        self._journal = journal
        self._lock = lock
        self._journal_limit = journal_limit
        self._rotate_at = journal_limit
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ottla-metadata")
        # Visible.
        self._entries = contents.entries
        self._owners: dict[str, EmbeddedSession] = {}
        self._revision = contents.revision
        self._everything: Snapshot | None = None
        # Under way.
        self._queue: list[_Request] = []
        self._lines: dict[str, deque[_Request]] = {}  # who waits for which role
        self._drainer: asyncio.Task[None] | None = None
        self._watches: weakref.WeakSet[_Watch] = weakref.WeakSet()
        # How it ended.
        self._ended: Callable[[], StoreError] | None = None
        self._let_go = False

    @staticmethod
    def exists(files: FileSystem, folder: str) -> bool:
        """Whether `open` would find a store there (otherwise it makes one)."""
        return disk.exists(files, folder)

    @classmethod
    async def open(
        cls,
        files: FileSystem,
        folder: str,
        *,
        initial: Mapping[str, bytes] | None = None,
        journal_limit: int = JOURNAL_LIMIT,
    ) -> EmbeddedStore:
        """Open the store in `folder`, or create it there with `initial` as its contents.

        Raises `BlockingIOError` when another process has it open, `DamagedStore` when a file is not
        what was written to it, OSError when the disk says no.
        """

        def load() -> tuple[disk.Journal, disk.Contents, Lock]:
            files.makedirs(folder)
            lock = files.lock(os.path.join(folder, ".lock"))
            try:
                if not disk.exists(files, folder):
                    disk.create(files, folder, initial or {})
                return *disk.recover(files, folder), lock
            except BaseException:
                lock.release()
                raise

        return cls(*await asyncio.to_thread(load), journal_limit)

    # --- MetadataStore ----------------------------------------------------------------------------

    async def read(self, prefix: str) -> Snapshot:
        self._check_open()
        if not prefix:
            if self._everything is None:
                self._everything = Snapshot(Revision(self._revision), dict(self._entries))
            return self._everything
        below = f"{prefix}/"
        return Snapshot(
            Revision(self._revision),
            {
                key: entry
                for key, entry in self._entries.items()
                if key.startswith(below) or key == prefix
            },
        )

    async def commit(self, *ops: Op) -> Revision:
        check_ops(ops)
        return await self._submit(_Request(_future(), ops))

    def watch(self, prefix: str) -> _Watch:
        watch = _Watch(self, prefix)
        self._watches.add(watch)
        return watch

    async def join(self, key: str, value: bytes, *ops: Op) -> EmbeddedSession:
        commit = (Create(key, value), *ops)
        check_ops(commit)
        session = EmbeddedSession(self, key)
        await self._submit(_Request(_future(), commit, joining=session))
        return session

    async def campaign(self, role: str, value: bytes) -> EmbeddedTerm:
        check_ops((Create(holder_key(role), value), Create(epoch_key(role), value)))
        term = EmbeddedTerm(self, role)
        await self._submit(_Request(_future(), joining=term, role=role, value=value))
        return term

    async def close(self) -> None:
        self._end(lambda: StoreClosed("the metadata store is closed"))
        if self._drainer is not None:
            await asyncio.wait((self._drainer,))
        if not self._let_go:
            self._let_go = True
            self._lose_sessions()
            self._thread.shutdown()
            self._journal.close()
            self._lock.release()

    @property
    def closed(self) -> bool:
        """Whether the folder is free again for another store."""
        return self._let_go

    # --- the queue --------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._ended is not None:
            raise self._ended()

    async def _submit(self, request: _Request) -> Revision:
        self._check_open()
        self._enqueue(request)
        try:
            return await request.done
        except asyncio.CancelledError:
            # Cancelled between the answer and its arrival: nobody will release what was joined.
            done = request.done
            if request.joining and done.done() and not (done.cancelled() or done.exception()):
                self._give_back(request.joining)
            raise

    async def _leave(self, session: EmbeddedSession) -> None:
        if not session.lost.happened:
            await self._submit(_Request(_future(), leaving=session))

    def _give_back(self, session: EmbeddedSession) -> None:
        """Release what nobody waits for any more; nobody waits for this either."""
        if self._ended is None:
            done = _future()
            done.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._enqueue(_Request(done, leaving=session))

    def _enqueue(self, request: _Request) -> None:
        self._queue.append(request)
        if self._drainer is None:
            self._drainer = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        """Work the queue off, one batch and one sync at a time, until it is empty."""
        batch = _Batch(self._revision)
        try:
            while self._queue and self._ended is None:
                waiting, self._queue = self._queue, []
                batch = _Batch(self._revision)
                for request in waiting:
                    if not request.done.done():
                        self._judge(request, batch)
                try:
                    await self._write(batch)
                except disk.SyncFailed:
                    raise
                except OSError as error:
                    logger.error("the disk refused a metadata commit: %s", error)
                    self._answer(batch, failure=f"the disk refused a commit: {error}")
                else:
                    self._publish(batch)
                self._call_next_in_line()
                await self._rotate_if_due()
        except BaseException as error:
            reason = f"the metadata journal {self._journal.path} failed: {error!r}"
            self._end(lambda: StoreFailed(reason))
            self._answer(batch, failure=reason)
            if isinstance(error, asyncio.CancelledError):
                raise
            logger.critical("%s; the store is down until the next start", reason)
        finally:
            self._drainer = None

    def _judge(self, request: _Request, batch: _Batch) -> None:  # noqa: C901 - one branch for each kind of request and operation
        """Add the effects of a request to the batch, or its refusal, or let it wait in line."""
        ops = request.ops
        if request.leaving is not None:
            key = request.leaving.key
            entry = self._entry(key, batch)
            if entry is not None and self._owner(key, batch) is request.leaving:
                ops = (Delete(key, entry.version),)
        elif request.role is not None:
            line = self._line(request.role)
            if request not in line:
                line.append(request)
            if line[0] is not request or self._entry(holder_key(request.role), batch) is not None:
                return
            line.popleft()
            ops = self._inauguration(request, request.role, batch)
        for op in ops:
            problem = why_not(op, self._entry(op.key, batch))
            if problem:
                batch.refused.append((request, Conflict(op.key, problem)))
                return
        changed = False
        for op in ops:
            if isinstance(op, Check):
                continue
            changed = True
            if isinstance(op, Delete):
                batch.entries[op.key] = batch.owners[op.key] = None
            elif isinstance(op, Set):
                batch.entries[op.key] = Entry(op.value, op.version + 1)
            else:
                batch.entries[op.key] = Entry(op.value, 0)
                joining = request.joining
                mine = joining is not None and joining.key == op.key
                batch.owners[op.key] = joining if mine else None
        batch.revision += changed
        batch.accepted.append((request, batch.revision))

    def _inauguration(self, request: _Request, role: str, batch: _Batch) -> tuple[Op, ...]:
        """The commit that takes a vacant role and begins its next epoch."""
        assert isinstance(request.joining, EmbeddedTerm)
        last = self._entry(epoch_key(role), batch)
        begin: Op
        if last is None:
            begin = Create(epoch_key(role), request.value)
            request.joining.begin(role, 0)
        else:
            begin = Set(epoch_key(role), request.value, last.version)
            request.joining.begin(role, last.version + 1)
        return Create(holder_key(role), request.value), begin

    def _entry(self, key: str, batch: _Batch) -> Entry | None:
        return batch.entries[key] if key in batch.entries else self._entries.get(key)

    def _owner(self, key: str, batch: _Batch) -> EmbeddedSession | None:
        return batch.owners[key] if key in batch.owners else self._owners.get(key)

    async def _write(self, batch: _Batch) -> None:
        """Make the batch durable: one frame, one sync. Ephemeral keys count as absent on disk."""
        changes = []
        for key, entry in batch.entries.items():
            durable = entry if self._owner(key, batch) is None else None
            if durable is not None or (key in self._entries and key not in self._owners):
                changes.append(disk.Change(key, durable))
        if changes:
            await asyncio.get_running_loop().run_in_executor(
                self._thread, self._journal.append, batch.revision, changes
            )

    def _publish(self, batch: _Batch) -> None:
        """Make the batch visible, then tell everybody whom it concerns."""
        lost = []
        for key, entry in batch.entries.items():
            if entry is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = entry
        for key, heir in batch.owners.items():
            owner = self._owners.pop(key, None)
            if owner is not None and owner is not heir:
                lost.append(owner)
            if heir is not None:
                self._owners[key] = heir
        if batch.entries:
            self._revision = batch.revision
            self._everything = None
        for session in lost:
            session.lost.happen()
        self._answer(batch)
        for watch in self._watches:
            watch.notice(batch.entries)

    def _answer(self, batch: _Batch, *, failure: str | None = None) -> None:
        for request, revision in batch.accepted:
            if not request.done.done():
                if failure is None:
                    request.done.set_result(Revision(revision))
                else:
                    request.done.set_exception(Unavailable(failure))
            elif request.joining is not None and failure is None:
                self._give_back(request.joining)  # its caller was cancelled while the disk worked
        for request, conflict in batch.refused:
            if not request.done.done():
                request.done.set_exception(conflict)

    def _line(self, role: str) -> deque[_Request]:
        """Who waits for a role, without those who gave up."""
        line = self._lines.setdefault(role, deque())
        while line and line[0].done.done():
            line.popleft()
        return line

    def _call_next_in_line(self) -> None:
        for role in self._lines:
            line = self._line(role)
            if line and holder_key(role) not in self._entries and line[0] not in self._queue:
                self._enqueue(line[0])

    async def _rotate_if_due(self) -> None:
        if self._journal.size < self._rotate_at:
            return
        durable = {key: entry for key, entry in self._entries.items() if key not in self._owners}
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._thread, self._journal.rotate, self._revision, durable
            )
        except OSError as error:
            logger.warning("no snapshot of the metadata could be made, will try again: %s", error)
        self._rotate_at = self._journal.size + self._journal_limit

    def _end(self, why: Callable[[], StoreError]) -> None:
        """No more changes from now on; tell everybody who waits or holds something."""
        if self._ended is not None:
            return
        self._ended = why
        waiting = [request for line in self._lines.values() for request in line] + self._queue
        self._queue = []
        self._lines = {}
        for request in waiting:
            if not request.done.done():
                request.done.set_exception(why())
        self._lose_sessions()
        for watch in self._watches:
            watch.end(why())

    def _lose_sessions(self) -> None:
        for session in self._owners.values():
            session.lost.happen()


class _Watch:
    """The async iterator behind `watch`: remembers only whether there is something to say."""

    def __init__(self, store: EmbeddedStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._news = asyncio.Event()
        self._news.set()
        self._ended: StoreError | None = None

    def notice(self, changed: Collection[str]) -> None:
        if any(covers(self._prefix, key) for key in changed):
            self._news.set()

    def end(self, why: StoreError) -> None:
        self._ended = why
        self._news.set()

    def __aiter__(self) -> _Watch:
        return self

    async def __anext__(self) -> Revision:
        await self._news.wait()
        if self._ended is not None:
            if isinstance(self._ended, StoreClosed):
                raise StopAsyncIteration
            raise self._ended
        self._news.clear()
        return Revision(self._store._revision)


def _future() -> asyncio.Future[Revision]:
    return asyncio.get_running_loop().create_future()
