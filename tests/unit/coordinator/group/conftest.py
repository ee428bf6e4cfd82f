"""Members of classic groups in front of a shard without a host."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import Any

import pytest

from ottla.config.broker import BrokerConfig
from ottla.coordinator.group import journal
from ottla.coordinator.group.commands import Heartbeat, Join, Joined, Leave, Leaver, Sync
from ottla.coordinator.group.group import Client, ShardState
from ottla.coordinator.group.shard import GroupShard
from ottla.coordinator.shard import Parked
from ottla.errors import ErrorCode, KafkaError
from ottla.testing.shards import ShardRunner

DELAY_MS = 3_000


def subscription(*topics: str) -> bytes:
    names = b"".join(struct.pack(">h", len(each)) + each.encode() for each in topics)
    return struct.pack(">hi", 0, len(topics)) + names + b"\xff\xff\xff\xff"


class ClassicClient:
    """One client of a classic group; it does what it is told and remembers what it was told."""

    def __init__(self, runner: ShardRunner[GroupShard], name: str, group: str, **fields: Any):
        self.runner = runner
        self.group = group
        self.id = ""
        self.generation = -1
        self.waiting: Parked | None = None
        self.fields: dict[str, Any] = {
            "instance_id": None,
            "client": Client(name, "/127.0.0.1"),
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": (("range", subscription("t")),),
        } | fields

    def join(self, **fields: Any) -> Joined | None:
        """The answer, or None while it waits; an id that is asked for is taken."""
        reply = self._join(fields)
        if isinstance(reply, Joined) and reply.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.id = reply.member_id
            reply = self._join(fields)
        if isinstance(reply, Parked):
            self.waiting = reply
            return self.joined() if self.runner.is_answered(reply) else None
        return self._note(reply)

    def _join(self, fields: dict[str, Any]) -> Any:
        merged = self.fields | fields
        return self.runner.run(Join(self.group, self.id, **merged))

    def joined(self) -> Joined:
        """The answer to the Join that waited."""
        assert self.waiting is not None
        return self._note(self.runner.answer(self.waiting))

    def _note(self, reply: Joined) -> Joined:
        if reply.error is ErrorCode.NONE:
            self.id, self.generation = reply.member_id, reply.generation
        return reply

    def sync(self, assignments: dict[str, bytes] | None = None, **fields: Any) -> Any:
        """The answer, or None while it waits."""
        command: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.id,
            "instance_id": self.fields["instance_id"],
            "generation": self.generation,
            "assignments": tuple((assignments or {}).items()),
        }
        reply = self.runner.run(Sync(**(command | fields)))
        if isinstance(reply, Parked):
            self.waiting = reply
            return self.runner.answer(reply) if self.runner.is_answered(reply) else None
        return reply

    def synced(self) -> Any:
        assert self.waiting is not None
        return self.runner.answer(self.waiting)

    def heartbeat(self) -> None:
        instance = self.fields["instance_id"]
        code = self.runner.run(Heartbeat(self.group, self.id, instance, self.generation))
        if code:
            raise KafkaError(code)

    def leave(self) -> ErrorCode:
        leaver = Leaver(self.id, self.fields["instance_id"])
        (code,) = self.runner.run(Leave(self.group, (leaver,)))
        return ErrorCode(code)


@pytest.fixture
def settings() -> dict[str, Any]:
    """Broker settings, to be changed while the shard runs."""
    return {}


@pytest.fixture
def runner(settings: dict[str, Any]) -> ShardRunner[GroupShard]:
    numbers = itertools.count(1)

    def ids() -> str:
        return str(next(numbers))

    def make() -> GroupShard:
        state = ShardState(config=lambda: BrokerConfig(**settings), new_id=ids)
        return GroupShard(state)

    return ShardRunner(make, GroupShard.validate, journal.decode)


@pytest.fixture
def client(runner: ShardRunner[GroupShard]) -> Callable[..., ClassicClient]:
    def make(name: str = "client", group: str = "g", **fields: Any) -> ClassicClient:
        return ClassicClient(runner, name, group, **fields)

    return make


@pytest.fixture
def stable(
    runner: ShardRunner[GroupShard], client: Callable[..., ClassicClient]
) -> Callable[..., list[ClassicClient]]:
    """`stable(3)`: the members of a group that has formed, the leader first."""

    def form(count: int = 1, **fields: Any) -> list[ClassicClient]:
        members = [client(f"c{n}", **fields) for n in range(count)]
        for member in members:
            assert member.join() is None
        while not all(runner.is_answered(each.waiting) for each in members if each.waiting):
            runner.advance(DELAY_MS)
        for member in members:
            assert member.joined().error is ErrorCode.NONE
        for member in members[1:]:
            assert member.sync() is None
        members[0].sync({each.id: b"part %d" % n for n, each in enumerate(members)})
        for number, member in enumerate(members[1:], 1):
            assert member.synced().assignment == b"part %d" % number
        return members

    return form
