"""Group safety in virtual time: consumers that crash, pause, leave and come back, in every order.

One group of the classic protocol on one shard. Each consumer behaves as a real one does: joins,
assigns when it leads, syncs, fetches what is committed, works, commits, heartbeats, and gives up
what it owns when it is told to join again. Requests and answers take time and get lost; consumers
vanish, fall asleep in the middle of anything and wake up believing what they believed before;
the coordinator restarts from its log and fails to write. After a while the trouble ends, and what
must be true by then is checked as well.

Some groups rebalance cooperatively (KIP-429): their members keep what they own while they join,
and hand a partition over in two steps. The coordinator must not care. They have no static members:
a successor would not know what its predecessor was about to give up, which is for clients to mend.

A seed says everything: `pytest -k "seed[17]"` repeats a failure. OTTLA_SIMULATION_SEEDS runs more.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
import struct
from collections import defaultdict
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import pytest

from ottla.config.broker import BrokerConfig
from ottla.coordinator.group import journal
from ottla.coordinator.group.classic_group import ClassicGroup, State
from ottla.coordinator.group.commands import (
    CommitOffsets,
    FetchedTopic,
    FetchOffsets,
    FetchTopic,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Leaver,
    PartitionCommit,
    Sync,
    Synced,
)
from ottla.coordinator.group.group import Client, ShardState
from ottla.coordinator.group.shard import GroupShard
from ottla.coordinator.shard import Parked
from ottla.errors import ErrorCode, KafkaError
from ottla.testing.shards import ShardRunner

SEEDS = int(os.environ.get("OTTLA_SIMULATION_SEEDS", "80"))
PARTITIONS = 6
GROUP, TOPIC = "g", "t"
HEARTBEAT_MS = 1_000
REQUEST_MS = 20_000
TROUBLE_MS, CALM_MS = 90_000, 120_000
SUBSCRIPTION = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"

Life = Generator[Any, Any, None]


# --- what must hold -------------------------------------------------------------------------------


class OneOwner:
    """At no generation do two members own a partition.

    A static member and its successor are one: the latter takes the place of the former, who is
    fenced (which `CommitsStand` looks after).
    """

    def __init__(self) -> None:
        self.owners: dict[tuple[int, int], str] = {}

    def owns(self, generation: int, identity: str, partitions: frozenset[int]) -> None:
        for partition in partitions:
            owner = self.owners.setdefault((generation, partition), identity)
            assert owner == identity, (
                f"generation {generation}: {owner} and {identity} both own {partition}"
            )


class OneAssignment:
    """What a member of a generation was given does not change while the generation lasts."""

    def __init__(self) -> None:
        self.given: dict[tuple[int, str], bytes] = {}

    def synced(self, generation: int, identity: str, assignment: bytes) -> None:
        before = self.given.setdefault((generation, identity), assignment)
        assert before == assignment, f"{identity} of {generation} had {before}, now {assignment}"


class CommitsStand:
    """A committed offset is neither lost nor moved back, and only owners that live commit."""

    def __init__(self, owners: OneOwner) -> None:
        self.owners = owners
        self.committed: dict[int, int] = defaultdict(int)

    def accepted(self, generation: int, identity: str, partition: int, offset: int) -> None:
        owner = self.owners.owners.get((generation, partition))
        assert owner == identity, f"{identity} committed {partition}, owned by {owner}"
        before = self.committed[partition]
        assert offset >= before, f"partition {partition} went from {before} back to {offset}"
        self.committed[partition] = offset

    def fetched(self, topics: list[FetchedTopic]) -> None:
        for partition, committed, _ in (each for topic in topics for each in topic.partitions):
            offset = committed.offset if committed else 0
            known = self.committed[partition]
            assert offset >= known, f"partition {partition}: {known} was committed, not {offset}"


class EverythingIsOwned:
    """When the dust has settled every partition has an owner among the living."""

    def settled(self, world: World) -> None:
        group = world.runner.shard.groups[GROUP]
        assert isinstance(group, ClassicGroup)
        living = [each for each in world.consumers if each.alive]
        if not living:
            assert group.state is State.EMPTY
            return
        assert group.state is State.STABLE, group
        assert {each.id for each in living} == set(group.members)
        owned = [partition for each in living for partition in each.owned]
        assert sorted(owned) == list(range(PARTITIONS)), owned
        assert {each.generation for each in living} == {group.generation}


# --- the world ------------------------------------------------------------------------------------


@dataclass
class Consumer:
    """One process. `life` yields commands, and times to sleep; it is resumed with the answers."""

    name: str
    instance: str | None
    rng: random.Random
    world: World
    id: str = ""
    generation: int = -1
    owned: frozenset[int] = frozenset()
    positions: dict[int, int] = field(default_factory=dict)
    alive: bool = True
    paused: bool = False
    inbox: list[Any] = field(default_factory=list)
    turn: int = 0

    def start(self) -> None:
        self.process = self.life()
        self.world.step(self, None)

    def life(self) -> Life:  # noqa: C901 - the life of a client, told in its order
        while True:
            if not self.world.cooperative:
                self.owned, self.positions = frozenset(), {}
            joined = yield self._join()
            if not isinstance(joined, Joined):
                yield self.rng.randrange(50, 500)
                continue
            if joined.error is not ErrorCode.NONE:
                if joined.error is ErrorCode.MEMBER_ID_REQUIRED:
                    self.id = joined.member_id
                elif joined.error is ErrorCode.UNKNOWN_MEMBER_ID:
                    self._lost()
                elif joined.error is ErrorCode.FENCED_INSTANCE_ID:
                    self.alive = False
                    return
                else:
                    yield self.rng.randrange(50, 500)
                continue
            self.id, self.generation = joined.member_id, joined.generation
            synced = yield self._sync(joined)
            if not isinstance(synced, Synced):
                if self._is_fenced(synced):
                    return
                continue
            identity = self.instance or self.id
            given = frozenset(synced.assignment)
            self.world.one_assignment.synced(self.generation, identity, synced.assignment)
            self.world.one_owner.owns(self.generation, identity, given)
            revoked = self.owned - given
            self.owned = given
            self.positions = {each: at for each, at in self.positions.items() if each in given}
            if revoked:
                continue  # so that others can be given what it has given up
            yield from self._work()
            if not self.alive:
                return

    def _lost(self) -> None:
        """It is a member no more, and whatever it owned is somebody else's by now."""
        self.id, self.generation = "", -1
        self.owned, self.positions = frozenset(), {}

    def _join(self) -> Join:
        return Join(
            GROUP,
            self.id,
            self.instance,
            Client(self.name, "/10.0.0.1"),
            self.world.session_ms,
            self.world.rebalance_ms,
            "consumer",
            (("coop", self._claim()),) if self.world.cooperative else (("eager", SUBSCRIPTION),),
        )

    def _claim(self) -> bytes:
        """What it owns and since which generation: the later claim is the right one."""
        return struct.pack(">i", self.generation) + bytes(sorted(self.owned))

    def _sync(self, joined: Joined) -> Sync:
        assignments: tuple[tuple[str, bytes], ...] = ()
        if joined.leader == self.id and not joined.skip_assignment:
            shares = self._cooperative(joined) if self.world.cooperative else self._eager(joined)
            assignments = tuple((each, bytes(share)) for each, share in shares.items())
        return Sync(
            GROUP,
            self.id,
            self.instance,
            self.generation,
            "consumer",
            joined.protocol_name,
            assignments,
        )

    def _eager(self, joined: Joined) -> dict[str, list[int]]:
        members = [each.member_id for each in joined.members]
        self.rng.shuffle(members)
        return {each: list(range(n, PARTITIONS, len(members))) for n, each in enumerate(members)}

    def _cooperative(self, joined: Joined) -> dict[str, list[int]]:
        """Everybody keeps its fair share; what is above it goes to others the next time."""
        claims: dict[int, tuple[int, str]] = {}
        for each in joined.members:
            (generation,) = struct.unpack_from(">i", each.metadata)
            for partition in each.metadata[4:]:
                claims[partition] = max(
                    claims.get(partition, (-2, "")), (generation, each.member_id)
                )
        shares: dict[str, list[int]] = {each.member_id: [] for each in joined.members}
        fair = -(-PARTITIONS // len(shares))
        for partition, (_, owner) in claims.items():
            if len(shares[owner]) < fair:
                shares[owner].append(partition)
        for partition in set(range(PARTITIONS)) - claims.keys():
            min(shares.values(), key=len).append(partition)
        return shares

    def _work(self) -> Life:  # noqa: C901 - one branch for each answer
        """Until something says that the generation is over."""
        new = tuple(sorted(self.owned - self.positions.keys()))
        if new:
            fetched = yield FetchOffsets(GROUP, (FetchTopic(TOPIC, new),))
            if isinstance(fetched, KafkaError):
                self.owned = frozenset(self.positions)
                return
            ((_, partitions),) = fetched
            for each in partitions:
                self.positions[each.partition] = each.committed.offset if each.committed else 0
        while True:
            yield self.rng.randrange(HEARTBEAT_MS // 2, HEARTBEAT_MS)
            for partition in self.positions:
                self.positions[partition] += self.rng.randrange(3)
            if self.positions and self.rng.random() < 0.6:
                outcome = yield self._commit()
                if isinstance(outcome, KafkaError) and self._is_over(outcome):
                    return
            beat = yield Heartbeat(GROUP, self.id, self.instance, self.generation)
            if beat is ErrorCode.REBALANCE_IN_PROGRESS:
                return
            if isinstance(beat, KafkaError) and self._is_over(beat):
                return
            if self.rng.random() < self.world.leave_chance and self.instance is None:
                yield Leave(GROUP, (Leaver(self.id),))
                self._lost()
                yield self.rng.randrange(100, 10_000)
                return

    def _is_over(self, error: KafkaError) -> bool:
        if self._is_fenced(error):
            return True
        if error.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._lost()
            return True
        return error.code is ErrorCode.REBALANCE_IN_PROGRESS

    def _commit(self) -> CommitOffsets:
        return CommitOffsets(
            GROUP,
            tuple(PartitionCommit(TOPIC, each, at) for each, at in self.positions.items()),
            self.id,
            self.instance,
            self.generation,
        )

    def _is_fenced(self, error: Any) -> bool:
        if isinstance(error, KafkaError) and error.code is ErrorCode.FENCED_INSTANCE_ID:
            self.alive = False
            self.owned = frozenset()
            return True
        return False


class World:
    """The coordinator, the consumers, the network between them, and all the trouble."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        numbers = itertools.count(1)
        config = BrokerConfig(group_initial_rebalance_delay_ms=self.rng.choice([0, 500, 3_000]))

        def make() -> GroupShard:
            return GroupShard(ShardState(config=lambda: config, new_id=lambda: str(next(numbers))))

        self.runner: ShardRunner[GroupShard] = ShardRunner(
            make, GroupShard.validate, journal.decode
        )
        self.now = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._parked: dict[Parked, tuple[Consumer, int]] = {}
        self.one_owner = OneOwner()
        self.one_assignment = OneAssignment()
        self.commits = CommitsStand(self.one_owner)
        self.cooperative = self.rng.random() < 0.5
        self.session_ms = self.rng.choice([6_000, 12_000, 30_000])
        self.rebalance_ms = self.rng.choice([4_000, 8_000, 20_000])
        self.loss = self.rng.choice([0.0, 0.02, 0.1])
        self.leave_chance = self.rng.choice([0.0, 0.01, 0.05])
        self.consumers: list[Consumer] = []
        for number in range(self.rng.randrange(1, 6)):
            static = self.rng.random() < 0.3 and not self.cooperative
            instance = f"i{number}" if static else None
            self.spawn(f"c{number}", instance)

    def spawn(self, name: str, instance: str | None) -> None:
        each = Consumer(name, instance, random.Random(self.rng.random()), self)
        self.consumers.append(each)
        self.at(self.rng.randrange(5_000), each.start)

    # -- time

    def at(self, delay: int, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), call))

    def run_until(self, end: int) -> None:
        while self._events and self._events[0][0] <= end:
            when, _, call = heapq.heappop(self._events)
            self.pass_time(when)
            call()
        self.pass_time(end)

    def pass_time(self, when: int) -> None:
        """The shard's time-outs come in between, each at its time."""
        while (due := self.runner.shard.next_due_ms) is not None and due <= when:
            self.runner.advance(max(0, due - self.runner.ms))
            self.deliver_answers()
        self.runner.advance(when - self.runner.ms)
        self.now = when

    # -- requests

    def step(self, each: Consumer, value: Any) -> None:
        """Resume a consumer with an answer; it goes on to its next request or sleep."""
        if not each.alive:
            return
        if each.paused:
            each.inbox.append(value)
            return
        try:
            step = next(each.process) if value is None else each.process.send(value)
        except StopIteration:
            return
        each.turn += 1
        turn = each.turn
        if isinstance(step, int):
            self.at(step, lambda: self.resume(each, turn, ErrorCode.NONE))
            return
        if self.rng.random() >= self.loss:
            self.at(self.rng.randrange(1, 40), lambda: self.arrive(each, turn, step))
        timed_out = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        self.at(REQUEST_MS, lambda: self.resume(each, turn, timed_out))

    def resume(self, each: Consumer, turn: int, value: Any) -> None:
        if each.turn == turn:
            each.turn += 1
            self.step(each, value)

    def arrive(self, each: Consumer, turn: int, command: Any) -> None:
        """A request reaches the coordinator, even when its sender is gone by now."""
        try:
            reply = self.runner.run(command)
        except KafkaError as error:
            reply = error
        if isinstance(command, CommitOffsets) and isinstance(reply, list):
            group = self.runner.shard.groups[GROUP]
            assert isinstance(group, ClassicGroup)
            assert command.member_id in group.members, "a commit of somebody who was removed"
            assert command.epoch == group.generation, "a commit of an old generation"
            identity = command.instance_id or command.member_id
            for part, code in zip(command.partitions, reply, strict=True):
                assert code is ErrorCode.NONE
                self.commits.accepted(command.epoch, identity, part.partition, part.offset)
        if isinstance(command, FetchOffsets) and isinstance(reply, list):
            self.commits.fetched(reply)
        if isinstance(reply, Parked):
            self._parked[reply] = (each, turn)
        else:
            self.answer(each, turn, reply)
        self.deliver_answers()

    def deliver_answers(self) -> None:
        for parked in [each for each in self._parked if self.runner.is_answered(each)]:
            each, turn = self._parked.pop(parked)
            try:
                reply = self.runner.answer(parked)
            except KafkaError as error:
                reply = error
            self.answer(each, turn, reply)

    def answer(self, each: Consumer, turn: int, reply: Any) -> None:
        if self.rng.random() < self.loss:
            return
        value = ErrorCode.NONE if reply is None else reply
        self.at(self.rng.randrange(1, 40), lambda: self.resume(each, turn, value))

    # -- trouble

    def trouble(self) -> None:
        kind = self.rng.choice(["crash", "pause", "spawn", "restart", "disk", "nothing"])
        living = [each for each in self.consumers if each.alive and not each.paused]
        if kind == "crash" and living:
            each = self.rng.choice(living)
            each.alive, each.owned = False, frozenset()
            if self.rng.random() < 0.7:
                self.spawn(each.name, each.instance)  # its successor
        elif kind == "pause" and living:
            each = self.rng.choice(living)
            each.paused = True
            self.at(self.rng.randrange(500, 40_000), lambda: self.wake(each))
        elif kind == "spawn" and len(living) < 6:
            self.spawn(f"n{self.now}", None)
        elif kind == "restart":
            self.restart()
        elif kind == "disk":
            self.runner.failures = self.rng.randrange(1, 3)
        if self.now < TROUBLE_MS:
            self.at(self.rng.randrange(1_000, 8_000), self.trouble)

    def wake(self, each: Consumer) -> None:
        each.paused = False
        inbox, each.inbox = each.inbox, []
        for value in inbox:
            self.step(each, value)

    def restart(self) -> None:
        """The coordinator dies; what waited there is not answered, connections break."""
        waiting, self._parked = self._parked, {}
        self.runner.reload(compact=self.rng.random() < 0.5)
        broken = KafkaError(ErrorCode.NOT_COORDINATOR)
        for each, turn in waiting.values():
            self.answer(each, turn, broken)


@pytest.mark.parametrize("seed", range(SEEDS), ids=lambda seed: f"seed[{seed}]")
def test_a_group_is_safe_in_trouble_and_whole_after_it(seed: int) -> None:
    world = World(seed)
    world.at(2_000, world.trouble)
    world.run_until(TROUBLE_MS)
    world.loss = world.leave_chance = 0.0
    world.runner.failures = 0
    world.run_until(TROUBLE_MS + CALM_MS)
    EverythingIsOwned().settled(world)
    world.commits.fetched(world.runner.run(FetchOffsets(GROUP, None)))
