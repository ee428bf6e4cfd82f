"""A consumer of the classic protocol, for tests of the state machines of groups.

`step` does the next thing a client would do and returns. Eager ones drop everything before they
join again; cooperative ones keep what they own, report it, give up what they are told to give up
and join again then. As a leader it assigns ranges, and leaves out what somebody else still owns; it
joins again when its topics have got more partitions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

from ottla.coordinator.group.commands import (
    Heartbeat,
    Join,
    Joined,
    JoinedMember,
    Leave,
    Leaver,
    Sync,
    Synced,
)
from ottla.coordinator.group.consumer_protocol import (
    read_assignment,
    read_subscription,
    write_assignment,
)
from ottla.coordinator.shard import Parked
from ottla.errors import ErrorCode, KafkaError
from ottla.testing.groups import CLIENT, GROUP, GroupWorld

One = tuple[str, int]


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def subscription(topics: Iterable[str], owned: Iterable[One] = (), *, version: int = 1) -> bytes:
    """What a consumer puts into JoinGroup, versions 0 and 1."""
    names = list(topics)
    out = struct.pack(">hi", version, len(names)) + b"".join(map(_text, names))
    out += struct.pack(">i", -1)
    if version:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(owned):
            by_topic.setdefault(topic, []).append(partition)
        out += struct.pack(">i", len(by_topic))
        for topic, partitions in by_topic.items():
            out += _text(topic) + struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return out


class ClassicConsumer:
    """One client."""

    def __init__(
        self,
        world: GroupWorld,
        *topics: str,
        cooperative: bool = False,
        instance_id: str | None = None,
        rebalance_timeout_ms: int = 60_000,
        session_timeout_ms: int = 30_000,
    ) -> None:
        self.world = world
        self.topics = topics
        self.cooperative = cooperative
        self.instance_id = instance_id
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        # what it knows
        self.member_id = ""
        self.generation = -1
        self.protocol_name: str | None = None
        self.owned: frozenset[One] = frozenset()
        self.is_stable = False
        self._leads = False
        self._sizes: list[int] = []  # of its topics, when it joined
        # what it waits for
        self._joining: Parked | None = None
        self._syncing: Parked | None = None

    def __repr__(self) -> str:
        return f"<{self.member_id or 'a newcomer'} at {self.generation} owns {sorted(self.owned)}>"

    @property
    def protocols(self) -> tuple[tuple[str, bytes], ...]:
        owned = self.owned if self.cooperative else ()
        return (("range", subscription(self.topics, owned)),)

    def step(self) -> None:
        """Whatever is next."""
        try:
            if self._joining is not None:
                self._await_join()
            elif self._syncing is not None:
                self._await_sync()
            elif self.is_stable and not (self._leads and self._sizes != self._current_sizes()):
                self.heartbeat()
            else:
                self.join()
        except KafkaError as error:
            self.refused(error.code)

    def refused(self, code: ErrorCode) -> None:
        self.is_stable = False
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            if not self.cooperative:
                self.owned = frozenset()
        elif not code.retriable:
            self.owned = frozenset()
            self.generation = -1
            if code is not ErrorCode.ILLEGAL_GENERATION:
                self.member_id = ""

    def lose_connection(self) -> None:
        """No answer will come: it asks again."""
        if self._joining is not None or self._syncing is not None:
            self._joining = self._syncing = None
            self.is_stable = False

    # ------------------------------------------------------------------ join

    def join(self) -> Any:
        """Send a Join; the reply, which may be a Parked."""
        if not self.cooperative:
            self.owned = frozenset()
        self.is_stable = False
        reply = self.world.runner.run(
            Join(
                GROUP,
                self.member_id,
                self.instance_id,
                CLIENT,
                self.session_timeout_ms,
                self.rebalance_timeout_ms,
                "consumer",
                self.protocols,
            )
        )
        if isinstance(reply, Parked):
            self._joining = reply
        else:
            self._joined(reply)
        return reply

    def _await_join(self) -> None:
        parked = self._joining
        assert parked is not None
        if self.world.runner.is_answered(parked):
            self._joining = None
            self._joined(self.world.runner.answer(parked))

    def _joined(self, reply: Joined) -> None:
        if reply.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = reply.member_id
            self.join()
            return
        if reply.error is not ErrorCode.NONE:
            raise KafkaError(reply.error)
        self.member_id = reply.member_id
        self.generation = reply.generation
        self.protocol_name = reply.protocol_name
        self._leads = reply.leader == reply.member_id
        self._sizes = self._current_sizes()
        assigns = self._leads and not reply.skip_assignment
        self.sync(self._assign(reply.members) if assigns else {})

    def _current_sizes(self) -> list[int]:
        topics = self.world.image.topics
        return [len(topics[each].partitions) if each in topics else 0 for each in self.topics]

    def _assign(self, members: Iterable[JoinedMember]) -> dict[str, bytes]:
        wants = {member.member_id: read_subscription(member.metadata) for member in members}
        owners = {
            (topic, partition): member
            for member, subscription in wants.items()
            for topic, partitions in subscription.owned
            for partition in partitions
        }
        shares: dict[str, dict[str, list[int]]] = {member: {} for member in wants}
        for topic, state in self.world.image.topics.items():
            readers = sorted(
                member for member, subscription in wants.items() if topic in subscription.topics
            )
            for partition in range(len(state.partitions) if readers else 0):
                member = readers[partition * len(readers) // len(state.partitions)]
                if owners.get((topic, partition), member) == member:
                    shares[member].setdefault(topic, []).append(partition)
        return {member: write_assignment(share, 1) for member, share in shares.items()}

    # ------------------------------------------------------------------ sync

    def sync(self, assignments: Mapping[str, bytes]) -> None:
        reply = self.world.runner.run(
            Sync(
                GROUP,
                self.member_id,
                self.instance_id,
                self.generation,
                "consumer",
                self.protocol_name,
                tuple(assignments.items()),
            )
        )
        if isinstance(reply, Parked):
            self._syncing = reply
        else:
            self._synced(reply)

    def _await_sync(self) -> None:
        parked = self._syncing
        assert parked is not None
        if self.world.runner.is_answered(parked):
            self._syncing = None
            self._synced(self.world.runner.answer(parked))

    def _synced(self, reply: Synced) -> None:
        given = read_assignment(reply.assignment) if reply.assignment else {}
        assigned = frozenset((topic, partition) for topic in given for partition in given[topic])
        revoked = self.owned - assigned
        self.owned = assigned
        self.is_stable = True
        if revoked and self.cooperative:
            self.join()

    # ------------------------------------------------------------------ the rest

    def heartbeat(self) -> None:
        beat = Heartbeat(GROUP, self.member_id, self.instance_id, self.generation)
        code = self.world.runner.run(beat)
        if code:
            raise KafkaError(code)

    def leave(self) -> list[ErrorCode]:
        self.owned = frozenset()
        self.is_stable = False
        codes: list[ErrorCode] = self.world.runner.run(
            Leave(GROUP, (Leaver(self.member_id, self.instance_id),))
        )
        return codes
