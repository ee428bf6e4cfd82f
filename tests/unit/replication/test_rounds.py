"""A follower's rounds: what is looked at, and what a fetch says of what it does not name."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import replace
from itertools import count

import pytest

from ottla.model.ids import TopicId, TopicPartition
from ottla.model.topic import PartitionState
from ottla.records.builder import build_batch
from ottla.replication.fetch_sessions import FetchSessions, Wanted
from ottla.replication.isr import Rules
from ottla.replication.lease import LEASE_MS, LONG_AGO
from ottla.replication.partition import Partition
from ottla.replication.rounds import Key, Rounds
from ottla.runtime.waiters import Waiter
from ottla.storage.log import AppendInfo
from ottla.testing.logs import LogBench

NOW = 1_700_000_000_000
LED = PartitionState(leader=1, leader_epoch=5, partition_epoch=0, replicas=(1, 2, 3), isr=(1, 2, 3))
MAX_LAG = 1_000.0


class Neighbours:
    """The cluster, as a partition sees it; it remembers what was proposed."""

    node_id = 1
    max_lag_ms = MAX_LAG
    session_alive = False

    def __init__(self) -> None:
        self.now = 0.0
        self.proposed: list[tuple[int, ...]] = []

    def now_ms(self) -> float:
        return self.now

    def may_join(self, broker: int, broker_epoch: int) -> bool:
        return True

    def propose_isr(
        self, partition: Partition, isr: tuple[int, ...], lost: Collection[int] = ()
    ) -> None:
        self.proposed.append(isr)


class Leader:
    """Broker 1 leads some partitions; broker 2 follows in rounds, as the fetch handler has them."""

    def __init__(self, partitions: int = 3, state: PartitionState = LED) -> None:
        self.cluster = Neighbours()
        self.partitions: dict[Key, Partition] = {}
        for index in range(partitions):
            partition = Partition(
                TopicPartition("t", index),
                TopicId(bytes(16)),
                LogBench().open(),
                state,
                None,  # nobody asks for fsync
                self.cluster,
            )
            partition.lead(state, Rules(2))
            self.partitions["t", index] = partition
        self.rounds = Rounds(2, 20, self.partitions, self.cluster.now)

    def round(self, now: float | None = None, epoch: int = 20) -> set[int]:
        """One fetch of broker 2, which has everything; returns what was looked at."""
        if now is not None:
            self.cluster.now = now
        self.rounds.begin(epoch, self.cluster.now)
        due = self.rounds.due(self.partitions)
        for key, partition in due.items():
            partition.fetched_by(2, epoch, partition.log.log_end_offset, 0)
            self.rounds.looked_at(key, partition, settled=True)
        return {index for _, index in due}

    def others(self) -> None:
        """Broker 3 has everything as well."""
        for partition in self.partitions.values():
            partition.fetched_by(3, 30, partition.log.log_end_offset, 0)

    def append(self, index: int) -> None:
        batch = bytearray(build_batch([(NOW, None, b"x", ())]))
        self.partitions["t", index].append(memoryview(batch), NOW)


def test_what_is_quiet_is_looked_at_once() -> None:
    leader = Leader()
    assert leader.round() == {0, 1, 2}
    assert leader.round() == set()
    assert leader.round() == set()


def test_what_was_appended_to_is_looked_at_until_the_follower_has_it() -> None:
    leader = Leader()
    leader.round()
    leader.append(1)
    key = ("t", 1)
    for _ in range(2):  # sent, and lost on the way
        assert list(leader.rounds.due(leader.partitions)) == [key]
        leader.rounds.looked_at(key, leader.partitions[key], settled=False)
    assert leader.round() == {1}
    assert leader.round() == set()


def test_what_the_follower_names_is_looked_at() -> None:
    leader = Leader()
    leader.round()
    leader.rounds.named(("t", 2))
    assert leader.round() == {2}


def test_whose_mark_another_follower_moved_is_looked_at() -> None:
    leader = Leader()
    leader.round()
    leader.append(1)
    assert leader.round() == {1}
    leader.others()
    assert leader.partitions["t", 1].high_watermark == 1
    assert leader.round() == {1}
    assert leader.round() == set()


def test_who_is_not_in_sync_is_looked_at_until_it_is() -> None:
    leader = Leader(1, replace(LED, isr=(1, 3)))
    assert leader.round() == {0}
    assert leader.round() == {0}
    assert leader.cluster.proposed
    leader.partitions["t", 0].lead(replace(LED, partition_epoch=1), Rules(2))
    assert leader.round() == {0}
    assert leader.round() == set()


def test_who_was_put_out_of_the_in_sync_set_by_others_is_looked_at() -> None:
    leader = Leader(1)
    leader.round()
    leader.partitions["t", 0].lead(replace(LED, partition_epoch=1, isr=(1, 3)), Rules(2))
    assert leader.round() == {0}
    assert leader.cluster.proposed == [(1, 2, 3)]


def test_a_new_epoch_of_the_leader_has_to_be_heard_of() -> None:
    leader = Leader(1)
    leader.round()
    leader.partitions["t", 0].lead(replace(LED, leader_epoch=6, partition_epoch=1), Rules(2))
    assert leader.round() == {0}


def test_a_broker_that_has_registered_anew_tells_of_everything() -> None:
    leader = Leader()
    leader.round()
    assert leader.round(epoch=21) == {0, 1, 2}
    assert leader.round(epoch=21) == set()


def test_a_log_whose_start_retention_moved_is_looked_at() -> None:
    leader = Leader(1)
    leader.append(0)
    leader.round()
    leader.others()
    leader.round()
    partition = leader.partitions["t", 0]
    partition.tell_of_start()
    assert leader.round() == set()
    partition.log.advance_start(1)
    partition.tell_of_start()
    assert leader.round() == {0}


def test_what_is_forgotten_tells_nothing_any_more() -> None:
    leader = Leader()
    leader.round()
    leader.rounds.forget(("t", 1))
    leader.append(1)
    assert leader.round() == set()
    assert not leader.partitions["t", 1].watches


def test_a_partition_that_was_made_again_is_watched_in_its_new_form() -> None:
    leader = Leader(1)
    leader.round()
    old = leader.partitions["t", 0]
    leader.partitions = Leader(1).partitions
    leader.rounds.named(("t", 0))
    leader.round()
    assert not old.watches
    assert len(leader.partitions["t", 0].watches) == 1


def test_those_that_gave_records_come_last() -> None:
    leader = Leader()
    leader.rounds.served(("t", 0))
    assert [index for _, index in leader.rounds.due(leader.partitions)] == [1, 2, 0]


# ---------------------------------------------------------------------- where nothing is to be sent


def told(leader: Leader, **changes: int) -> dict[Key, Wanted]:
    """What broker 2 says of every partition: that it has everything, in the leader's epoch."""
    found = {}
    for key, partition in leader.partitions.items():
        want = Wanted(partition.log.log_end_offset, 1024, 5, partition.log.latest_epoch or -1, 0)
        want.high_watermark, want.log_start_offset = partition.high_watermark, 0
        for name, value in changes.items():
            setattr(want, name, value)
        found[key] = want
    return found


def attended() -> Leader:
    """Every partition has a record, which broker 2 is about to tell that it has."""
    leader = Leader()
    leader.round()
    for index in range(3):
        leader.append(index)
    for key, partition in leader.partitions.items():
        leader.rounds.looked_at(key, partition, settled=False)
    return leader


def test_who_has_everything_is_noted_without_a_look() -> None:
    leader = attended()
    assert leader.rounds.attend(told(leader))
    for partition in leader.partitions.values():
        assert partition.in_sync is not None
        assert partition.in_sync.followers[2].end == 1
    assert len(leader.rounds) == 0


def test_a_record_that_follows_from_what_is_told_is_not_slept_on() -> None:
    """A commit may lead to an append at once, as a marker's does in the coordinator's log."""
    leader = attended()
    leader.partitions["t", 2].fetched_by(3, 30, 1, 0)
    committed = leader.partitions["t", 2].wait_committed(AppendInfo(0, 0, -1, 0, False, 0))
    committed.on_done(lambda done: leader.append(0))
    assert not leader.rounds.attend(told(leader)), "the first partition was looked at already"
    assert ("t", 0) in leader.rounds.due(leader.partitions)


def test_who_has_everything_and_was_not_told_how_much_is_safe_is_told_next_time() -> None:
    leader = attended()
    for partition in leader.partitions.values():
        partition.fetched_by(3, 30, 1, 0)
    before = told(leader)
    assert leader.rounds.attend(before)
    assert {partition.high_watermark for partition in leader.partitions.values()} == {1}
    assert len(leader.rounds) == 3


@pytest.mark.parametrize(
    "changes",
    [{"offset": 0}, {"leader_epoch": 4}, {"last_fetched_epoch": 4}, {"offset": 2}],
    ids=str,
)
def test_whoever_says_something_else_is_looked_at(changes: dict[str, int]) -> None:
    leader = attended()
    assert not leader.rounds.attend(told(leader, **changes))
    assert len(leader.rounds) == 3
    partition = leader.partitions["t", 0]
    assert partition.in_sync is not None
    assert partition.in_sync.followers[2].end == 0, "nothing was noted"


def test_a_partition_that_may_be_another_by_now_is_looked_at() -> None:
    leader = attended()
    leader.partitions["t", 2].retire()
    assert not leader.rounds.attend(told(leader))
    leader.rounds.looked_at(("t", 2), leader.partitions["t", 2], settled=False)
    assert leader.rounds.attend(told(leader))


# ---------------------------------------------------------------------- caught up


def test_a_follower_of_a_quiet_partition_is_caught_up_at_every_fetch() -> None:
    leader = Leader(1)
    follower = leader.partitions["t", 0].in_sync.followers[2]
    leader.round(100.0)
    leader.round(5_000.0)
    assert (follower.caught_up_ms, follower.fetched_ms) == (5_000.0, 5_000.0)


def test_who_had_everything_a_moment_ago_does_not_lag_when_a_record_comes() -> None:
    leader = Leader(1)
    partition = leader.partitions["t", 0]
    leader.round(0.0)
    leader.others()
    leader.round(10_000.0)
    leader.others()
    leader.cluster.now = 10_400.0
    leader.append(0)
    partition.isr.shrink()
    assert leader.cluster.proposed == []


def test_who_does_not_come_for_a_record_lags_from_its_last_fetch_on() -> None:
    leader = Leader(1)
    partition = leader.partitions["t", 0]
    leader.round(0.0)
    leader.round(10_000.0)
    leader.append(0)
    # It goes on with other partitions, and leaves this one alone.
    leader.rounds.begin(20, 11_500.0)
    leader.cluster.now = 11_500.0
    partition.fetched_by(3, 30, 1, 0)
    partition.isr.shrink()
    assert leader.cluster.proposed == [(1, 3)]


def test_what_another_session_of_the_same_broker_has_said_stands() -> None:
    leader = Leader(1)
    partition = leader.partitions["t", 0]
    leader.round(1_000.0)
    another = Rounds(2, 20, leader.partitions, 2_000.0)
    another.looked_at(("t", 0), partition, settled=True)
    leader.rounds.close()
    another.begin(20, 3_000.0)
    follower = partition.in_sync.followers[2]
    assert follower.caught_up_ms == 3_000.0


# ---------------------------------------------------------------------- vouching at rest


class Followed:
    """Partitions led with min.insync.replicas=2, which broker 2 follows in a session."""

    def __init__(self) -> None:
        self.leader = Leader()
        self.table = sessions()
        opened = self.table.open(OrderedDict(told(self.leader)), False, 0.0, self.leader.rounds)
        assert opened is not None
        self.session = opened
        self.leader.round(0.0)
        assert len(self.leader.rounds) == 0, "all are at rest"

    def fetch(
        self,
        asked_after: float,
        *,
        changed: Collection[tuple[Key, Wanted]] = (),
        forgotten: Collection[Key] = (),
        epoch: int = 20,
    ) -> bool:
        """A fetch that is read ten seconds after the answer before; whether no look was needed."""
        now = self.leader.cluster.now = asked_after + 10_000.0
        session = self.table.resume(
            self.session.id, self.session.epoch, False, changed, forgotten, now / 1000
        )
        self.leader.rounds.begin(epoch, now, asked_after)
        return self.leader.rounds.attend(session.partitions)

    def partition(self, index: int) -> Partition:
        return self.leader.partitions["t", index]

    def certain(self, index: int, now: float) -> bool:
        self.leader.cluster.now = now
        return self.partition(index).tenure.certain


def test_a_fetch_vouches_for_what_it_does_not_name_from_the_answer_before_on() -> None:
    followed = Followed()
    assert not followed.certain(0, 1.0), "its first fetch has vouched for nothing"
    assert followed.fetch(asked_after=50_000.0)
    for index in range(3):
        assert followed.certain(index, 50_000.0 + LEASE_MS - 1)
        assert not followed.certain(index, 50_000.0 + LEASE_MS), "however late it was read"


def test_a_fetch_after_no_answer_takes_nothing_back() -> None:
    followed = Followed()
    followed.fetch(asked_after=50_000.0)
    followed.leader.rounds.begin(20, 50_500.0, LONG_AGO)
    assert followed.certain(0, 50_000.0 + LEASE_MS - 1)
    assert not followed.certain(0, 50_000.0 + LEASE_MS)


def test_what_a_fetch_forgets_it_does_not_vouch_for() -> None:
    followed = Followed()
    followed.fetch(asked_after=50_000.0)
    followed.fetch(asked_after=60_000.0, forgotten=[("t", 1)])
    assert followed.certain(0, 60_500.0)
    assert followed.certain(1, 50_500.0), "what was vouched for before stands"
    assert not followed.certain(1, 60_500.0)
    followed.fetch(asked_after=70_000.0)
    assert not followed.certain(1, 70_500.0)


def test_who_names_a_partition_under_another_epoch_does_not_vouch_for_it() -> None:
    followed = Followed()
    changed = [(("t", 1), Wanted(0, 1024, 6, -1, 0))]
    assert not followed.fetch(asked_after=60_000.0, changed=changed)
    assert followed.certain(0, 60_500.0)
    assert not followed.certain(1, 60_500.0)


def test_who_names_a_partition_and_still_follows_vouches_for_it() -> None:
    followed = Followed()
    want = told(followed.leader)["t", 1]
    assert followed.fetch(asked_after=60_000.0, changed=[(("t", 1), want)])
    assert followed.certain(1, 60_500.0)


def test_an_earlier_life_of_a_broker_vouches_for_nothing_that_rests() -> None:
    followed = Followed()
    followed.fetch(asked_after=50_000.0, epoch=21)
    assert followed.certain(0, 50_500.0), "a later life tells of everything"
    followed.fetch(asked_after=60_000.0, epoch=20)
    assert not followed.certain(0, 60_500.0)


def test_a_session_that_has_ended_vouches_for_nothing_more() -> None:
    followed = Followed()
    followed.fetch(asked_after=50_000.0)
    followed.table.close(followed.session.id)
    followed.leader.rounds.begin(20, 60_010.0, 60_000.0)
    assert followed.certain(0, 50_500.0)
    assert not followed.certain(0, 60_500.0)


@pytest.mark.parametrize("epoch", [5, 6], ids=["the same", "a new one"])
def test_who_leads_anew_has_to_be_vouched_for_anew(epoch: int) -> None:
    followed = Followed()
    followed.fetch(asked_after=50_000.0)
    partition = followed.partition(1)
    partition.follow(replace(LED, leader=3, leader_epoch=epoch))
    partition.lead(replace(LED, leader_epoch=epoch, partition_epoch=2), Rules(2))
    assert not followed.certain(1, 50_500.0)
    assert not followed.fetch(asked_after=60_000.0), "it has to be looked at"
    assert not followed.certain(1, 60_500.0)
    assert followed.certain(0, 60_500.0)


def test_who_is_only_attended_to_has_come_over() -> None:
    followed = Followed()
    partition = followed.partition(0)
    new = replace(LED, leader_epoch=6, partition_epoch=1)
    followed.leader.cluster.now = 0.0
    partition.lead(new, Rules(2))
    partition.fetched_by(3, 30, 0, 0)
    assert not partition.tenure.has_succeeded
    assert followed.fetch(60_000.0, changed=[(("t", 0), Wanted(0, 1024, 6, -1, 0))])
    assert partition.tenure.has_succeeded, "all have come over"


# ---------------------------------------------------------------------- waiting


async def test_an_append_wakes_who_waits_once_and_a_mark_wakes_nobody() -> None:
    leader = Leader()
    leader.round()
    woken: list[str] = []
    Waiter(asyncio.get_running_loop(), [leader.rounds.news], 1, 60, lambda: woken.append("now"))
    leader.others()
    await asyncio.sleep(0)
    assert woken == []
    leader.append(0)
    leader.append(1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert woken == ["now"]
    assert set(leader.rounds.due(leader.partitions)) == {("t", 0), ("t", 1)}


async def test_who_waits_is_told_at_once_that_a_partition_is_led_elsewhere() -> None:
    leader = Leader()
    leader.round()
    woken = asyncio.Event()
    Waiter(asyncio.get_running_loop(), [leader.rounds.news], 1 << 20, 60, woken.set)
    leader.partitions["t", 1].follow(replace(LED, leader=3, leader_epoch=6))
    async with asyncio.timeout(60):
        await woken.wait()
    assert set(leader.rounds.due(leader.partitions)) == {("t", 1)}


# ---------------------------------------------------------------------- sessions


def sessions(slots: int = 2) -> FetchSessions:
    ids = count(1)
    return FetchSessions(slots, lambda: next(ids))


def wanted(leader: Leader) -> OrderedDict[Key, Wanted]:
    return OrderedDict((key, Wanted(0, 1024, -1, -1)) for key in leader.partitions)


def rounds(leader: Leader, epoch: int = 20) -> Rounds:
    made = Rounds(2, epoch, leader.partitions, 0.0)
    for key, partition in leader.partitions.items():
        made.looked_at(key, partition, settled=False)
    return made


def test_a_new_session_of_a_broker_ends_the_one_before() -> None:
    leader, table = Leader(), sessions()
    first = table.open(wanted(leader), False, 0.0, rounds(leader))
    second = table.open(wanted(leader), False, 0.0, rounds(leader))
    assert first is not None
    assert second is not None
    assert list(table) == [second]
    assert all(len(each.watches) == 1 for each in leader.partitions.values())


def test_an_earlier_life_of_a_broker_gets_no_session() -> None:
    leader, table = Leader(), sessions()
    kept = table.open(wanted(leader), False, 0.0, rounds(leader, 21))
    assert table.open(wanted(leader), False, 0.0, rounds(leader, 20)) is None
    assert list(table) == [kept]


@pytest.mark.parametrize("how", ["closed", "evicted", "emptied"])
def test_a_session_that_ends_leaves_no_watch_behind(how: str) -> None:
    leader, table = Leader(), sessions(slots=1)
    session = table.open(wanted(leader), False, 0.0, rounds(leader))
    assert session is not None
    if how == "closed":
        table.close(session.id)
    elif how == "evicted":
        table.open(OrderedDict({("u", 0): Wanted(0, 1024, -1, -1)}), False, 1_000.0)
    else:
        table.resume(session.id, 1, False, [], list(leader.partitions), 1.0)
    assert not any(each.watches for each in leader.partitions.values())
    assert table.open(wanted(leader), False, 2_000.0, rounds(leader)) is not None


def test_what_is_named_and_what_is_forgotten_reaches_the_rounds() -> None:
    leader, table = Leader(), sessions()
    mine = leader.rounds
    leader.round()
    session = table.open(wanted(leader), False, 0.0, mine)
    assert session is not None
    changed = [(("t", 1), Wanted(7, 1024, -1, -1))]
    table.resume(session.id, 1, False, changed, [("t", 2)], 1.0)
    assert dict(mine.due(session.partitions)) == {("t", 1): session.partitions["t", 1]}
    assert not leader.partitions["t", 2].watches


def test_a_fetch_of_a_session_that_has_ended_takes_nothing_from_the_next_one() -> None:
    """Many partitions are looked at in turns with other requests, the new session's among them."""
    leader = Leader(1)
    late, (key, partition) = leader.rounds, next(iter(leader.partitions.items()))
    leader.round()
    late.close()
    leader.rounds = Rounds(2, 20, leader.partitions, leader.cluster.now)
    leader.round()
    late.looked_at(key, partition, settled=True)
    assert partition.in_sync is not None
    assert partition.in_sync.followers[2].rests_with(leader.rounds)
    assert len(partition.watches) == 1
