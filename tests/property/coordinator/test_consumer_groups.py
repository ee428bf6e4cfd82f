"""Consumers that join, leave, fall silent, lose answers and come back, in every order.

What must hold whatever happens: no two consumers own a partition at the same time, as they see it
and as the coordinator does; epochs never go back; and when the dust has settled every partition of
every subscribed topic has an owner. Coordinators restart and appends fail meanwhile.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ottla.coordinator.group.assignors import Partitions
from ottla.coordinator.group.commands import ConsumerAlive
from ottla.coordinator.group.consumer_group import AWAY_EPOCH, ConsumerGroup
from ottla.errors import KafkaError
from ottla.model.ids import TopicId
from ottla.testing.groups import GROUP, Consumer, GroupWorld

NAMES = ["a", "b", "c", "d"]
MEMBERS = ["m0", "m1", "m2", "m3", "m4"]
topics = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 5), max_size=4)
names = st.lists(st.sampled_from(NAMES), unique=True, max_size=3).map(tuple)
subscriptions = st.one_of(
    st.fixed_dictionaries({"topics": names}),
    st.fixed_dictionaries({"topics": names, "regex": st.sampled_from(["", "[ab]", ".*", "x"])}),
)


def each(partitions: Partitions) -> set[tuple[TopicId, int]]:
    return {(topic, item) for topic in partitions for item in partitions[topic]}


class Life:
    """One consumer process: what it believes, and what it has not been told."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.is_member = False

    def __repr__(self) -> str:
        return f"<{self.consumer.name} at {self.consumer.epoch} owns {self.consumer.owned}>"


class ConsumerGroups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = GroupWorld(group_consumer_regex_refresh_interval_ms=20_000)
        self.sizes: dict[str, int] = {}
        self.lives: dict[str, Life] = {}
        self.incarnation = 0
        self.epochs: dict[str, int] = {}

    @property
    def group(self) -> ConsumerGroup | None:
        group = self.world.runner.shard.groups.get(GROUP)
        assert group is None or isinstance(group, ConsumerGroup)
        return group

    def attempt(self, life: Life, lost: bool, epoch: int, **fields: Any) -> None:
        """Send a heartbeat. A refusal fences the consumer; of a lost answer it learns nothing."""
        consumer = life.consumer
        try:
            reply: ConsumerAlive = consumer.send(epoch, **fields)
        except KafkaError as error:
            if not error.code.retriable:
                life.is_member = False
                consumer.owned = {}
            return
        if lost:
            return
        consumer.epoch = reply.epoch
        life.is_member = True
        if reply.assignment is not None:
            consumer.owned = reply.assignment

    # -------------------------------------------------------------- what may happen

    @initialize(made=topics)
    def begin(self, made: dict[str, int]) -> None:
        self.sizes = made
        self.world.topics(**made)

    @rule(
        name=st.sampled_from(MEMBERS),
        subscription=subscriptions,
        static=st.booleans(),
        assignor=st.sampled_from([None, "range", "uniform"]),
        lost=st.booleans(),
    )
    def join(
        self,
        name: str,
        subscription: dict[str, Any],
        static: bool,
        assignor: str | None,
        lost: bool,
    ) -> None:
        life = self.lives.get(name)
        if life is None or not life.is_member:
            self.incarnation += 1
            more = {"instance_id": f"instance-{name}"} if static else {}
            fresh = f"{name}-{self.incarnation}"
            life = self.lives[name] = Life(self.world.consumer(fresh, **more))
        life.consumer.owned = {}
        self.attempt(
            life,
            lost,
            0,
            owned={},
            rebalance_timeout_ms=30_000,
            server_assignor=assignor,
            **subscription,
        )

    @precondition(lambda self: self.lives)
    @rule(data=st.data(), lost=st.booleans(), silent=st.booleans())
    def beat(self, data: st.DataObject, lost: bool, silent: bool) -> None:
        life = self.lives[data.draw(st.sampled_from(sorted(self.lives)))]
        if life.is_member:
            owned = None if silent else life.consumer.owned
            self.attempt(life, lost, life.consumer.epoch, owned=owned)

    @precondition(lambda self: self.lives)
    @rule(data=st.data(), subscription=subscriptions, lost=st.booleans())
    def resubscribe(self, data: st.DataObject, subscription: dict[str, Any], lost: bool) -> None:
        life = self.lives[data.draw(st.sampled_from(sorted(self.lives)))]
        if life.is_member:
            self.attempt(life, lost, life.consumer.epoch, owned=life.consumer.owned, **subscription)

    @precondition(lambda self: self.lives)
    @rule(data=st.data(), lost=st.booleans(), for_a_while=st.booleans())
    def leave(self, data: st.DataObject, lost: bool, for_a_while: bool) -> None:
        """It stops working first, then says so; it is gone whether or not the answer arrives."""
        life = self.lives.pop(data.draw(st.sampled_from(sorted(self.lives))))
        life.consumer.owned = {}
        static = "instance_id" in life.consumer.more
        self.attempt(life, lost, AWAY_EPOCH if static and for_a_while else -1)

    @precondition(lambda self: self.lives)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """It is gone without a word; its session will end."""
        self.lives.pop(data.draw(st.sampled_from(sorted(self.lives))))

    @rule(seconds=st.sampled_from([1, 11, 29, 31, 46]))
    def wait(self, seconds: int) -> None:
        self.world.runner.advance(seconds * 1000)
        members = self.group.members if self.group is not None else {}
        for life in self.lives.values():
            # A client stops by itself when it could not reach its coordinator for a session.
            if life.consumer.name not in members:
                life.is_member = False
                life.consumer.owned = {}

    @rule(name=st.sampled_from(NAMES), more=st.integers(1, 2))
    def grow(self, name: str, more: int) -> None:
        self.sizes = self.sizes | {name: self.sizes.get(name, 0) + more}
        self.world.topics(**self.sizes)

    @precondition(lambda self: self.sizes)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(sorted(self.sizes)))
        self.sizes = {name: size for name, size in self.sizes.items() if name != gone}
        self.world.topics(**self.sizes)

    @rule()
    def match_patterns(self) -> None:
        self.world.runner.do_work()

    @rule()
    def fail_to_write(self) -> None:
        self.world.runner.failures = 1

    @rule(compact=st.booleans(), slice_of=st.integers(2, 60))
    def restart(self, compact: bool, slice_of: int) -> None:
        self.world.runner.work.clear()
        self.world.runner.reload(compact=compact, slice_of=slice_of)

    # -------------------------------------------------------------- what must hold

    @invariant()
    def no_partition_is_with_two_consumers(self) -> None:
        members = self.group.members if self.group is not None else {}
        taken: dict[tuple[TopicId, int], str] = {}
        for life in self.lives.values():
            name = life.consumer.name
            for one in each(life.consumer.owned):
                assert one not in taken, f"{one} is with {taken[one]} and with {name}"
                taken[one] = name
                held = each(members[name].assigned) | each(members[name].revoking)
                assert one in held, f"{name} owns {one} and the coordinator does not know it"

    @invariant()
    def epochs_never_go_back(self) -> None:
        group = self.group
        if group is None:
            return
        now = {"group": group.epoch, "target": group.target_epoch}
        now |= {
            f"member {item.id}": item.epoch for item in group.members.values() if item.epoch > 0
        }
        for what, epoch in now.items():
            assert epoch >= self.epochs.get(what, 0), f"{what} went from {self.epochs[what]} back"
        self.epochs = {"group": 0, "target": 0} | now

    def teardown(self) -> None:
        """The dust settles: whoever is alive goes on without mishaps."""
        self.world.runner.failures = 0
        self.world.runner.advance(46_000)
        consumers = []
        for name in sorted(self.lives):
            fresh = self.world.consumer(f"{name}-last", *NAMES[:3])
            fresh.join()
            consumers.append(fresh)
        for _ in range(40):
            self.world.runner.advance(2_000)
            self.world.runner.do_work()
            for item in consumers:
                item.beat()
        group = self.group
        if not consumers or group is None:
            return
        assert group.state_name == "Stable", group.members
        owned = [one for item in consumers for one in each(item.owned)]
        assert len(owned) == len(set(owned))
        wanted = {name: size for name, size in self.sizes.items() if name in NAMES[:3]}
        image = self.world.image
        assert set(owned) == {
            (image.topics[name].id, item) for name, size in wanted.items() for item in range(size)
        }


def test_no_partition_is_ever_owned_twice_and_in_the_end_all_are_owned() -> None:
    run_state_machine_as_test(
        ConsumerGroups,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
