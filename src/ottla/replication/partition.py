"""Partition: a log, who leads it, and how far its records are safe to read.

Offsets, in their order:

    log start <= last stable <= high watermark <= log end

`append` moves the log end. The high watermark follows when every in-sync replica has the records
(`isr.py`), which for a partition with one replica is at once, unless the topic asks for fsync
before acknowledgement (`flush.messages`): then it follows the fsync, and so do answers and readers.
`acks=1` waits for this broker's part of that only. After
a restart nobody knows whether the records behind the recovery point were synced, so under such a
setting they are synced before they are shown, or acknowledged to a producer who sends them again.
Where no descriptor was free for that, the producers who wait are told, and it is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container
from functools import partial
from typing import Protocol

from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_LEADER_EPOCH, TopicId, TopicPartition
from ottla.model.topic import NO_LEADER, PartitionState
from ottla.records.batch import BatchHeader
from ottla.replication.cluster_view import ClusterView
from ottla.replication.flushes import Durability, Flushes
from ottla.replication.isr import Attendance, InSyncReplicas, Rules
from ottla.replication.isr_review import IsrReview
from ottla.replication.lease import LONG_AGO
from ottla.replication.marker import Marker
from ottla.replication.tenure import Tenure
from ottla.replication.traffic import TopicTraffic
from ottla.runtime.waiters import Deferred, Signal
from ottla.storage.faults import OutOfDescriptors
from ottla.storage.log import AppendInfo, Log, ReadResult
from ottla.storage.producers import Guard, Origin


class Watch(Protocol):
    """A follower's fetch session, told of what happens to a partition between two fetches."""

    def appended(self, size: int) -> None:
        """So many bytes more can be fetched."""
        ...

    def changed(self) -> None:
        """A mark, or who is in sync, is another."""
        ...

    def hurry(self) -> None:
        """The partition is not led here any more."""
        ...


class Partition:
    """One partition on one of the brokers that hold it: as its leader, or as a follower."""

    __slots__ = (
        "_cluster", "_elected", "_flushes", "_known_stable", "_known_start", "_last_waiting",
        "_shown_before", "_waiting", "_waiting_here",
        "appended", "at_mark", "high_watermark", "id", "in_sync", "isr", "leader_epoch", "leading",
        "log", "readable", "stable", "state", "tenure", "topic_id", "traffic", "truncating",
        "watches", "written",
    )  # fmt: skip

    def __init__(
        self,
        partition: TopicPartition,
        topic_id: TopicId,
        log: Log,
        state: PartitionState,
        durability: Durability,
        cluster: ClusterView | None = None,
        high_watermark: int = -1,
    ) -> None:
        # for the life of the partition
        self.id = partition
        self.topic_id = topic_id
        self.log = log
        self.readable = Signal()  # signalled with the number of bytes that became readable
        self.stable = Signal()  # with that of bytes below the last stable offset: see stable_signal
        self.appended = Signal()  # with the number of bytes that followers can fetch
        self.watches: list[Watch] = []  # of the followers' fetch sessions
        self.traffic = TopicTraffic()  # where its topic is counted
        self._known_start = log.log_start_offset  # by these
        self._known_stable = 0  # by those who wait for `stable`
        self.isr = IsrReview(self, cluster)  # asks for other in-sync sets
        self._flushes = Flushes(self, durability)
        self._cluster = cluster
        # changes with every election
        self.state = state
        self.leader_epoch = state.leader_epoch
        self.leading = cluster is None
        self.in_sync: InSyncReplicas | None = None  # of a leader that has followers
        self.at_mark = False  # as a follower: all is here that its leader knew to be safe
        self.truncating = False  # nothing is appended, and nobody leads, before that is done
        self._elected: tuple[PartitionState, Rules | None] | None = None  # while it is truncated
        # changes with every append
        # Numbered: for the high watermark, and for this broker's disk.
        self._waiting: dict[int, tuple[int, Deferred[None]]] = {}
        self._waiting_here: dict[int, tuple[int, Deferred[None]]] = {}
        self._last_waiting = 0
        end = log.log_end_offset
        self.written = end  # this broker's part of the promise is kept below
        if len(state.replicas) > 1:
            # Only followers can tell what is safe; until they do, what was known before counts.
            end = min(max(high_watermark, log.log_start_offset), end)
        self.high_watermark = log.high_watermark = end
        self._shown_before = end  # at most, by who led before, or by this broker before its restart
        if log.unflushed_messages and log.flush_due:
            shown = max(log.recovery_point, log.log_start_offset)
            self.written = shown
            self.high_watermark = log.high_watermark = min(self.high_watermark, shown)
            self._flushes.ask_for_tail()
        self.tenure = Tenure(self, cluster)  # from this mark on

    # ------------------------------------------------------------------ roles

    def lead(self, state: PartitionState, rules: Rules | None = None) -> None:
        """Become (or stay) leader under `state`.

        A new epoch begins at the log's end, so that followers, who ask for theirs, are told where
        to truncate to.
        """
        if self.truncating:
            self._elected = (state, rules)
            return
        stays = self.leading and state.leader_epoch == self.leader_epoch
        if not stays:
            self.tenure.remember(state)
        self.state = state
        self.leader_epoch = state.leader_epoch
        self.leading = True
        self.log.begin_epoch(state.leader_epoch)
        self._flushes.ask_for_rest()
        cluster, followers = self._cluster, self.in_sync
        if cluster is None or len(state.replicas) == 1:
            self.in_sync = None
            if not stays:
                # Whoever led before, this one among others perhaps, may have shown all there is.
                self._shown_before = self.log.log_end_offset
            if followers is not None or self.high_watermark < self.written:
                self._advance()
            return
        if stays and followers is not None:
            if rules is not None:
                followers.rules = rules
            asked = False
            if state.partition_epoch > followers.state.partition_epoch:
                asked = followers.confirmed(state, cluster.now_ms())
                self._tell_of_change()
            self._advance()
            self.isr.review_eligible()
            if asked:
                self.isr.review()
            return
        self.in_sync = InSyncReplicas(
            cluster.node_id,
            state,
            self.log.log_end_offset,
            rules or Rules(1),
            cluster.now_ms(),
            all_here=self.tenure.all_here,
        )
        self._tell_of_change()
        self._advance()
        self.isr.review_eligible()

    def follow(self, state: PartitionState) -> None:
        """Be a follower under `state`: whoever waits here for a leader is told."""
        led = self.leading
        self._elected = None
        self.tenure.remember(state)
        self.at_mark = self.at_mark and state.leader_epoch == self.leader_epoch
        self.state = state
        self.leader_epoch = state.leader_epoch
        self.leading = False
        self.in_sync = None
        if led:
            self.retire()

    @property
    def leader(self) -> int | None:
        """Who leads, as far as is known here."""
        return None if self.state.leader == NO_LEADER else self.state.leader

    # ------------------------------------------------------------------ writing

    def append(
        self,
        records: memoryview,
        now_ms: int,
        prepared: bool = False,
        header: BatchHeader | None = None,
        origin: Origin = Origin.CLIENT,
        guard: Guard | None = None,
    ) -> AppendInfo:
        """Validate, write, and make readable what may be read. Raises KafkaError, or TakesLong;
        NOT_LEADER_OR_FOLLOWER also for who has kept the partition from when it was led here.

        `prepared` batches have been through `storage.validate.prepare`; those with a `header` were
        built by the caller. A client's have sequence numbers and are never control batches. The
        first batch of a transaction comes with a `guard`.
        """
        if not self.leading:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        log = self.log
        info = log.append(
            records,
            leader_epoch=self.leader_epoch,
            now_ms=now_ms,
            prepared=prepared,
            header=header,
            origin=origin,
            guard=guard,
        )
        if not info.duplicate:
            traffic = self.traffic
            traffic.messages_in += info.last_offset - info.base_offset + 1
            traffic.bytes_in += info.bytes
            if self._flushes.awaited or log.flush_due:
                self._flushes.ask()
                if self.in_sync is not None:
                    self._tell_of_more(info.bytes)
            elif self.in_sync is None:
                self.written = self.high_watermark = log.high_watermark = log.log_end_offset
                self.readable.notify(info.bytes)
                if self.stable.waiters:
                    self._tell_of_stable()
            else:
                self.written = log.log_end_offset
                self._tell_of_more(info.bytes)
                if self.in_sync.alone:
                    self._advance()
        elif self._unflushed(info):
            self._flushes.ask()
        return info

    def append_marker(self, marker: Marker, now_ms: int) -> AppendInfo:
        """End a producer's transaction here: the only way in for a control batch. Refused for a
        coordinator, or for a producer, that another one has replaced. Raises KafkaError."""
        if not self.leading:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        batch = marker.batch(now_ms)
        header = self.log.check_marker(batch, raised=marker.raises_epoch)
        info = self.append(batch, now_ms, header=header, origin=Origin.COORDINATOR)
        self._forget_ended()
        return info

    def _forget_ended(self) -> None:
        """Have the ends forgotten that are replicated by now: asking for the last stable offset
        does that, and where nobody reads nobody else asks."""
        self.last_stable_offset()

    def check_enough_in_sync(self) -> None:
        """NOT_ENOUGH_REPLICAS where `acks=all` could not be kept."""
        in_sync = self.in_sync
        if in_sync is not None and not in_sync.enough:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"The size of the current ISR {sorted(in_sync.state.isr)} is insufficient to "
                f"satisfy the min.isr requirement of {in_sync.min_insync} for partition {self.id}.",
            )

    def committed(self, info: AppendInfo, acks: int = -1) -> bool:
        """Whether the append may be acknowledged now; else `wait_committed`."""
        if (self.high_watermark if acks == -1 else self.written) <= info.last_offset:
            return False
        return not (info.duplicate and self._unflushed(info))

    def _unflushed(self, info: AppendInfo) -> bool:
        """Whether a batch that was in the log already must be synced before it is acknowledged."""
        return self.log.flush_due and info.last_offset >= self.log.recovery_point

    def wait_committed(self, info: AppendInfo, acks: int = -1) -> Deferred[None]:
        """Done when the append may be acknowledged; who waits no longer abandons it."""
        waiting: Deferred[None] = Deferred()
        line = self._waiting if acks == -1 or self.in_sync is None else self._waiting_here
        self._last_waiting = number = self._last_waiting + 1
        line[number] = info.last_offset, waiting
        waiting.on_abandon = partial(line.pop, number, None)
        return waiting

    # ------------------------------------------------------------------ followers

    def fetched_by(
        self,
        broker: int,
        broker_epoch: int,
        offset: int,
        log_start: int,
        asked_after_ms: float = LONG_AGO,
    ) -> None:
        """A follower has everything below `offset`; it has asked for more after a moment."""
        in_sync, cluster = self.in_sync, self._cluster
        if in_sync is None or cluster is None or broker not in in_sync.followers:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {broker} holds no replica of {self.id}"
            )
        if offset > self.log.log_end_offset:
            # Its log is another one, and says nothing about what it has of this one.
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        moved = in_sync.fetched(
            broker,
            broker_epoch,
            offset,
            self.log.log_end_offset,
            cluster.now_ms(),
            asked_after_ms,
        )
        in_sync.followers[broker].start = log_start
        if broker not in in_sync.state.isr:
            if in_sync.may_add(broker, self.high_watermark, cluster.may_join):
                cluster.propose_isr(self, in_sync.with_((broker,)))
        elif offset < self.high_watermark:
            self.isr.shrink()
        if in_sync.state.elr:
            self.isr.review_eligible()
        if moved:
            self._advance()

    def rests(self, broker: int, broker_epoch: int, fetcher: Attendance) -> bool:
        """Lay a follower to rest that is in sync and at the end of the log: it counts as caught up,
        and vouches, whenever its `fetcher` comes by, until `stir`. False if it is not so."""
        in_sync = self.in_sync
        if in_sync is None:
            return False
        follower = in_sync.followers.get(broker)
        if (
            follower is None
            or follower.end != self.log.log_end_offset
            or follower.broker_epoch != broker_epoch
            or broker not in in_sync.state.isr
            or in_sync.state.elr
        ):
            return False
        follower.rest(fetcher)
        return True

    def stir(self, broker: int, fetcher: Attendance) -> None:
        """Something has moved, or the `fetcher` has ended: the follower has to tell of itself."""
        follower = None if self.in_sync is None else self.in_sync.followers.get(broker)
        if follower is not None and follower.rests_with(fetcher):
            follower.stir()

    def _tell_of_more(self, size: int) -> None:
        self.appended.notify(size)
        for watch in self.watches:
            watch.appended(size)

    def _tell_of_change(self) -> None:
        for watch in self.watches:
            watch.changed()

    def tell_of_start(self) -> None:
        """Have the followers told where the log starts by now, if retention has moved that."""
        start = self.log.log_start_offset
        if start != self._known_start:
            self._known_start = start
            self._tell_of_change()

    def recount(self) -> None:
        """Somebody may not count any more who was about to join: see how far the others are."""
        if self.in_sync is not None:
            self._advance()

    def _advance(self) -> None:
        """Move the high watermark as far as the in-sync replicas are; tell those who wait."""
        in_sync, cluster, log = self.in_sync, self._cluster, self.log
        before = self.high_watermark
        if in_sync is None or cluster is None:
            mark = max(before, self.written)
        else:
            mark = in_sync.high_watermark(
                before, self.written, cluster.now_ms(), cluster.max_lag_ms, cluster.may_join
            )
        if mark > before:
            gained = self._gained(mark)
            if log.failure is not None:
                return  # found just now, when the bytes were counted
            self.high_watermark = log.high_watermark = mark
            self._tell_of_change()
            self._settle(self._waiting, mark)
            self.readable.notify(gained)
            if self.stable.waiters:
                self._tell_of_stable()

    def _gained(self, mark: int) -> int:
        """How many bytes become readable when the high watermark moves, if anybody waits for them;
        some, for want of a descriptor to count them. A failed disk shows in the log: others must
        not fail with it."""
        if not self.readable.waiters:
            return 0
        try:
            return self.log.bytes_from(self.high_watermark, mark)
        except KafkaError:
            return 1

    def stable_signal(self) -> Signal:
        """What tells readers of committed records that there is more for them: an end of the
        oldest open transaction, and not what is appended behind it."""
        if not self.stable.waiters:
            self._known_stable = self.last_stable_offset()
        return self.stable

    def _tell_of_stable(self) -> None:
        stable = self.last_stable_offset()
        if stable <= self._known_stable:
            return
        try:
            gained = self.log.bytes_from(self._known_stable, stable)
        except KafkaError:
            gained = 1
        self._known_stable = stable
        self.stable.notify(gained)

    @staticmethod
    def _settle(line: dict[int, tuple[int, Deferred[None]]], end: int) -> None:
        """Answer those who wait for what is below `end`.

        Not in order: who sends a batch again waits for an earlier offset than others before him.
        """
        for number in [each for each, (last_offset, _) in line.items() if last_offset < end]:
            if number in line:
                line.pop(number)[1].resolve(None)

    def _fail_waiting(self, error: KafkaError) -> None:
        for line in (self._waiting, self._waiting_here):
            while line:
                line.pop(next(iter(line)))[1].fail(error)

    # ------------------------------------------------------------------ following

    def append_replicated(
        self, records: memoryview, high_watermark: int, leader_start: int
    ) -> None:
        """Take over what the leader sent, and what it knows to be safe and gone."""
        log = self.log
        if len(records):
            log.append_replicated(records, leader_epoch=self.leader_epoch)
            self.traffic.replicated_in += len(records)
            if not log.flush_due:
                self.written = log.log_end_offset
        self.at_mark = log.log_end_offset >= high_watermark
        mark = min(high_watermark, log.log_end_offset)
        if mark > self.high_watermark:
            gained = self._gained(mark)
            self.high_watermark = log.high_watermark = mark
            if self._cluster is not None:
                self.tenure.past.moved(mark, self._cluster.now_ms())
            self.readable.notify(gained)
            if self.stable.waiters:
                self._tell_of_stable()
            else:
                self._forget_ended()
        if leader_start > log.log_start_offset:
            log.advance_start(min(leader_start, self.high_watermark))

    def wait_written(self) -> asyncio.Future[None] | None:
        """Done when a follower may tell its leader of what it has: on its disk, where the topic
        asks for that; None if it may do so now."""
        return self._flushes.wait_written() if self.log.flush_due else None

    def begin_truncation(self) -> None:
        """The log is about to be cut, which takes a while: nothing is appended meanwhile, and who
        is elected meanwhile leads when it is done."""
        self.truncating = True

    def end_truncation(self) -> None:
        self.truncating = False
        end = self.written = self.log.log_end_offset
        self._shown_before = min(self._shown_before, end)
        if self.high_watermark > end:
            self.high_watermark = self.log.high_watermark = end
        elected, self._elected = self._elected, None
        if elected is not None:
            self.lead(*elected)

    def flushed(self, flush: asyncio.Future[None], end: int) -> bool:
        """A flush of everything below `end` is over: show it, acknowledge it. Says whether it
        succeeded."""
        log = self.log
        error: BaseException | None = None
        if flush.cancelled() or log.failure is not None:
            error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, log.failure)
        else:
            error = flush.exception()
        if error is not None:
            self._fail_waiting(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
            if isinstance(error, OutOfDescriptors):
                self._flushes.ask_for_tail()
            return False
        self.written = max(self.written, end)
        self._settle(self._waiting_here, end)
        if self._cluster is None or len(self.state.replicas) == 1 or self.in_sync is not None:
            self._advance()
        # Who sent a batch again that was committed and not yet synced: the mark need not move.
        self._settle(self._waiting, min(end, self.high_watermark))
        return True

    # ------------------------------------------------------------------ reading

    @property
    def knows_high_watermark(self) -> bool:
        """Whether the mark is at least where the leader before this one, or this one before its
        restart, may have shown it."""
        in_sync = self.in_sync
        if in_sync is None:
            if self._elected is not None:
                return False  # it will lead, with a follower's mark until then
            return self.high_watermark >= self._shown_before
        return self.high_watermark >= in_sync.epoch_start

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    def last_stable_offset(self) -> int:
        return self.log.last_stable_offset(self.high_watermark)

    def read(
        self, offset: int, max_bytes: int, upper: int, min_one: bool, *, cached_only: bool = False
    ) -> ReadResult:
        """Batches from `offset` up to `upper` (a high watermark, a last stable offset, or for a
        follower the end); with `cached_only` ColdRead rather than waiting for the disk."""
        if upper < offset <= self.log.log_end_offset:
            # Between the mark and the end there is nothing to see yet, but it is no error.
            offset = max(upper, self.log.log_start_offset)
        return self.log.read(
            offset, max_bytes, upper=upper, min_one=min_one, cached_only=cached_only
        )

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to the given one, and where it ends; (-1, -1) if unknown."""
        return self.log.epoch_end_offset(epoch)

    def start_epoch(self) -> int:
        """The leader epoch at the log's start; that of this leader while the log is empty."""
        epoch = self.log.epoch_for(self.log.log_start_offset)
        return NO_LEADER_EPOCH if epoch is None else epoch

    def check_epoch(self, epoch: int) -> None:
        """Fence a client that knows another leader than us (KIP-320)."""
        if epoch in (NO_LEADER_EPOCH, self.leader_epoch):
            return
        if epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def delete_records(self, offset: int) -> int:
        """Move the log start up to `offset` (-1: the high watermark); returns the new start."""
        if "delete" not in self.log.config.cleanup_policy:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"records of {self.id} are not deletable: its cleanup.policy has no 'delete'",
            )
        if offset == -1:
            offset = self.high_watermark
        if offset < 0 or offset > self.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        self.log.advance_start(offset)
        self.tell_of_start()
        return self.log.log_start_offset

    def low_watermark(self, live: Container[int]) -> int:
        """The lowest log start of the replicas on live brokers, as far as it is known."""
        own = self.log.log_start_offset
        return own if self.in_sync is None else self.in_sync.lowest_start(own, live)

    def retire(self) -> None:
        """The partition is deleted or led elsewhere: nobody waits here any longer."""
        self.readable.hurry()
        self.stable.hurry()
        self.appended.hurry()
        for watch in self.watches:
            watch.hurry()
        self._fail_waiting(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
