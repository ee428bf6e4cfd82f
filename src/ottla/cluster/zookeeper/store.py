"""The metadata store on an ensemble of ZooKeeper.

Reads come from a mirror that is brought up to date first (`follow.py`), so a read sees every commit
that was finished when it began, on whatever client, as far as ZooKeeper's `sync` promises that: a
leader that was deposed and has not noticed yet answers it, too, and a client of the leader itself
may for a moment be behind those of the others.

Commits are one multi each, planned from the mirror (`mirror.py`) and never tried again after a lost
connection: whether such a one happened is looked up among the changes after the next `sync`, by its
id. Only when there is no connection for a session's length, or the changes do not show it, the
caller gets `Unavailable`.

While the connection is down, reads and commits wait: nothing is answered from the mirror that is
not known to be current. A session is lost when ZooKeeper says so or when its key is gone, not when
the connection is: `connected` tells the two apart.

A store that was made anew, or taken back to an older state, behind the back of a running client is
not followed. Everything fails from then on, until the process is started again. One that is empty
is said to be so, and nothing else happens: what needs no change of metadata goes on until there is
something to start again with (`ottla metadata import`).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from ottla.cluster.store import (
    Conflict,
    Create,
    Delete,
    Op,
    Revision,
    Snapshot,
    StoreClosed,
    StoreError,
    StoreFailed,
    Unavailable,
    check_ops,
    covers,
    epoch_key,
    holder_key,
)
from ottla.cluster.zookeeper.address import Access, Address, tls_context
from ottla.cluster.zookeeper.connection import (
    Broken,
    Connection,
    Denied,
    NoNode,
    Refused,
    State,
)
from ottla.cluster.zookeeper.election import Candidate
from ottla.cluster.zookeeper.follow import Follower, Replaced
from ottla.cluster.zookeeper.mirror import CreateNode, DeleteNode, Mirror, Plan, revision_of
from ottla.cluster.zookeeper.nodes import (
    CHANGE_PREFIX,
    CHANGES,
    Change,
    change_number,
    encode_change,
    is_reserved,
)
from ottla.cluster.zookeeper.second_look import look_anew
from ottla.cluster.zookeeper.sessions import ZooKeeperSession, ZooKeeperTerm

logger = logging.getLogger(__name__)
T = TypeVar("T")

SESSION_TIMEOUT = 6.0
"""Seconds of silence after which ZooKeeper ends a session, unless its own limits are narrower."""

CONNECT_TIMEOUT = 18.0
"""Seconds to wait for the first connection: Kafka's zookeeper.connection.timeout.ms."""

CHANGES_KEPT = 1_000
"""Whoever is further behind reads everything once. There may be twice as many before a trim."""

OUTAGE = 1 / 3
"""The part of a session's time that ZooKeeper must have been away for sessions to be in danger: who
is connected speaks to it that often, and has the other two thirds to come back."""

_TRIMMED_AT_ONCE = 500
_REFUSALS = 5


class NoStore(StoreError):
    """There is nothing at all at this address."""


class Interrupted(Unavailable):
    """The connection ended, or has been away for too long: a new attempt may well succeed."""


class ZooKeeperStore:
    """A `MetadataStore` in ZooKeeper, for one client of many."""

    def __init__(
        self,
        address: Address,
        access: Access,
        tls: ssl.SSLContext | None,
        session_timeout: float,
        changes_kept: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._address = address
        self._changes_kept = changes_kept
        # The connection.
        self.connection = Connection(address, access, tls, session_timeout, self._note_state)
        self._online = asyncio.Event()
        self._offline = asyncio.Event()
        self._offline_since: float | None = self._loop.time()
        self._away_since = self._offline_since  # the same, though a session has ended meanwhile
        self.returned_at = float("-inf")  # see `cluster.store`
        # What is known.
        self.follower = Follower(self.connection, self._note_changes)
        self._waiting: list[tuple[asyncio.Future[None], bool]] = []
        self._watches: weakref.WeakSet[_Watch] = weakref.WeakSet()
        # What is ours.
        self._name = uuid.uuid4().hex
        self._commits = 0
        self._unsettled: dict[str, int | None] = {}
        self._joining: dict[str, ZooKeeperSession] = {}
        self._owned: dict[str, ZooKeeperSession] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._trimming = False
        # How it ended.
        self._end: asyncio.Future[Callable[[], StoreError]] = self._loop.create_future()
        self._stopped: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        address: Address,
        access: Access | None = None,
        *,
        create: bool = True,
        session_timeout: float = SESSION_TIMEOUT,
        connect_timeout: float = CONNECT_TIMEOUT,
        changes_kept: int = CHANGES_KEPT,
    ) -> ZooKeeperStore:
        """Connect and read everything; with `create`, also make the chroot and an empty store.

        Raises `Unavailable` when no server answers, `Interrupted` when the connection ends before
        all is read, NoStore when nothing is there, StoreError when it is not ours, BadAddress when
        a certificate cannot be used.
        """
        access = access or Access()
        tls = None
        if access.tls is not None:
            tls = await asyncio.to_thread(tls_context, access.tls)
        store = cls(address, access, tls, session_timeout, changes_kept)
        try:
            store.connection.start()
            try:
                await asyncio.wait_for(store._online.wait(), connect_timeout)
            except TimeoutError:
                raise Unavailable(
                    f"no ZooKeeper answers at {address.hosts} within {connect_timeout:g} s: is it "
                    f"running, and is the address right? {_hint(access)}"
                ) from None
            await store._wait(store._prepare(create))
            store.spawn(store._run())
            store.spawn(store._doubt(access, tls))
            await store._wait(store.refresh())
        except BaseException:
            await store.close()
            raise
        return store

    # --- MetadataStore ----------------------------------------------------------------------------

    async def read(self, prefix: str) -> Snapshot:
        await self._wait(self.refresh())
        return self.mirror.snapshot(prefix)

    async def commit(self, *ops: Op) -> Revision:
        _check(ops)
        return await self._wait(self._commit(ops))

    def watch(self, prefix: str) -> _Watch:
        watch = _Watch(self, prefix)
        self._watches.add(watch)
        return watch

    async def join(self, key: str, value: bytes, *ops: Op) -> ZooKeeperSession:
        """Create an ephemeral key, together with `ops` or not at all."""
        commit = (Create(key, value), *ops)
        _check(commit)
        session = ZooKeeperSession(key, self._release)
        await self._hold(self.commit_as(session, commit), lambda: session)
        return session

    async def campaign(self, role: str, value: bytes) -> ZooKeeperTerm:
        _check((Create(holder_key(role), value), Create(epoch_key(role), value)))
        candidate = Candidate(self, role, value, self._release)
        return await self._hold(candidate.stand(), lambda: candidate.term, forever=True)

    async def close(self) -> None:
        self._finish(lambda: StoreClosed("the metadata store is closed"))
        if self._stopped is None:
            self._stopped = self._loop.create_task(self._stop())
        await asyncio.shield(self._stopped)

    # --- what it knows of itself ------------------------------------------------------------------

    @property
    def session_seconds(self) -> float:
        """As ZooKeeper has allowed it, which may be more or less than was asked for."""
        return self.connection.session_seconds

    @property
    def connected(self) -> bool:
        """Whether there is a connection now. Sessions outlive a connection for a while."""
        return self._online.is_set()

    @property
    def mirror(self) -> Mirror:
        """What was current when somebody last asked."""
        return self.follower.mirror

    # --- waiting ----------------------------------------------------------------------------------

    async def _wait(self, work: Coroutine[Any, Any, T], *, forever: bool = False) -> T:
        """The outcome of `work`, unless the store ends or is out of reach for too long."""
        if self._end.done():
            work.close()
            raise self._end.result()()
        task = self._loop.create_task(work)
        try:
            while True:
                left = None if forever else self._time_left()
                await asyncio.wait(
                    (task, self._end), timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
                if self._end.done():
                    raise self._end.result()()
                if task.done():
                    return task.result()
                if self._time_left() <= 0:
                    raise Interrupted(f"there is no connection to ZooKeeper at {self._address}")
        except Broken as error:
            raise Interrupted(str(error)) from None
        except Denied as error:
            raise Unavailable(str(error)) from None
        finally:
            if not task.done():
                task.cancel()
            task.add_done_callback(lambda task: task.cancelled() or task.exception())

    def _time_left(self) -> float:
        if self._offline_since is None:
            return self.session_seconds
        return self._offline_since + self.session_seconds - self._loop.time()

    async def wait_online(self) -> None:
        await self._online.wait()

    async def wait_offline(self) -> None:
        await self._offline.wait()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """In the background, until it is done or the store is closed."""
        if self._end.done():
            work.close()
            return
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- rounds -----------------------------------------------------------------------------------

    async def refresh(self, *, synced: bool = True) -> None:
        """Wait for a round that begins after now."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((future, synced))
        self.follower.kick.set()
        await future

    async def _run(self) -> None:
        """Make rounds, one at a time, whenever there is a reason."""
        kick = self.follower.kick
        while True:
            await kick.wait()
            await self._online.wait()
            kick.clear()
            waiting = [each for each in self._waiting if not each[0].done()]
            self._waiting = []
            try:
                await self.follower.round(synced=any(synced for _, synced in waiting))
            except Broken:
                self._waiting = waiting + self._waiting
                kick.set()
                await asyncio.sleep(0.02)
            except Replaced as error:
                self._fail_replaced(error)
                return
            except Denied as error:
                _fail_all(waiting, Unavailable(str(error)))
            except Exception as error:
                logger.exception("the metadata in ZooKeeper cannot be followed")
                self._fail(f"the metadata in ZooKeeper at {self._address} is damaged: {error!r}")
                return
            else:
                for future, _ in waiting:
                    if not future.done():
                        future.set_result(None)
                self._trim_if_due()

    async def _doubt(self, access: Access, tls: ssl.SSLContext | None) -> None:
        """Without a connection for long: find out whether it is we who are not let in."""
        told = False
        while True:
            if self._online.is_set():
                told = False
                await self._offline.wait()
            await asyncio.sleep(max(self.session_seconds, self._time_left()))
            if self._online.is_set():
                continue
            # The look may take long, and more be learned over another connection meanwhile.
            known = self.follower.mirror.position
            seen = await look_anew(self._address, access, tls, self.session_seconds)
            if seen is None or self._online.is_set():
                continue
            try:
                self.follower.compare(seen.found, known)
            except Replaced as error:
                self._fail_replaced(error)
                return
            if seen.found is None and not told:
                told = True
                logger.critical(
                    "ZooKeeper at %s is there and has lost all metadata. No change of it is "
                    "possible; everything else goes on. If there is a backup, `ottla metadata "
                    "import FILE --zookeeper %s --yes` brings it back: then start the brokers anew",
                    self._address,
                    self._address,
                )

    def _fail_replaced(self, error: Replaced) -> None:
        self._fail(
            f"what ZooKeeper at {self._address} holds is not what this process knows: {error}. "
            "Start again when it is clear which of the two is wanted"
        )

    def _note_changes(self, touched: set[str], changes: Iterable[Change]) -> None:
        """The mirror has moved on: tell everybody whom that concerns."""
        for change in changes:
            if change.id in self._unsettled:
                self._unsettled[change.id] = change.number
            session = self._joining.pop(change.id, None)
            if session is not None:
                self._own(session, change.transaction)
        for key in touched & self._owned.keys():
            session = self._owned[key]
            node = self.mirror.nodes.get(key)
            if node is None or node.born != session.born:
                del self._owned[key]
                session.lost.happen()
        for watch in tuple(self._watches):
            watch.notice(touched)

    def _own(self, session: ZooKeeperSession, born: int) -> None:
        former = self._owned.get(session.key)
        if former is not None:
            former.lost.happen()
        session.born = born
        self._owned[session.key] = session

    def _note_state(self, state: State) -> None:
        if self._end.done():
            return
        if state is State.CONNECTED:
            if self._offline_since is not None and self.follower.full_loads:
                now = self._loop.time()
                seconds = now - self._away_since
                if seconds >= OUTAGE * self.session_seconds:
                    self.returned_at = now
                logger.info("connected to ZooKeeper again after %.1f s", seconds)
            self._offline_since = None
            self._online.set()
            self._offline.clear()
            self.follower.forget_watches()
            return
        self._online.clear()
        self._offline.set()
        if self._offline_since is None:
            self._offline_since = self._away_since = self._loop.time()
            logger.warning(
                "no connection to ZooKeeper at %s; what needs no change of metadata goes on",
                self._address,
            )
        if state is State.LOST:
            self._offline_since = self._loop.time()  # a server said so: there is one
            owned, self._owned = self._owned, {}
            if owned:
                logger.warning("the session with ZooKeeper is lost: %s", ", ".join(sorted(owned)))
            for session in owned.values():
                session.lost.happen()

    # --- commits ----------------------------------------------------------------------------------

    async def commit_as(self, session: ZooKeeperSession, ops: tuple[Op, ...]) -> None:
        """A commit that creates the key of `session`, which is ours then."""
        await self._commit(ops, session)
        if session.born is None:
            await self._adopt(session)

    async def _commit(
        self, ops: tuple[Op, ...], session: ZooKeeperSession | None = None
    ) -> Revision:
        fresh = False
        refused: Counter[Plan] = Counter()
        while True:
            await self._online.wait()
            try:
                plan = self.mirror.plan(ops, None if session is None else session.key)
                return await self._carry_out(plan, session)
            except Conflict:
                if fresh:
                    raise
            except Refused as error:
                # The mirror was stale, or a directory came or went: look again. One that is
                # refused again and again was made from nodes that somebody else has written.
                refused[plan] += 1
                if refused[plan] > _REFUSALS:
                    raise Unavailable(f"ZooKeeper refuses a commit: {error}") from None
                if refused[plan] > 1:
                    self.follower.reload()
            await self.refresh()
            fresh = True

    async def _carry_out(self, plan: Plan, session: ZooKeeperSession | None) -> Revision:
        """Ask ZooKeeper once. Refused when nothing happened, Unavailable when that is unknown."""
        self._commits += 1
        change_id = f"{self._name}-{self._commits}"
        steps = list(plan.steps)
        if plan.effects:
            data = encode_change(change_id, plan.effects)
            steps.append(CreateNode(f"{CHANGES}/{CHANGE_PREFIX}", data, sequence=True))
        self._unsettled[change_id] = None
        if session is not None:
            self._joining[change_id] = session
        try:
            results = await self.connection.multi(steps)
            if not plan.effects:
                await self.refresh()
                return self.mirror.revision
            number = change_number(results[-1])
            await self._reach(number)
            return revision_of(number)
        except (Refused, ValueError, Denied):
            self._joining.pop(change_id, None)
            raise
        except Broken as error:
            return revision_of(await self._settle(change_id, error))
        finally:
            self._unsettled.pop(change_id, None)

    async def _settle(self, change_id: str, error: Broken) -> int:
        """The number of a commit whose answer never came, if it happened."""
        if self._unsettled[change_id] is None:
            await self.refresh()
        number = self._unsettled[change_id]
        if number is None:
            self._joining.pop(change_id, None)
            raise Interrupted(f"a commit was cut off, and is not among the changes: {error}")
        return number

    async def _reach(self, number: int) -> None:
        """Wait until the mirror has a commit of ours."""
        while self.mirror.position < number:
            await self.refresh(synced=False)

    async def _adopt(self, session: ZooKeeperSession) -> None:
        """A key that may be ours, though its change was trimmed before we read it."""
        stat = await self.connection.exists(session.key)
        if stat is not None and stat.owner == self.connection.session:
            self._own(session, stat.created)
        else:
            session.lost.happen()

    def _trim_if_due(self) -> None:
        """Whoever holds a role deletes old changes, in the background."""
        holds = any(isinstance(session, ZooKeeperTerm) for session in self._owned.values())
        if holds and not self._trimming and self.follower.kept > 2 * self._changes_kept:
            self._trimming = True
            self.spawn(self._trim())

    async def _trim(self) -> None:
        try:
            names = sorted(await self.connection.children(CHANGES), key=change_number)
            old = names[: -self._changes_kept]
            for start in range(0, len(old), _TRIMMED_AT_ONCE):
                some = old[start : start + _TRIMMED_AT_ONCE]
                await self.connection.multi([DeleteNode(f"{CHANGES}/{name}", -1) for name in some])
            self.follower.kept = min(self.follower.kept, self._changes_kept)
        except (Broken, Refused, Denied, NoNode) as error:
            logger.info("old changes in ZooKeeper were not trimmed, will try again: %s", error)
        finally:
            self._trimming = False

    # --- presence ---------------------------------------------------------------------------------

    async def _hold(
        self,
        work: Coroutine[Any, Any, T],
        held: Callable[[], ZooKeeperSession | None],
        *,
        forever: bool = False,
    ) -> T:
        """Do what makes a session ours; what nobody waits for in the end is given back."""
        try:
            return await self._wait(work, forever=forever)
        except (Conflict, ValueError):
            raise
        except BaseException:
            session = held()
            if session is not None:
                self.spawn(self._give_back(session))
            raise

    async def _give_back(self, session: ZooKeeperSession) -> None:
        """Delete the key, should it have been created after all."""
        while not self._end.done():
            await self._online.wait()
            try:
                await self._wait(self.refresh())
                taken = session.key in self._owned or session in self._joining.values()
                if not taken and session.key in self.mirror.entries:
                    await self._wait(self._adopt(session))
                await self._delete(session)
                break
            except Unavailable:
                continue
            except StoreClosed:
                return
        for change_id in [each for each, owner in self._joining.items() if owner is session]:
            del self._joining[change_id]

    async def _release(self, session: ZooKeeperSession) -> None:
        """Delete the key; if that cannot be done now, or nobody waits for it, a little later.

        ZooKeeper's session may outlive the outage, and the key with it: a role would be held by
        one who does not know of it, and who waits for it in line behind itself.
        """
        try:
            await self._delete(session)
        except BaseException:
            self.spawn(self._give_back(session))
            raise

    async def _delete(self, session: ZooKeeperSession) -> None:
        while not session.lost.happened and self._owned.get(session.key) is session:
            node = self.mirror.nodes[session.key]
            ops: list[Op] = [Delete(session.key, node.version - node.base)]
            if isinstance(session, ZooKeeperTerm):
                ops.append(session.fence)
            try:
                await self._wait(self._commit(tuple(ops)))
            except Conflict:
                continue  # the mirror is newer now

    # --- the beginning and the end ----------------------------------------------------------------

    async def _prepare(self, create: bool) -> None:
        connection = self.connection
        there = await connection.exists("")
        if there is None and not create:
            raise NoStore(
                f"there is no {self._address.chroot} in ZooKeeper at {self._address.hosts}: is the "
                "chroot right?"
            )
        if there is None:
            await connection.create_root()
        if await connection.exists(CHANGES) is None:
            names = [name for name in await connection.children("") if name != "zookeeper"]
            if CHANGES not in names and (names or not create):
                shown = ", ".join(sorted(names)[:5]) or "nothing"
                raise (StoreError if names else NoStore)(
                    f"{self._address} holds no metadata of Ottla but {shown}: give Ottla a chroot "
                    "of its own, as in host:2181/ottla"
                )
            try:
                await connection.create(CHANGES, uuid.uuid4().hex.encode())
            except Refused:
                pass  # another was first
        await self.follower.check_numbering()

    def _fail(self, reason: str) -> None:
        logger.critical("%s", reason)
        self._finish(lambda: StoreFailed(reason))

    def _finish(self, why: Callable[[], StoreError]) -> None:
        """Nothing more from now on; tell everybody who waits or holds something."""
        if self._end.done():
            return
        self._end.set_result(why)
        _fail_all(self._waiting, why())
        for session in (*self._owned.values(), *self._joining.values()):
            session.lost.happen()
        self._owned.clear()
        for watch in tuple(self._watches):
            watch.end(why())

    async def _stop(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self.follower.stop()
        await self.connection.stop()


class _Watch:
    """The async iterator behind `watch`: remembers only whether there is something to say."""

    def __init__(self, store: ZooKeeperStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._news = asyncio.Event()
        self._news.set()
        self._is_new = True
        self._ended: StoreError | None = None
        if store._end.done():
            self.end(store._end.result()())

    def notice(self, changed: Collection[str]) -> None:
        if any(covers(self._prefix, key) for key in changed):
            self._news.set()

    def end(self, why: StoreError) -> None:
        self._ended = why
        self._news.set()

    def __aiter__(self) -> _Watch:
        return self

    async def __anext__(self) -> Revision:
        if self._is_new:
            # What was committed before is no news, though the mirror may not have it yet.
            self._is_new = False
            with suppress(StoreError):
                await self._store._wait(self._store.refresh())
        await self._news.wait()
        if self._ended is not None:
            if isinstance(self._ended, StoreClosed):
                raise StopAsyncIteration
            raise self._ended
        self._news.clear()
        return self._store.mirror.revision


def _hint(access: Access) -> str:
    if access.tls is not None:
        return "Does it speak TLS there, with a certificate that our authorities have signed?"
    return "`ottla zookeeper start` runs one"


def _check(ops: tuple[Op, ...]) -> None:
    check_ops(ops)
    for op in ops:
        if is_reserved(op.key):
            raise ValueError(f"{op.key!r} is not a key: the store keeps other things there")


def _fail_all(waiting: Iterable[tuple[asyncio.Future[None], bool]], error: StoreError) -> None:
    for future, _ in waiting:
        if not future.done():
            future.set_exception(error)
            future.exception()  # its waiter may be gone
