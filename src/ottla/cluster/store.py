"""MetadataStore: the six methods through which brokers share what they agree on.

The interface is sized for the weaker of its two backends (ZooKeeper; the other is the embedded
journal), so everything it promises, both keep. `ottla.testing.check_store` is this text as tests.

Keys      Paths such as `topics/orders`: segments of printable ASCII joined by `/`, without a slash
          at either end. A prefix names a whole path: `topics` covers `topics` and `topics/orders`,
          not `topics2`; the empty prefix covers everything.
Versions  A created key has version 0 and every Set adds one, so a writer knows the version its own
          commit produced. A key that is deleted and created again starts at 0 again: identity
          across that (a topic of the same name) must be part of the key or of the value.
Commits   All or nothing. `Conflict` means that nothing happened. `Unavailable` means that the
          outcome is not known: read to learn it. A finished commit is durable, and every read
          that starts after it sees it.
Reads     One consistent state at one revision. No client ever sees revisions go backwards.
Watches   Level-triggered: "something under here changed by now". The first value comes at once, so
          `async for` with a read in its body misses nothing; changes in quick succession may be
          reported as one.
Presence  `join` makes an ephemeral key: an ordinary key in every respect, except that it is gone
          when its session ends. Other changes can go with it in the same commit. Anybody may
          delete it, and the session is lost by that: this is how a dead broker is fenced before
          its time is up.
Role      `campaign` waits for its turn. Holding a role is two keys, `<role>/epoch` and
          `<role>/holder`. The first is durable and moves with each term; the second is ephemeral.
          Commits that include `term.fence` fail once a later term has begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NewType, Protocol

Revision = NewType("Revision", int)

MAX_COMMIT_BYTES = 900_000
"""Keys and values of one commit together. ZooKeeper refuses packets of 1 MiB by default."""


@dataclass(frozen=True, slots=True)
class Create:
    """Add a key that must not exist."""

    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Set:
    """Replace the value of a key that must be at `version`."""

    key: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key that must be at `version`."""

    key: str
    version: int


@dataclass(frozen=True, slots=True)
class Check:
    """Change nothing, but demand that the key is at `version`."""

    key: str
    version: int


Op = Create | Set | Delete | Check


class StoreError(Exception):
    """The store did not do what was asked."""


class Conflict(StoreError):
    """A condition of a commit did not hold, and nothing was changed; `key` says which."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(key, message)
        self.key = key
        self.message = message

    def __str__(self) -> str:
        return f"{self.key}: {self.message}"


class Unavailable(StoreError):
    """The store failed or is out of reach; a commit under way may or may not have happened."""


class StoreFailed(Unavailable):
    """The store failed and does not come back within this process; a restart tells what survived.

    Any other `Unavailable` may pass, so whoever can wait tries again.
    """


class StoreClosed(StoreError):
    """`close()` was called."""


class Entry(NamedTuple):
    """One key's value and the version a compare-and-set must name."""

    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The keys under one prefix, all as of one revision."""

    revision: Revision
    entries: Mapping[str, Entry]


class Loss:
    """Something that happens at most once: `await` it, or ask whether it `happened`.

    Not a future: cancelling one of several waiters must not be seen by the others.
    """

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def __await__(self) -> Generator[Any, Any, None]:
        yield from self._event.wait().__await__()

    @property
    def happened(self) -> bool:
        return self._event.is_set()

    def happen(self) -> None:
        self._event.set()


class Session(Protocol):
    """An ephemeral key that is there as long as this is."""

    @property
    def key(self) -> str: ...

    @property
    def lost(self) -> Loss:
        """Happens when the key is gone: released, expired, deleted by another, or store closed."""
        ...

    async def release(self) -> None:
        """Leave. Returns when the key is gone; harmless when it already is.

        Once asked for it happens: a store that is Unavailable now does it when it is there again,
        and one who stops waiting for it has left all the same.
        """
        ...


class Term(Protocol):
    """One holding of a role."""

    @property
    def epoch(self) -> int:
        """Greater than that of every earlier term of this role, restarts included. From 1."""
        ...

    @property
    def fence(self) -> Check:
        """Include it in every commit made in the name of the role."""
        ...

    @property
    def lost(self) -> Loss: ...

    async def release(self) -> None:
        """Resign. The next in line is elected. As for a session, once asked for it happens."""
        ...


class MetadataStore(Protocol):
    """Shared, small, strongly consistent memory."""

    @property
    def session_seconds(self) -> float:
        """For how long at least a session is kept of a client that is not heard of; infinity where
        client and store are one process."""
        ...

    async def read(self, prefix: str) -> Snapshot:
        """Every key under `prefix` with its version, at one revision."""
        ...

    async def commit(self, *ops: Op) -> Revision:
        """Apply all of `ops` or none; the revision is the first that includes them.

        A key may appear once. Raises Conflict, Unavailable, StoreClosed; ValueError when the
        commit could never succeed (too large, a malformed key, a key twice).
        """
        ...

    def watch(self, prefix: str) -> AsyncIterator[Revision]:
        """Revisions by which something under `prefix` changed, the current one first.

        Ends when the store is closed; raises Unavailable when it failed.
        """
        ...

    async def join(self, key: str, value: bytes, *ops: Op) -> Session:
        """Create an ephemeral key, together with `ops` or not at all; Conflict as for `commit`."""
        ...

    async def campaign(self, role: str, value: bytes) -> Term:
        """Wait to be elected, first come first served; `value` is what others read of the holder.

        Cancelling leaves the line, and the role if it was just won.
        """
        ...

    async def close(self) -> None:
        """End every session of this client and free its resources. May be called twice."""
        ...


def returned_at(store: MetadataStore) -> float:
    """When the store was last within reach again, by the loop's clock, after it had been away so
    long that others may have lost their sessions. That is of a store that keeps sessions meanwhile;
    with any other, a new session tells."""
    moment: float = getattr(store, "returned_at", float("-inf"))
    return moment


def holder_key(role: str) -> str:
    """Ephemeral: the value given by whoever holds the role now."""
    return f"{role}/holder"


def epoch_key(role: str) -> str:
    """Durable: its version is the epoch of the newest term, less one."""
    return f"{role}/epoch"


def covers(prefix: str, key: str) -> bool:
    """Whether `key` lies under `prefix`."""
    return not prefix or key == prefix or key.startswith(f"{prefix}/")


def check_ops(ops: tuple[Op, ...]) -> None:
    """The ValueErrors of `commit`, for every implementation alike."""
    seen = set()
    size = 0
    for op in ops:
        check_key(op.key)
        if op.key in seen:
            raise ValueError(f"{op.key!r} appears twice in one commit")
        seen.add(op.key)
        size += len(op.key)
        if isinstance(op, Create | Set):
            size += len(op.value)
    if size > MAX_COMMIT_BYTES:
        raise ValueError(f"a commit of {size} bytes is over the limit of {MAX_COMMIT_BYTES}")


def check_key(key: str) -> None:
    """A ValueError unless `key` is a path both backends can hold."""
    if not (key.isascii() and key.isprintable()):
        raise ValueError(f"{key!r} is not a key: only printable ASCII is allowed")
    if any(segment in ("", ".", "..") for segment in key.split("/")):
        raise ValueError(f"{key!r} is not a key: a segment is empty or made of dots")


def why_not(op: Op, entry: Entry | None) -> str | None:
    """Why `op` cannot be done to a key that holds `entry`; None when it can."""
    if isinstance(op, Create):
        return None if entry is None else f"exists already, at version {entry.version}"
    if entry is None:
        return f"does not exist, expected version {op.version}"
    if entry.version != op.version:
        return f"is at version {entry.version}, expected {op.version}"
    return None
