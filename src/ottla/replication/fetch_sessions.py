"""Incremental fetch sessions (KIP-227): a consumer of many partitions says only what changed.

A session remembers, per partition, what the client wants and what it was last told. A response of
an incremental fetch then holds only the partitions with news: records, a moved high watermark or
log start, or an error. Partitions that gave records go to the end of the line, so that a byte
limit does not starve the last ones.

The table holds `slots` sessions. A new one takes the place of the least recently used one if that
has been idle for two minutes, or if it is smaller than the newcomer; otherwise the client gets no
session and goes on with full fetches, which always work.

A follower's session has its `rounds`, which know what has happened to its partitions. A broker has
one fetcher for each leader, so a new session of it ends the one before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ottla.errors import ErrorCode, KafkaError
from ottla.replication.rounds import Key, Rounds

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EVICTION_IDLE = 120.0
MAX_EPOCH = 2**31 - 1
FEW = 1000
MAX_PARTITIONS = 1 << 19
"""Of all sessions and waiting fetches together, not counting those with few: some 350 MB."""


@dataclass(slots=True)
class Wanted:
    """What a client wants of one partition."""

    offset: int
    max_bytes: int
    leader_epoch: int
    last_fetched_epoch: int
    log_start: int = -1  # of a follower's log
    # what it was last told, within a session
    high_watermark: int = -1
    log_start_offset: int = -1

    def note_told(self, has_records: bool, error: int, high_watermark: int, log_start: int) -> bool:
        """Remember what the client is told of this partition; whether any of it is news."""
        news = has_records or error != 0
        if high_watermark != self.high_watermark:
            news = True
            self.high_watermark = high_watermark
        if log_start != self.log_start_offset:
            news = True
            self.log_start_offset = log_start
        if error:
            # When the error goes away the client is told the marks again.
            self.high_watermark = -1
        return news

    def update(self, other: Wanted) -> None:
        self.offset = other.offset
        self.max_bytes = other.max_bytes
        self.leader_epoch = other.leader_epoch
        self.last_fetched_epoch = other.last_fetched_epoch
        self.log_start = other.log_start


class Session:
    """One client's partitions, in the order in which they are served."""

    __slots__ = ("by_id", "epoch", "id", "partitions", "rounds", "used")

    def __init__(
        self,
        session_id: int,
        partitions: OrderedDict[Key, Wanted],
        by_id: bool,
        now: float,
        rounds: Rounds | None = None,
    ) -> None:
        self.id = session_id
        self.partitions = partitions
        self.by_id = by_id
        self.epoch = 1
        self.used = now
        self.rounds = rounds  # of a follower

    def change(self, changed: Iterable[tuple[Key, Wanted]], forgotten: Iterable[Key]) -> None:
        """Take what an incremental fetch says."""
        partitions, rounds = self.partitions, self.rounds
        for key, wanted in changed:
            known = partitions.get(key)
            if known is None:
                partitions[key] = wanted
            else:
                known.update(wanted)
            if rounds is not None:
                rounds.named(key)
        for key in forgotten:
            partitions.pop(key, None)
            if rounds is not None:
                rounds.forget(key)

    def served(self, key: Key) -> None:
        """`key` gave records: the others come first next time."""
        if self.rounds is None:
            self.partitions.move_to_end(key)
        else:
            self.rounds.served(key)


class FetchSessions:
    """All sessions of a broker."""

    def __init__(self, slots: int, new_id: Callable[[], int]) -> None:
        self._slots = slots
        self._new_id = new_id
        self._sessions: OrderedDict[int, Session] = OrderedDict()  # least recently used first
        self._of_brokers: dict[int, Session] = {}  # those of followers
        self.evictions = 0
        self.waiting = 0
        """Partitions of fetches of many that wait: they too are held in memory."""

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None and session.rounds is not None:
            session.rounds.close()
            if self._of_brokers.get(session.rounds.broker) is session:
                del self._of_brokers[session.rounds.broker]

    def open(
        self,
        partitions: OrderedDict[Key, Wanted],
        by_id: bool,
        now: float,
        rounds: Rounds | None = None,
    ) -> Session | None:
        """A new session, with `rounds` if a follower's; None when there is no place for it."""
        if rounds is not None:
            before = self._of_brokers.get(rounds.broker)
            if before is not None and before.rounds is not None:
                if before.rounds.epoch > rounds.epoch:
                    return None  # of an earlier life of the broker: it has to go without
                self.close(before.id)
        if not partitions or not self._make_room(len(partitions), now):
            return None
        session_id = self._new_id()
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._new_id()
        session = self._sessions[session_id] = Session(session_id, partitions, by_id, now, rounds)
        if rounds is not None:
            self._of_brokers[rounds.broker] = session
        return session

    def resume(
        self,
        session_id: int,
        epoch: int,
        by_id: bool,
        changed: Iterable[tuple[Key, Wanted]],
        forgotten: Iterable[Key],
        now: float,
    ) -> Session:
        """The session of an incremental fetch, brought up to date. Raises as Kafka answers."""
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        size = len(session.partitions)
        session.change(changed, forgotten)
        if len(session.partitions) >= max(FEW, size + 1) and not self.has_room(FEW):
            # It has grown beyond what can be remembered: its client has to begin anew.
            self.close(session_id)
            self.evictions += 1
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.epoch = 1 if epoch == MAX_EPOCH else epoch + 1
        session.used = now
        self._sessions.move_to_end(session_id)
        if not session.partitions:
            self.close(session_id)
        return session

    def has_room(self, size: int) -> bool:
        """Whether so many partitions more can be remembered. A few always can."""
        if size < FEW:
            return True
        remembered = sum(len(session.partitions) for session in self._sessions.values())
        return remembered + self.waiting + size <= MAX_PARTITIONS

    def _make_room(self, size: int, now: float) -> bool:
        if not self.has_room(size):
            return False
        if len(self._sessions) < self._slots:
            return True
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now - oldest.used <= EVICTION_IDLE:
            oldest = min(self._sessions.values(), key=lambda session: len(session.partitions))
            if len(oldest.partitions) >= size:
                return False
        self.close(oldest.id)
        self.evictions += 1
        return True
