"""Thousands of group members in one process: sockets with one request in flight each, one epoll.

A member costs as little as Python allows: its frames are prepared, an answer is read no further
than it matters. Members do not wait for their heartbeat interval: a member that has something to
learn asks at once, so what is measured is the broker and not a timer.

A classic group has settled when all the members it should have were in one generation and hold
their assignment of it. A consumer group has settled when all its members have reached one epoch,
every partition is owned and nobody has less than an even share.
"""

from __future__ import annotations

import itertools
import select
import socket
import time
import uuid
from typing import TYPE_CHECKING, Protocol

from bench.load import frames, group_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_SESSION_MS = 300_000
_PATIENCE = 120.0
_READ = 1 << 18
_MEMBER_ID_REQUIRED = 79
_REBALANCE = 27
_OLD_GENERATION = 22
# The coordinator is only just beginning: loading, not yet there, not yet known as such.
_NOT_YET = {14, 15, 16}


class Member(Protocol):
    """One connection and what it waits for."""

    sock: socket.socket
    part: bytes
    """What has come of an answer that is not whole yet."""

    def answered(self, answer: bytes) -> None: ...


class Crowd:
    """All the members, and the loop that moves them."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._coordinators: dict[str, tuple[str, int]] = {}
        self._poll = select.epoll()
        self._members: dict[int, Member] = {}
        self.unsettled = 0

    def connect(self, member: Member, group: str) -> socket.socket:
        """To the coordinator of its group."""
        if group not in self._coordinators:
            self._coordinators[group] = wait_coordinator(self._bootstrap, group)
        sock = socket.create_connection(self._coordinators[group], 30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._members[sock.fileno()] = member
        self._poll.register(sock.fileno(), select.EPOLLIN)
        return sock

    def settle(self) -> None:
        """Move everybody until all groups have settled."""
        deadline = time.monotonic() + _PATIENCE
        while self.unsettled:
            self.turn(1.0)
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.unsettled} groups never settled")

    def turn(self, timeout: float) -> int:
        """Hand out what has arrived; the number of answers."""
        members = self._members
        answers = 0
        for descriptor, _ in self._poll.poll(timeout):
            member = members[descriptor]
            data = member.sock.recv(_READ)
            if not data:
                raise RuntimeError("the broker closed the connection")
            if member.part:
                data = member.part + data
            if len(data) < 4 or int.from_bytes(data[:4], "big") > len(data) - 4:
                member.part = data
                continue
            member.part = b""
            answers += 1
            member.answered(data[4:])
        return answers

    def close(self) -> None:
        for member in self._members.values():
            member.sock.close()
        self._poll.close()


class Group(Protocol):
    """A group as the measurements see it: all but one of its members are there to stay."""

    def form(self) -> None:
        """Begin to bring in all members but the last."""
        ...

    def arrive(self) -> None:
        """Begin to bring in the last."""
        ...

    def depart(self) -> None:
        """Begin to let the last go."""
        ...

    def heartbeats(self) -> list[tuple[socket.socket, bytes]]:
        """The steady heartbeat of each member that is in."""
        ...


# ---------------------------------------------------------------------- the classic protocol


class ClassicGroup:
    """A group whose leader shares out the partitions of one topic."""

    def __init__(self, crowd: Crowd, name: str, topic: str, members: int, partitions: int) -> None:
        self.crowd = crowd
        self.name = name
        self.topic = topic
        self._shares = _even_shares(topic, members, partitions)
        self.members = [ClassicMember(self) for _ in range(members)]
        self.expected = 0
        self.generation = -1
        self.size = 0
        """Of the generation, as its leader has learnt it."""
        self._synced = 0

    def form(self) -> None:
        self._expect(len(self.members) - 1)
        for member in self.members[:-1]:
            member.join()

    def arrive(self) -> None:
        self._expect(len(self.members))
        self.members[-1].join()

    def depart(self) -> None:
        self._expect(len(self.members) - 1)
        self.members[-1].leave()

    def heartbeats(self) -> list[tuple[socket.socket, bytes]]:
        return [(item.sock, item.steady_heartbeat()) for item in self.members if item.id]

    def _expect(self, members: int) -> None:
        self.expected = members
        self._synced = 0
        self.size = 0
        self.crowd.unsettled += 1

    def known(self, newcomer: ClassicMember) -> None:
        """A member is about to join with its id: the others ask what is new."""
        self.wake(newcomer)

    def wake(self, but: ClassicMember) -> None:
        for member in self.members:
            if member is not but and member.idle and member.id:
                member.heartbeat()

    def assignments(self) -> bytes:
        ids = [member.id for member in self.members if member.id]
        return group_frames.assignments(dict(zip(ids, self._shares, strict=False)))

    def synced(self, generation: int) -> bool:
        """A member has its assignment; whether it may rest."""
        if generation != self.generation:
            return False
        self._synced += 1
        if self._synced == self.expected:
            self.crowd.unsettled -= 1
        return self.size >= self.expected

    def formed(self, generation: int, size: int) -> None:
        self.generation, self.size, self._synced = generation, size, 0


class ClassicMember:
    """JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

    def __init__(self, group: ClassicGroup) -> None:
        self.part = b""
        self.id = b""
        self.idle = True
        self._group = group
        self._generation = -1
        self.sock = group.crowd.connect(self, group.name)
        self._read: Callable[[bytes], None] = self._joined
        self._learn(b"")

    def _learn(self, member_id: bytes) -> None:
        """Prepare the frames of this id."""
        group = self._group
        self.id = member_id
        self._join = group_frames.join_group(
            group.name, member_id, group.topic, session_ms=_SESSION_MS, rebalance_ms=_SESSION_MS
        )
        self._sync = group_frames.sync_group(group.name, member_id)
        self._heartbeat = group_frames.heartbeat(group.name, member_id)

    def answered(self, answer: bytes) -> None:
        self._read(answer)

    def join(self) -> None:
        self.idle = False
        self._read = self._joined
        self.sock.send(self._join)

    def heartbeat(self) -> None:
        self.idle = False
        self._read = self._beaten
        self.sock.send(self._heartbeat.with_number(self._generation))

    def steady_heartbeat(self) -> bytes:
        self._read = _check_error
        return self._heartbeat.with_number(self._generation)

    def leave(self) -> None:
        self.idle = False
        self._read = self._left
        self.sock.send(group_frames.leave_group(self._group.name, self.id))

    def _joined(self, answer: bytes) -> None:
        joined = group_frames.read_joined(answer)
        if joined.error == _MEMBER_ID_REQUIRED:
            self._learn(joined.member)
            self.join()
            self._group.known(self)
        elif joined.error in _NOT_YET:
            time.sleep(0.01)
            self.join()
        elif joined.error:
            raise RuntimeError(f"JoinGroup was answered with error {joined.error}")
        else:
            self._generation = joined.generation
            sync = self._sync
            if joined.leader == joined.member:
                group = self._group
                group.formed(joined.generation, joined.members)
                sync = group_frames.sync_group(group.name, self.id, group.assignments())
            self._read = self._synced
            self.sock.sendall(sync.with_number(joined.generation))

    def _synced(self, answer: bytes) -> None:
        error = group_frames.read_error(answer)
        if error in (_REBALANCE, _OLD_GENERATION):
            self.join()
        elif error:
            raise RuntimeError(f"SyncGroup was answered with error {error}")
        elif self._group.synced(self._generation):
            self.idle = True
        else:
            self.heartbeat()

    def _beaten(self, answer: bytes) -> None:
        error = group_frames.read_error(answer)
        if error == _REBALANCE:
            self.join()
        elif error:
            raise RuntimeError(f"Heartbeat was answered with error {error}")
        else:
            self.heartbeat()

    def _left(self, answer: bytes) -> None:
        _check_error(answer)
        self._learn(b"")
        self.idle = True
        self._group.wake(self)


def _even_shares(topic: str, members: int, partitions: int) -> list[bytes]:
    """What `range` would give: shares for so many members that none is left empty-handed."""
    bounds = [index * partitions // members for index in range(members + 1)]
    return [
        group_frames.share(topic, range(begin, end)) for begin, end in itertools.pairwise(bounds)
    ]


# ---------------------------------------------------------------------- the consumer protocol


class ConsumerGroup:
    """A group whose partitions the broker shares out."""

    def __init__(self, crowd: Crowd, name: str, topic: str, members: int, partitions: int) -> None:
        self.crowd = crowd
        self.name = name
        self.topic = topic
        self._partitions = partitions
        self.members = [ConsumerMember(self) for _ in range(members)]
        self.asking = 0
        """Members that wait for an answer."""
        self._expected = 0

    def form(self) -> None:
        self._expect(len(self.members) - 1)
        for member in self.members[:-1]:
            member.join()

    def arrive(self) -> None:
        self._expect(len(self.members))
        self.members[-1].join()

    def depart(self) -> None:
        self._expect(len(self.members) - 1)
        self.members[-1].leave()

    def heartbeats(self) -> list[tuple[socket.socket, bytes]]:
        return [(item.sock, item.steady_heartbeat()) for item in self.members if item.epoch > 0]

    def _expect(self, members: int) -> None:
        self._expected = members
        self.crowd.unsettled += 1

    def quiet(self) -> None:
        """Nobody waits for an answer: it has settled, or those ask again who have to learn more."""
        inside = [member for member in self.members if member.epoch > 0]
        least = self._partitions // self._expected
        newest = max((member.epoch for member in inside), default=0)
        behind = [member for member in inside if member.epoch < newest]
        poor = [member for member in inside if member.owns < least]
        owned = sum(member.owns for member in inside)
        if len(inside) == self._expected and not behind and not poor and owned == self._partitions:
            self.crowd.unsettled -= 1
            return
        for member in behind or poor or inside:
            member.heartbeat()


class ConsumerMember:
    """ConsumerGroupHeartbeat."""

    def __init__(self, group: ConsumerGroup) -> None:
        self.part = b""
        self.epoch = 0
        self.owns = 0
        self._group = group
        self._id = uuid.uuid4().hex.encode()
        self._join = group_frames.consumer_join(
            group.name, self._id, group.topic, rebalance_ms=_SESSION_MS
        )
        self._heartbeat = group_frames.consumer_heartbeat(group.name, self._id)
        self._steady = False
        self.sock = group.crowd.connect(self, group.name)

    def join(self) -> None:
        self.epoch = 0
        self._ask(self._join)

    def heartbeat(self) -> None:
        self._ask(self._heartbeat.with_number(self.epoch))

    def steady_heartbeat(self) -> bytes:
        self._steady = True
        return self._heartbeat.with_number(self.epoch)

    def leave(self) -> None:
        self._ask(self._heartbeat.with_number(-1))

    def _ask(self, frame: bytes) -> None:
        self._group.asking += 1
        self.sock.send(frame)

    def answered(self, answer: bytes) -> None:
        beaten = group_frames.read_beaten(answer)
        if self._steady:
            if beaten.error or beaten.assignment is not None:
                raise RuntimeError(f"a steady heartbeat brought news (error {beaten.error})")
            return
        group = self._group
        group.asking -= 1
        if beaten.error in _NOT_YET and not self.epoch:
            time.sleep(0.01)
            self.join()
            return
        if beaten.error:
            raise RuntimeError(f"ConsumerGroupHeartbeat was answered with error {beaten.error}")
        self.epoch = beaten.epoch
        if beaten.epoch < 0:
            self.owns = 0
        elif beaten.assignment is not None and beaten.partitions != self.owns:
            # Taken over, or given up, at once; and said at once.
            self.owns = beaten.partitions
            owned = group_frames.consumer_heartbeat(group.name, self._id, beaten.assignment)
            self._ask(owned.with_number(self.epoch))
        if not group.asking:
            group.quiet()


# ---------------------------------------------------------------------- both

PROTOCOLS: dict[str, Callable[[Crowd, str, str, int, int], Group]] = {
    "classic": ClassicGroup,
    "consumer": ConsumerGroup,
}


def make_groups(
    crowd: Crowd, protocol: str, count: int, *, topic: str, members: int, partitions: int
) -> list[Group]:
    """New groups, all of whose members but one have joined and settled."""
    tag = uuid.uuid4().hex[:8]
    groups = [
        PROTOCOLS[protocol](crowd, f"{tag}-{index}", topic, members, partitions)
        for index in range(count)
    ]
    everyone(crowd, groups, "form")
    return groups


def each(crowd: Crowd, groups: Iterable[Group], what: str) -> list[float]:
    """One group after the other does it; how long each took to settle."""
    taken = []
    for group in groups:
        began = time.perf_counter()
        getattr(group, what)()
        crowd.settle()
        taken.append(time.perf_counter() - began)
    return taken


def everyone(crowd: Crowd, groups: Iterable[Group], what: str) -> None:
    """All groups do the same at once; return when they have settled."""
    for group in groups:
        getattr(group, what)()
    crowd.settle()


def steady(
    crowd: Crowd, groups: Sequence[Group], interval: float, running: Callable[[], bool]
) -> int:
    """Every member's heartbeat once an interval, evenly spread; the number that were answered."""
    beats = [beat for group in groups for beat in group.heartbeats()]
    pause = interval / len(beats)
    answered = sent = 0
    begin = time.monotonic()
    while running():
        due = int((time.monotonic() - begin) / pause)
        while sent < due:
            sock, frame = beats[sent % len(beats)]
            sock.send(frame)
            sent += 1
        answered += crowd.turn(max(0.0, begin + (sent + 1) * pause - time.monotonic()))
    deadline = time.monotonic() + _PATIENCE
    while answered < sent:
        answered += crowd.turn(1.0)
        if time.monotonic() > deadline:
            raise RuntimeError(f"{sent - answered} heartbeats were never answered")
    return answered


def _check_error(answer: bytes) -> None:
    error = group_frames.read_error(answer)
    if error:
        raise RuntimeError(f"the broker answered error {error}")


def wait_coordinator(bootstrap: str, group: str = "anybody") -> tuple[str, int]:
    """Where a group's coordinator is, once there is one: asking for it makes its topic."""
    host, _, port = bootstrap.rpartition(":")
    deadline = time.monotonic() + _PATIENCE
    with socket.create_connection((host, int(port)), 30) as sock:
        while True:
            sock.sendall(group_frames.find_coordinator(group))
            answer = frames.read_frame(sock)
            if group_frames.read_error(answer) == 0:
                return group_frames.read_coordinator(answer)
            if time.monotonic() > deadline:
                raise RuntimeError("there is no group coordinator")
            time.sleep(0.1)
