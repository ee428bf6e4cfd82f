"""The classic protocol's machine against anything clients may send, in any order.

Nothing here behaves: ids are used that were given to others, generations are guessed, time jumps,
appends fail, the shard is loaded anew. After every step the group's invariants hold (the runner
asserts them), and in the end nobody is left waiting.
"""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ottla.config.broker import BrokerConfig
from ottla.coordinator.group import journal
from ottla.coordinator.group.classic_group import ClassicGroup, State
from ottla.coordinator.group.commands import (
    CommitOffsets,
    DeleteGroup,
    DescribeGroup,
    FetchOffsets,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Leaver,
    PartitionCommit,
    Sync,
)
from ottla.coordinator.group.group import Client, ShardState
from ottla.coordinator.group.shard import GroupShard
from ottla.coordinator.shard import Parked
from ottla.errors import ErrorCode, KafkaError
from ottla.testing.shards import ShardRunner

GROUP = "g"
INSTANCES = st.sampled_from([None, None, "i1", "i2"])
OFFERS = st.sampled_from(
    [
        (("a", b"\0\0\0\0\0\0\xff\xff\xff\xff"),),
        (("a", b"1"), ("b", b"1")),
        (("b", b"2"), ("a", b"2")),
        (("b", b"3"),),
    ]
)
EVERYTHING_ENDS_MS = 60 * 60 * 1000


class Groups(RuleBasedStateMachine):
    @initialize(delay=st.sampled_from([0, 3_000]), size=st.sampled_from([2, 1_000]))
    def begin(self, delay: int, size: int) -> None:
        numbers = itertools.count(1)
        config = BrokerConfig(group_initial_rebalance_delay_ms=delay, group_max_size=size)

        def make() -> GroupShard:
            return GroupShard(ShardState(config=lambda: config, new_id=lambda: str(next(numbers))))

        self.runner: ShardRunner[GroupShard] = ShardRunner(
            make, GroupShard.validate, journal.decode
        )
        self.ids = ["", "nobody"]
        self.waiting: list[Parked] = []
        self.generation = -1

    def send(self, command: Any) -> Any:
        try:
            reply = self.runner.run(command)
        except KafkaError as error:
            return error
        if isinstance(reply, Parked):
            self.waiting.append(reply)
        elif isinstance(reply, Joined) and reply.member_id and reply.member_id not in self.ids:
            self.ids.append(reply.member_id)
        return reply

    @property
    def group(self) -> ClassicGroup | None:
        group = self.runner.shard.groups.get(GROUP)
        assert group is None or isinstance(group, ClassicGroup)
        return group

    def pick(self, number: int) -> str:
        members = [] if self.group is None else list(self.group.members)
        choices = [*members, *self.ids[-4:], *self.ids[:2]]
        return choices[number % len(choices)]

    def guess(self, off: int) -> int:
        return off if self.group is None else self.group.generation + off

    # -- what clients send

    @rule(
        who=st.integers(0, 20),
        instance=INSTANCES,
        offer=OFFERS,
        kind=st.sampled_from(["consumer", "consumer", "consumer", "connect"]),
        session=st.sampled_from([6_000, 60_000]),
        rebalance=st.sampled_from([5_000, 30_000]),
        id_required=st.booleans(),
        can_skip=st.booleans(),
    )
    def join(
        self,
        who: int,
        instance: str | None,
        offer: Any,
        kind: str,
        session: int,
        rebalance: int,
        id_required: bool,
        can_skip: bool,
    ) -> None:
        client = Client("c", "/h")
        self.send(
            Join(
                GROUP,
                self.pick(who),
                instance,
                client,
                session,
                rebalance,
                kind,
                offer,
                id_required=id_required,
                can_skip_assignment=can_skip,
            )
        )

    @rule(offer=OFFERS, instance=INSTANCES)
    def a_newcomer_joins(self, offer: Any, instance: str | None) -> None:
        client = Client("c", "/h")
        command = Join(GROUP, "", instance, client, 6_000, 5_000, "consumer", offer, False)
        self.send(command)

    @rule(count=st.integers(1, 3))
    def followers_sync(self, count: int) -> None:
        if self.group is not None:
            followers = [
                each for each in self.group.members.values() if each.member_id != self.leader
            ]
            for each in followers[:count]:
                self.send(Sync(GROUP, each.member_id, each.instance_id, self.group.generation))

    @property
    def leader(self) -> str | None:
        return None if self.group is None else self.group.leader

    @rule(offer=OFFERS, count=st.integers(1, 3))
    def everybody_joins(self, offer: Any, count: int) -> None:
        members = [] if self.group is None else list(self.group.members.values())
        for each in members[:count]:
            self.send(
                Join(
                    GROUP,
                    each.member_id,
                    each.instance_id,
                    Client("c", "/h"),
                    6_000,
                    5_000,
                    "consumer",
                    offer,
                )
            )

    @rule(who=st.integers(0, 20), instance=INSTANCES, off=st.sampled_from([0, 0, 0, -1, 1]))
    def sync(self, who: int, instance: str | None, off: int) -> None:
        self.send(Sync(GROUP, self.pick(who), instance, self.guess(off)))

    @rule()
    def the_leader_syncs(self) -> None:
        if self.group is not None and self.leader is not None:
            leader = self.group.members[self.leader]
            shares = tuple((each, each.encode()) for each in self.group.members)
            self.send(
                Sync(
                    GROUP,
                    leader.member_id,
                    leader.instance_id,
                    self.group.generation,
                    assignments=shares,
                )
            )

    @rule(who=st.integers(0, 20), instance=INSTANCES, off=st.sampled_from([0, 0, -1]))
    def heartbeat(self, who: int, instance: str | None, off: int) -> None:
        self.send(Heartbeat(GROUP, self.pick(who), instance, self.guess(off)))

    @rule(who=st.lists(st.integers(0, 20), min_size=1, max_size=3), instance=INSTANCES)
    def leave(self, who: list[int], instance: str | None) -> None:
        leavers = tuple(Leaver(self.pick(each), instance) for each in who)
        codes = self.send(Leave(GROUP, leavers))
        assert isinstance(codes, KafkaError) or len(codes) == len(leavers)

    @rule(who=st.integers(0, 20), off=st.sampled_from([0, -1]), offset=st.integers(0, 9))
    def commit(self, who: int, off: int, offset: int) -> None:
        commits = (PartitionCommit("t", 0, offset),)
        reply = self.send(CommitOffsets(GROUP, commits, self.pick(who), None, self.guess(off)))
        if not isinstance(reply, KafkaError):
            ((_, (each,)),) = self.send(FetchOffsets(GROUP, None))
            assert each.committed.offset == offset

    @rule()
    def delete(self) -> None:
        before = None if self.group is None else self.group.state
        reply = self.send(DeleteGroup(GROUP))
        assert (reply is None) == (before is State.EMPTY) or isinstance(reply, KafkaError)
        if reply is None:
            assert self.group is None
            self.generation = -1

    # -- what happens

    @rule(milliseconds=st.sampled_from([1, 500, 3_000, 6_000, 31_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.runner.advance(milliseconds)

    @rule()
    def a_write_fails(self) -> None:
        self.runner.failures = 1

    @rule(compact=st.booleans(), slice_of=st.integers(2, 60))
    def the_coordinator_moves(self, compact: bool, slice_of: int) -> None:
        self.runner.failures = 0
        written = self.group is not None and self.group.state is State.STABLE
        before = self.runner.run(DescribeGroup(GROUP)) if written else None
        sent_away = {each for each, _ in self.runner.shard.unload(_MOVED)}
        assert sent_away == {each for each in self.waiting if not self.runner.is_answered(each)}
        self.waiting.clear()
        self.generation = -1
        self.runner.reload(compact=compact, slice_of=slice_of)
        if before is not None and len(before.members) <= 2:
            assert self.runner.run(DescribeGroup(GROUP)) == before

    # -- what holds

    @invariant()
    def generations_only_rise(self) -> None:
        if self.group is not None:
            assert self.group.generation >= self.generation
            self.generation = self.group.generation

    @invariant()
    def answers_are_given_once(self) -> None:
        still = []
        for each in self.waiting:
            if not self.runner.is_answered(each):
                still.append(each)
                continue
            try:
                reply = self.runner.answer(each)
            except KafkaError:
                continue
            if isinstance(reply, Joined) and reply.error is ErrorCode.NONE:
                assert reply.generation > 0
                self.ids.append(reply.member_id)
        self.waiting = still

    def teardown(self) -> None:
        if not hasattr(self, "runner"):
            return
        self.runner.failures = 0
        self.runner.advance(EVERYTHING_ENDS_MS)
        self.answers_are_given_once()
        assert not self.waiting, "somebody waits for ever"
        assert self.group is None or self.group.state is State.EMPTY


_MOVED = KafkaError(ErrorCode.NOT_COORDINATOR)

TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
