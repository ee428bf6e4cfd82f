"""A simulated ZooKeeper ensemble, behind the interface of `ottla.cluster.zookeeper.connection`.

Writes are decided by the leader at once. Each server applies them later, in order; a client reads
from its server, so reads are stale and watches late by as much as that server lags, and `sync`
waits for it. Answers and watches of one connection arrive in the order in which they were sent.
When a connection breaks, what was under way may have been done or not: nobody tells. A session ends
when the leader has not heard of its client for as long as a session lasts; its client learns of it
when it is connected again.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ottla.cluster.zookeeper.connection import Broken, NoNode, Refused, Stat, State
from ottla.cluster.zookeeper.mirror import CreateNode, DeleteNode, SetNode, Step
from ottla.cluster.zookeeper.nodes import parent

from .loop import PROCESS, Process, VirtualLoop

SESSION_SECONDS = 6.0
SERVERS = 3


class Znode(NamedTuple):
    data: bytes
    version: int
    created: int
    owner: int


class Write(NamedTuple):
    """One thing that a transaction does."""

    path: str
    node: Znode | None  # None: deleted


class Tree:
    """The nodes as one server has them."""

    def __init__(self) -> None:
        self.nodes: dict[str, Znode] = {"": Znode(b"", 0, 0, 0)}
        self.below: dict[str, dict[str, None]] = {}
        self.made: Counter[str] = Counter()  # children ever created
        self.zxid = 0

    def apply(self, writes: Sequence[Write], zxid: int) -> None:
        self.zxid = zxid
        for path, node in writes:
            above, name = parent(path), path.rpartition("/")[2]
            if node is None:
                del self.nodes[path]
                del self.below[above][name]
            else:
                if path not in self.nodes:
                    self.below.setdefault(above, {})[name] = None
                    self.made[above] += 1
                self.nodes[path] = node

    def stat(self, path: str) -> Stat:
        node = self.nodes[path]
        count, made = len(self.below.get(path, ())), self.made[path]
        return Stat(node.created, node.version, 2 * made - count, count, node.owner)


class Server:
    """One server: a tree that lags behind, and the watches of its clients."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self.tree = Tree()
        self.slow = 0.0  # seconds that it lags more than usual
        self.watches: dict[str, list[tuple[SimConnection, int, Callable[[bool], None]]]] = {}
        self.waiting: deque[tuple[int, Callable[[], None]]] = deque()  # for a transaction
        self._applied_at = 0.0

    def replicate(self, writes: Sequence[Write], zxid: int) -> None:
        loop, rng = self._ensemble.loop, self._ensemble.rng
        lag = rng.expovariate(1 / 0.002) + self.slow
        self._applied_at = max(self._applied_at, loop.time() + lag)
        loop.call_at(self._applied_at, self._apply, writes, zxid, context=WORLD)

    def _apply(self, writes: Sequence[Write], zxid: int) -> None:
        known = [(path, path in self.tree.nodes) for path, _ in writes]
        self.tree.apply(writes, zxid)
        for (path, node), (_, was_there) in zip(writes, known, strict=True):
            deleted = node is None and was_there
            for connection, life, watch in self.watches.pop(path, ()):
                connection.send_back(life, watch, deleted)
        while self.waiting and self.waiting[0][0] <= zxid:
            self.waiting.popleft()[1]()

    def when_applied(self, zxid: int, then: Callable[[], None]) -> None:
        if zxid <= self.tree.zxid:
            then()
        else:
            self.waiting.append((zxid, then))

    def forget(self, connection: SimConnection) -> None:
        for path, watches in list(self.watches.items()):
            left = [each for each in watches if each[0] is not connection]
            if left:
                self.watches[path] = left
            else:
                del self.watches[path]


class Ensemble:
    """The leader, its servers, and what they have been asked to do."""

    def __init__(self, loop: VirtualLoop, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self.tree = Tree()  # the leader's
        self.servers = [Server(self) for _ in range(SERVERS)]
        self.down = False
        self.sessions = 0
        self.ephemerals: dict[int, dict[str, None]] = {}
        # for statistics
        self.requests = 0
        self.writes = 0
        self.conflicts = 0
        self.bytes_written = 0
        self.bytes_read = 0
        self.on_write: Callable[[], None] = loop.touch

    # --- writing ------------------------------------------------------------------------------

    def decide(self, steps: Sequence[Step], session: int) -> tuple[list[str], int]:
        """Do all of it or nothing: Refused. The names of what was made, and the transaction."""
        zxid = self.tree.zxid + 1
        changed: dict[str, Znode | None] = {}
        more: Counter[str] = Counter()
        writes: list[Write] = []
        made: list[str] = []
        size = 0
        for step in steps:
            path = step.path
            if isinstance(step, CreateNode):
                above = parent(path)
                if step.sequence:
                    number = self.tree.made[above] + more[above]
                    path = f"{path}{number:010d}"
                holder = self._node(above, changed)
                if holder is None or holder.owner or self._node(path, changed) is not None:
                    raise self._refused(path)
                node = Znode(step.data, 0, zxid, session if step.ephemeral else 0)
                more[above] += 1
                made.append(path)
            else:
                before = self._node(path, changed)
                if before is None or step.version not in (-1, before.version):
                    raise self._refused(path)
                if isinstance(step, SetNode):
                    node = before._replace(data=step.data, version=before.version + 1)
                elif isinstance(step, DeleteNode):
                    if any(self._node(f"{path}/{each}", changed) for each in self._below(path)):
                        raise self._refused(path)
                    node = None
                else:
                    continue
            size += len(path) + len(getattr(step, "data", b""))
            changed[path] = node
            writes.append(Write(path, node))
        self.bytes_written += size
        self._commit(writes, zxid)
        return made, zxid

    def _node(self, path: str, changed: dict[str, Znode | None]) -> Znode | None:
        return changed[path] if path in changed else self.tree.nodes.get(path)

    def _below(self, path: str) -> list[str]:
        return list(self.tree.below.get(path, ()))

    def _refused(self, path: str) -> Refused:
        self.conflicts += 1
        return Refused(f"refused at {path}")

    def _commit(self, writes: Sequence[Write], zxid: int) -> None:
        self.writes += 1
        for path, node in writes:
            before = self.tree.nodes.get(path)
            if before is not None and before.owner and node is None:
                self.ephemerals[before.owner].pop(path, None)
            if node is not None and node.owner:
                self.ephemerals.setdefault(node.owner, {})[path] = None
        self.tree.apply(writes, zxid)
        self.on_write()
        for server in self.servers:
            server.replicate(writes, zxid)

    # --- sessions -----------------------------------------------------------------------------

    def new_session(self) -> int:
        self.sessions += 1
        self.ephemerals[self.sessions] = {}
        return self.sessions

    def lives(self, session: int) -> bool:
        return session in self.ephemerals

    def expire(self, session: int) -> None:
        """A session ends, and its ephemeral nodes with it."""
        owned = self.ephemerals.pop(session, None)
        if owned:
            self.ephemerals[session] = {}  # `_commit` takes them out
            self._commit([Write(path, None) for path in owned], self.tree.zxid + 1)
            del self.ephemerals[session]


class SimConnection:
    """What `Connection` is to the store, over the simulated ensemble."""

    def __init__(self, ensemble: Ensemble, on_state: Callable[[State], None]) -> None:
        process = PROCESS.get()
        assert process is not None, "only a process has connections"
        self._process: Process = process
        self._ensemble = ensemble
        self._loop = ensemble.loop
        self._rng = ensemble.rng
        self._on_state = on_state
        self.session_seconds = SESSION_SECONDS
        self.requests = 0
        self.session = 0
        self.connected = False
        self.blocked: str = ""  # "", "out" (nothing arrives there), "in" (nothing comes back)
        self.ended = False
        self._server = ensemble.servers[0]
        self._life = 0  # of the connection: what belongs to an earlier one is not heard
        self._seen = 0
        self._outstanding: dict[asyncio.Future[Any], None] = {}
        self._there = 0.0  # when the last one arrives there
        self._back = 0.0
        self._queue: deque[Callable[[Callable[[], None]], None]] = deque()
        self._busy = False
        self._serving = False
        self._cuts = 0

    # --- the connection -----------------------------------------------------------------------

    def start(self) -> None:
        self._later(self._rng.uniform(0.001, 0.02), self._connect)

    async def stop(self) -> None:
        self.ended = True
        self._disconnect(told=False)
        self._ensemble.expire(self.session)

    def finish(self) -> None:
        """The world ends: nothing is answered any more."""
        self.ended = True
        self._disconnect(told=False)
        self._on_state(State.SUSPENDED)

    def _later(self, delay: float, function: Callable[..., None], *arguments: object) -> None:
        """In the client's process."""
        self._loop.call_later(delay, function, *arguments, context=self._process.context)

    def _connect(self) -> None:
        if self.ended or self.connected:
            return
        ensemble = self._ensemble
        able = [each for each in ensemble.servers if each.tree.zxid >= self._seen]
        if ensemble.down or self.blocked or not able:
            self._later(self._rng.uniform(0.05, 0.5), self._connect)
            return
        self._life += 1
        self._server = self._rng.choice(able)
        if not ensemble.lives(self.session):
            if self.session:
                self._on_state(State.LOST)
            self.session = ensemble.new_session()
        self.connected = True
        self._on_state(State.CONNECTED)

    def _disconnect(self, *, told: bool = True) -> None:
        self.connected = False
        self._life += 1
        self._server.forget(self)
        self._queue.clear()
        self._busy = False
        for future in self._outstanding:
            if not future.done():
                future.set_exception(Broken("the connection to ZooKeeper ended"))
        if told:
            self._on_state(State.SUSPENDED)
            self._later(self._rng.uniform(0.02, 0.3), self._connect)

    # --- what goes wrong ----------------------------------------------------------------------

    def drop(self) -> None:
        """The connection breaks: what is on its way may arrive, its answer does not."""
        if self.connected and not self.ended:
            self._finish_some()
            self._process.context.run(self._disconnect)

    def _finish_some(self) -> None:
        """Of what was sent and not answered, the first few are done all the same."""
        for work in list(self._queue)[: self._rng.randint(0, len(self._queue))]:
            work(lambda: None)

    def cut(self, way: str) -> None:
        """Nothing arrives there ("out"), or nothing comes back ("in"), until `heal`."""
        self.blocked = way
        self._cuts += 1
        life, session, patience = self._life, self.session, self.session_seconds * 2 / 3
        self._loop.call_later(patience, self._give_up, life)
        unheard = self.session_seconds + (patience if way == "in" else 0.0)
        self._loop.call_later(unheard, self._expire_if_cut, session, self._cuts)

    def _give_up(self, life: int) -> None:
        if self.blocked and self.connected and life == self._life:
            self._process.context.run(self._disconnect)

    def _expire_if_cut(self, session: int, cuts: int) -> None:
        if self.blocked and cuts == self._cuts and session == self.session:
            self._ensemble.expire(session)

    def heal(self) -> None:
        self.blocked = ""
        if self.connected:
            self.drop()  # it has lost what was sent meanwhile

    def expire(self) -> None:
        """The session ends at the server; its client hears of it a little later."""
        self._ensemble.expire(self.session)
        self._loop.call_later(self._rng.uniform(0.0, 1.0), self.drop)

    def process_died(self) -> None:
        """Nobody is heard of any more."""
        self.ended = True
        self.connected = False
        self._life += 1
        self._server.forget(self)
        self._loop.call_later(self.session_seconds, self._ensemble.expire, self.session)

    # --- requests -----------------------------------------------------------------------------

    async def get(
        self, path: str, watch: Callable[[bool], None] | None = None
    ) -> tuple[bytes, Stat]:
        found = await self._ask(lambda: self._read(path, watch, missing=False))
        if found is None:
            raise NoNode(path)
        return found

    async def exists(self, path: str, watch: Callable[[bool], None] | None = None) -> Stat | None:
        found = await self._ask(lambda: self._read(path, watch, missing=True))
        return None if found is None else found[1]

    def _read(
        self, path: str, watch: Callable[[bool], None] | None, *, missing: bool
    ) -> tuple[bytes, Stat] | None:
        tree = self._server.tree
        node = tree.nodes.get(path)
        if watch is not None and (node is not None or missing):
            self._server.watches.setdefault(path, []).append((self, self._life, watch))
        if node is None:
            return None
        self._ensemble.bytes_read += len(node.data)
        return node.data, tree.stat(path)

    async def children(self, path: str) -> list[str]:
        def read() -> list[str] | None:
            tree = self._server.tree
            return list(tree.below.get(path, ())) if path in tree.nodes else None

        names = await self._ask(read)
        if names is None:
            raise NoNode(path)
        found: list[str] = names
        return found

    async def sync(self, path: str) -> None:
        await self._ask(lambda: None, needs=lambda: self._ensemble.tree.zxid)

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> str:
        made = await self.multi([CreateNode(path, data, ephemeral, sequence)])
        name: str = made[0]
        return name

    async def create_root(self) -> None:
        pass

    async def delete(self, path: str) -> None:
        try:
            await self.multi([DeleteNode(path, -1)])
        except Refused:
            pass  # it is gone

    async def multi(self, steps: Sequence[Step]) -> list[Any]:
        zxid = 0
        outcome: Any = None

        def decide() -> int:
            nonlocal zxid, outcome
            if not self._ensemble.lives(self.session):
                outcome = Broken("the session has expired")
            elif outcome is None:
                try:
                    made, zxid = self._ensemble.decide(steps, self.session)
                    names = iter(made)
                    outcome = [
                        next(names) if isinstance(step, CreateNode) else None for step in steps
                    ]
                except Refused as error:
                    # Also what is refused comes through the leader, after all that was before it.
                    outcome, zxid = error, self._ensemble.tree.zxid
            return zxid

        answer = await self._ask(lambda: outcome, needs=decide)
        if isinstance(answer, Exception):
            raise answer
        results: list[Any] = answer
        return results

    async def _ask(self, read: Callable[[], Any], needs: Callable[[], int] = lambda: 0) -> Any:
        """Ask the server: `needs` says which transaction it must have before it can answer."""
        if not self.connected or self.ended:
            raise Broken("there is no connection to ZooKeeper")
        self.requests += 1
        self._ensemble.requests += 1
        life, server = self._life, self._server
        future: asyncio.Future[Any] = self._loop.create_future()
        self._outstanding[future] = None

        def work(then: Callable[[], None]) -> None:
            def ready() -> None:
                if life == self._life:
                    self.send_back(life, self._settle, future, read(), server.tree.zxid)
                then()

            server.when_applied(needs(), ready)

        if self.blocked != "out":
            self._there = max(self._there, self._loop.time() + self._rng.expovariate(1 / 0.0005))
            self._loop.call_at(self._there, self._arrived, life, work, context=WORLD)
        try:
            return await future
        finally:
            self._outstanding.pop(future, None)

    def _arrived(self, life: int, work: Callable[[Callable[[], None]], None]) -> None:
        if life == self._life:
            self._queue.append(work)
            self._serve()

    def _serve(self) -> None:
        """One after the other: a session's requests are answered in order."""
        if self._serving:
            return
        self._serving = True
        while self._queue and not self._busy:
            self._busy = True
            self._queue.popleft()(partial(self._served, self._life))
        self._serving = False

    def _served(self, life: int) -> None:
        if life == self._life:
            self._busy = False
            self._serve()

    def send_back(self, life: int, function: Callable[..., None], *arguments: object) -> None:
        """Answers and watches, in order."""
        if self.blocked == "in" or life != self._life:
            return
        self._back = max(self._back, self._loop.time() + self._rng.expovariate(1 / 0.0005))

        def arrive() -> None:
            if life == self._life:
                function(*arguments)

        self._loop.call_at(self._back, arrive, context=self._process.context)

    def _settle(self, future: asyncio.Future[Any], value: Any, zxid: int) -> None:
        self._seen = max(self._seen, zxid)
        if not future.done():
            future.set_result(value)


WORLD = Process("world").context
"""Where everything runs that belongs to nobody's process."""
