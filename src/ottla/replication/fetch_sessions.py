"""Incremental fetch sessions (KIP-227): a consumer of many partitions says only what changed.

A session remembers, per partition, what the client wants and what it was last told. A response of
an incremental fetch then holds only the partitions with news: records, a moved high watermark or
log start, or an error. Partitions that gave records go to the end of the line, so that a byte
limit does not starve the last ones.

The table holds `slots` sessions. A new one takes the place of the least recently used one if that
has been idle for two minutes, or if it is smaller than the newcomer; otherwise the client gets no
session and goes on with full fetches, which always work.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ottla.errors import ErrorCode, KafkaError

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EVICTION_IDLE = 120.0
MAX_EPOCH = 2**31 - 1
FEW = 1000
MAX_PARTITIONS = 1 << 19
"""Of all sessions and waiting fetches together, not counting those with few: some 350 MB."""

# A partition as the client named it: by topic id from version 13 on, by name before.
Key = tuple[str | bytes, int]


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

    __slots__ = ("by_id", "epoch", "id", "partitions", "used")

    def __init__(
        self, session_id: int, partitions: OrderedDict[Key, Wanted], by_id: bool, now: float
    ) -> None:
        self.id = session_id
        self.partitions = partitions
        self.by_id = by_id
        self.epoch = 1
        self.used = now

    def served(self, key: Key) -> None:
        """`key` gave records: the others come first next time."""
        self.partitions.move_to_end(key)


class FetchSessions:
    """All sessions of a broker."""

    def __init__(self, slots: int, new_id: Callable[[], int]) -> None:
        self._slots = slots
        self._new_id = new_id
        self._sessions: OrderedDict[int, Session] = OrderedDict()  # least recently used first
        self.evictions = 0
        self.waiting = 0
        """Partitions of fetches of many that wait: they too are held in memory."""

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def close(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)

    def open(self, partitions: OrderedDict[Key, Wanted], by_id: bool, now: float) -> Session | None:
        """A new session, or None when there is no place for it."""
        if not partitions or not self._make_room(len(partitions), now):
            return None
        session_id = self._new_id()
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._new_id()
        session = self._sessions[session_id] = Session(session_id, partitions, by_id, now)
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
        for key, wanted in changed:
            known = session.partitions.get(key)
            if known is None:
                session.partitions[key] = wanted
            else:
                known.update(wanted)
        for key in forgotten:
            session.partitions.pop(key, None)
        if len(session.partitions) >= FEW and not self.has_room(FEW):
            # It has grown beyond what can be remembered: its client has to begin anew.
            del self._sessions[session_id]
            self.evictions += 1
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.epoch = 1 if epoch == MAX_EPOCH else epoch + 1
        session.used = now
        self._sessions.move_to_end(session_id)
        if not session.partitions:
            del self._sessions[session_id]
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
        del self._sessions[oldest.id]
        self.evictions += 1
        return True
