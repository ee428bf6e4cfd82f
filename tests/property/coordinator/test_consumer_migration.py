"""Consumers of both protocols in one group, which changes its own as they come and go.

Some are static, and come back under their instance id with the same protocol or the other one. At
no time do two of them own a partition, whichever protocol each speaks and the group is of at
that moment; and when the dust has settled every partition of the topic has an owner.
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

from ottla.coordinator.group.consumer_group import AWAY_EPOCH, LEFT_EPOCH
from ottla.errors import KafkaError
from ottla.testing.classic_consumers import ClassicConsumer
from ottla.testing.groups import GROUP, Consumer, GroupWorld

One = tuple[str, int]
INSTANCES = st.sampled_from((None, None, "i", "j", "k"))


class MixedGroups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = GroupWorld(group_initial_rebalance_delay_ms=0)
        self.partitions = 1
        self.classic: list[ClassicConsumer] = []
        self.modern: list[Consumer] = []
        self.born = 0

    @initialize(partitions=st.integers(1, 6))
    def begin(self, partitions: int) -> None:
        self.partitions = partitions
        self.world.topics(a=partitions)

    # -------------------------------------------------------------- what may happen

    @precondition(lambda self: len(self.classic) < 4)
    @rule(cooperative=st.booleans(), instance=INSTANCES)
    def start_classic(self, cooperative: bool, instance: str | None) -> None:
        if self.is_free(instance):
            self.classic.append(
                ClassicConsumer(self.world, "a", cooperative=cooperative, instance_id=instance)
            )

    @precondition(lambda self: len(self.modern) < 3)
    @rule(instance=INSTANCES)
    def start_modern(self, instance: str | None) -> None:
        if self.is_free(instance):
            self.born += 1
            more = {} if instance is None else {"instance_id": instance}
            self.modern.append(self.world.consumer(f"new-{self.born}", "a", **more))

    def is_free(self, instance: str | None) -> bool:
        """Of two that live under one instance id one is fenced, but only when it asks again."""
        taken = {each.instance_id for each in self.classic}
        taken |= {each.more.get("instance_id") for each in self.modern}
        return instance is None or instance not in taken

    @precondition(lambda self: self.classic)
    @rule(data=st.data())
    def step_classic(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.classic)).step()

    @precondition(lambda self: self.modern)
    @rule(data=st.data())
    def step_modern(self, data: st.DataObject) -> None:
        self.step(data.draw(st.sampled_from(self.modern)))

    def step(self, each: Consumer) -> None:
        try:
            if each.epoch:
                each.beat()
            else:
                each.join()
        except KafkaError as error:
            if not error.code.retriable:
                each.epoch = 0
                each.owned = {}

    @precondition(lambda self: self.classic)
    @rule(data=st.data(), says_so=st.booleans())
    def stop_classic(self, data: st.DataObject, says_so: bool) -> None:
        each = data.draw(st.sampled_from(self.classic))
        self.classic.remove(each)
        if says_so and each.member_id:
            self.quietly(each.leave)

    @precondition(lambda self: self.modern)
    @rule(data=st.data(), says_so=st.booleans(), for_a_while=st.booleans())
    def stop_modern(self, data: st.DataObject, says_so: bool, for_a_while: bool) -> None:
        each = data.draw(st.sampled_from(self.modern))
        self.modern.remove(each)
        if says_so:
            away = for_a_while and "instance_id" in each.more
            self.quietly(lambda: each.leave(AWAY_EPOCH if away else LEFT_EPOCH))

    def quietly(self, call: Any) -> None:
        try:
            call()
        except KafkaError:
            pass

    @rule(seconds=st.sampled_from([1, 5, 20]))
    def wait(self, seconds: int) -> None:
        self.world.runner.advance(seconds * 1000)
        group = self.world.runner.shard.groups.get(GROUP)
        for old in self.classic:
            if group is None or old.member_id not in group.members:
                old.owned = frozenset()
        for new in self.modern:
            if group is None or new.name not in group.members:
                new.owned = {}

    @rule()
    def grow(self) -> None:
        self.partitions += 1
        self.world.topics(a=self.partitions)

    @rule()
    def fail_to_write(self) -> None:
        self.world.runner.failures = 1

    @rule(compact=st.booleans(), slice_of=st.integers(2, 60))
    def restart(self, compact: bool, slice_of: int) -> None:
        for each in self.classic:
            each.lose_connection()
        self.world.runner.reload(compact=compact, slice_of=slice_of)

    # -------------------------------------------------------------- what must hold

    def owned(self) -> list[One]:
        everything = [one for each in self.classic for one in each.owned]
        everything += [
            ("a", p) for each in self.modern for held in each.owned.values() for p in held
        ]
        return everything

    @invariant()
    def no_partition_is_with_two_consumers(self) -> None:
        owned = self.owned()
        assert len(owned) == len(set(owned)), (self.classic, self.modern)

    def teardown(self) -> None:
        self.world.runner.failures = 0
        for _ in range(120):
            self.world.runner.advance(1_000)
            for old in self.classic:
                old.step()
            for new in self.modern:
                self.step(new)
        if self.classic or self.modern:
            wanted = [("a", each) for each in range(self.partitions)]
            assert sorted(self.owned()) == wanted, (self.classic, self.modern)


def test_no_partition_is_owned_twice_while_a_group_changes_its_protocol() -> None:
    run_state_machine_as_test(
        MixedGroups,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
