"""Committed offsets: commit, fetch, delete, expire, and those of open transactions.

The offsets are kept per group, topic and partition, each with the position of its record in the
log. An offset committed in a transaction (TxnOffsetCommit) is pending until its marker is written;
then it counts, unless a later record has committed the same partition since.

The group decides who may commit or read (`group.Group`). A commit without a member, to a group that
does not exist, makes a simple group: one without members that keeps offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from ottla.coordinator.group import journal
from ottla.coordinator.group.classic_group import ClassicGroup
from ottla.coordinator.group.commands import (
    CommitOffsets,
    DeleteOffsets,
    FetchedPartition,
    FetchedTopic,
    FetchOffsets,
    ForgetTopicIds,
    ForgetTopics,
    PartitionCommit,
)
from ottla.coordinator.group.expiry import expired
from ottla.coordinator.group.group import CommittedOffset, Group, ShardState
from ottla.coordinator.group.journal import OffsetEntry
from ottla.coordinator.shard import Now, Record, Result
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_PRODUCER_ID, ZERO_TOPIC_ID

GROUP_ID_NOT_FOUND_SINCE = 9
"""The version of OffsetCommit from which a client is told that there is no such group."""

Place = tuple[str, str, int]
"""Group, topic, partition."""

LATEST_TIME = 2**63 - 1


class _Stored(NamedTuple):
    committed: CommittedOffset
    position: int  # of its record in the log


class OffsetMachine:
    """The committed offsets of a shard."""

    def __init__(self, state: ShardState) -> None:
        self._state = state
        self._stored: dict[str, dict[str, dict[int, _Stored]]] = {}
        self._pending: dict[int, dict[Place, _Stored]] = {}  # by producer id
        # Of each group the partitions of these, and in how many transactions each is. Every fetch
        # asks for those of its own group: what others have open must not make it slower.
        self._pending_of: dict[str, Counter[tuple[str, int]]] = {}

    def __len__(self) -> int:
        return sum(
            len(partitions) for topics in self._stored.values() for partitions in topics.values()
        )

    # ------------------------------------------------------------------ commit

    def commit(self, command: CommitOffsets, now: Now) -> Result:
        group = self._state.groups.get(command.group_id)
        transactional = command.producer is not None
        if group is None:
            if command.epoch >= 0:
                old = transactional or command.api_version < GROUP_ID_NOT_FOUND_SINCE
                raise KafkaError(
                    ErrorCode.ILLEGAL_GENERATION if old else ErrorCode.GROUP_ID_NOT_FOUND
                )
        else:
            try:
                group.check_offset_commit(
                    command.member_id,
                    command.instance_id,
                    command.epoch,
                    api_version=command.api_version,
                    transactional=transactional,
                )
            except KafkaError as error:
                if transactional and error.code is ErrorCode.STALE_MEMBER_EPOCH:
                    raise KafkaError(ErrorCode.ILLEGAL_GENERATION, error.message) from None
                raise
        limit = self._state.config().offset_metadata_max_bytes
        # A retention of ages stays within what the record can hold.
        expires = (
            -1 if command.retention_ms < 0 else min(now.wall_ms + command.retention_ms, LATEST_TIME)
        )
        codes = []
        records = []
        for commit in command.partitions:
            metadata = commit.metadata or ""
            if len(metadata) > limit:
                codes.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            codes.append(ErrorCode.NONE)
            records.append(_record(command.group_id, commit, metadata, now.wall_ms, expires))
        self._state.counts.offsets_committed += len(records)
        return Result(codes, records, producer=command.producer)

    # ------------------------------------------------------------------ fetch

    def fetch(self, command: FetchOffsets, now: Now) -> Result:
        group = self._state.groups.get(command.group_id)
        if group is not None:
            group.check_offset_fetch(command.member_id, command.epoch)
        stored = {} if group is None else self._stored.get(command.group_id, {})
        unstable = self._pending_places(command.group_id) if command.require_stable else ()
        reply = []
        if command.topics is None:
            for topic, known in stored.items():
                answers = [
                    _fetched(partition, stored_offset, (topic, partition) in unstable)
                    for partition, stored_offset in known.items()
                ]
                reply.append(FetchedTopic(topic, answers))
            return Result(reply)
        for topic, partitions, topic_id in command.topics:
            known = stored.get(topic, {})
            answers = []
            for partition in partitions:
                stored_offset = known.get(partition)
                if stored_offset is not None and _of_another_topic(
                    stored_offset.committed.topic_id, topic_id
                ):
                    stored_offset = None
                answers.append(_fetched(partition, stored_offset, (topic, partition) in unstable))
            reply.append(FetchedTopic(topic, answers))
        return Result(reply)

    def committed(self, group_id: str, topic: str, partition: int) -> int | None:
        """The offset a group has committed; None if none. Open transactions do not count."""
        found = self._known((group_id, topic, partition))
        return None if found is None else found.committed.offset

    def committed_in(self, topic: str) -> Iterator[tuple[str, int, int]]:
        """Group, partition and offset of everything committed in a topic."""
        for group_id, topics in self._stored.items():
            for partition, found in topics.get(topic, {}).items():
                yield group_id, partition, found.committed.offset

    def all_committed(self) -> Iterator[tuple[str, str, int, int]]:
        """Group, topic, partition and offset of everything committed; others may commit between
        two steps."""
        for group_id in list(self._stored):
            for topic, partitions in list(self._stored.get(group_id, {}).items()):
                for partition, found in list(partitions.items()):
                    yield group_id, topic, partition, found.committed.offset

    # ------------------------------------------------------------------ delete, expire

    def delete(self, command: DeleteOffsets, now: Now) -> Result:
        group = self._state.groups.get(command.group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {command.group_id} not found.")
        group.check_offset_delete()
        pending = self._pending_places(group.id)
        codes = []
        records = []
        for topic, partition in command.partitions:
            if group.is_subscribed(topic):
                codes.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
                continue
            codes.append(ErrorCode.NONE)
            known = partition in self._stored.get(group.id, {}).get(topic, {})
            if known or (topic, partition) in pending:
                records.append(journal.offset_tombstone(group.id, topic, partition))
        self._state.counts.offsets_deleted += len(records)
        return Result(codes, records)

    def tombstones(self, group_id: str) -> list[Record]:
        """The end of everything a group has committed."""
        places = dict.fromkeys(
            (topic, partition)
            for topic, partitions in self._stored.get(group_id, {}).items()
            for partition in partitions
        )
        places.update(dict.fromkeys(self._pending_places(group_id)))
        return [journal.offset_tombstone(group_id, topic, part) for topic, part in places]

    def forget_topics(self, command: ForgetTopics, now: Now) -> Result:
        # Told while the shard was being loaded, it may come late: to topics of the same names, with
        # what another coordinator has let groups commit in these.
        topics = self._state.image.topics
        anew = {topics[name].id for name in command.topics if name in topics} - {ZERO_TOPIC_ID}
        return self._forget(
            lambda place, stored: (
                place[1] in command.topics and stored.committed.topic_id not in anew
            )
        )

    def forget_topic_ids(self, command: ForgetTopicIds, now: Now) -> Result:
        return self._forget(lambda _, stored: stored.committed.topic_id in command.topic_ids)

    def _forget(self, is_gone: Callable[[Place, _Stored], bool]) -> Result:
        """The end of offsets in topics that are gone.

        A tombstone ends all that is known of its partition. An open transaction may have an offset
        of the old topic, when its commit was under way as that was deleted, beside one that is
        committed in the new topic: that one stays.
        """
        places = [
            place
            for place, stored in self._all()
            if is_gone(place, stored)
            and ((known := self._known(place)) is None or is_gone(place, known))
        ]
        return Result(records=_tombstones(places), atomic=False)

    def topic_ids(self) -> set[bytes]:
        """The topics, as far as known by id, of which there are offsets."""
        return {stored.committed.topic_id for _, stored in self._all()} - {ZERO_TOPIC_ID}

    def expire(self, now: Now) -> Result:
        """Offsets past their retention, and the groups that have become empty of everything."""
        retention_ms = self._state.config().offsets_retention_minutes * 60_000
        records: list[Record] = []
        for group in self._state.groups.values():
            gone, all_gone = self._expired(group, now, retention_ms)
            self._state.counts.offsets_expired += len(gone)
            records += [journal.offset_tombstone(group.id, topic, part) for topic, part in gone]
            if all_gone and group.is_empty() and group.should_expire():
                records += group.tombstones()
        return Result(records=records, atomic=False)

    def _expired(
        self, group: Group, now: Now, retention_ms: int
    ) -> tuple[list[tuple[str, int]], bool]:
        pending = self._pending_places(group.id)
        stored = self._stored.get(group.id)
        if stored is None:
            return [], not pending
        offsets = {
            topic: {
                partition: stored_offset.committed
                for partition, stored_offset in partitions.items()
            }
            for topic, partitions in stored.items()
        }
        gone = [
            place
            for place in expired(group, offsets, now_ms=now.wall_ms, retention_ms=retention_ms)
            if place not in pending
        ]
        total = sum(len(partitions) for partitions in stored.values())
        return gone, len(gone) == total and not pending

    # ------------------------------------------------------------------ the log

    def replay(self, entry: OffsetEntry, offset: int, producer_id: int) -> None:
        place = (entry.group_id, entry.topic, entry.partition)
        if entry.value is None:
            self._remove(place)
            if place[1:] in self._pending_places(entry.group_id):
                for pending in self._pending.values():
                    if pending.pop(place, None) is not None:
                        self._uncount(place)
            return
        if entry.group_id not in self._state.groups:
            simple = ClassicGroup(entry.group_id, entry.value.commit_timestamp_ms)
            self._state.groups[entry.group_id] = simple
        stored = _Stored(entry.value, offset)
        if producer_id == NO_PRODUCER_ID:
            self._store(place, stored)
        else:
            pending = self._pending.setdefault(producer_id, {})
            if place not in pending:
                self._pending_of.setdefault(entry.group_id, Counter())[place[1:]] += 1
            pending[place] = stored

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        pending = self._pending.pop(producer_id, {})
        for place in pending:
            self._uncount(place)
        if not committed:
            return
        for place, stored in pending.items():
            known = self._known(place)
            if known is None or stored.position > known.position:
                self._store(place, stored)

    def _known(self, place: Place) -> _Stored | None:
        """What is committed; open transactions do not count."""
        group_id, topic, partition = place
        return self._stored.get(group_id, {}).get(topic, {}).get(partition)

    def _store(self, place: Place, stored: _Stored) -> None:
        group_id, topic, partition = place
        topics = self._stored.get(group_id)
        if topics is None:
            topics = self._stored[group_id] = {}
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
        partitions[partition] = stored

    def _remove(self, place: Place) -> None:
        group_id, topic, partition = place
        topics = self._stored.get(group_id)
        partitions = None if topics is None else topics.get(topic)
        if topics is None or partitions is None:
            return
        partitions.pop(partition, None)
        if not partitions:
            del topics[topic]
        if not topics:
            del self._stored[group_id]

    def _all(self) -> Iterator[tuple[Place, _Stored]]:
        for group_id, topics in self._stored.items():
            for topic, partitions in topics.items():
                for partition, stored in partitions.items():
                    yield (group_id, topic, partition), stored
        for pending in self._pending.values():
            yield from pending.items()

    def _pending_places(self, group_id: str) -> Collection[tuple[str, int]]:
        """The partitions that open transactions of a group will commit."""
        return self._pending_of.get(group_id, ())

    def _uncount(self, place: Place) -> None:
        """A transaction will not commit this partition any more."""
        group_id, topic, partition = place
        places = self._pending_of[group_id]
        places[topic, partition] -= 1
        if not places[topic, partition]:
            del places[topic, partition]
            if not places:
                del self._pending_of[group_id]


def _record(
    group_id: str, commit: PartitionCommit, metadata: str, now_ms: int, expires_ms: int
) -> Record:
    return journal.offset(
        group_id,
        commit.topic,
        commit.partition,
        CommittedOffset(
            commit.offset, commit.leader_epoch, metadata, now_ms, expires_ms, commit.topic_id
        ),
    )


def _fetched(partition: int, stored: _Stored | None, unstable: bool) -> FetchedPartition:
    if unstable:
        return FetchedPartition(partition, None, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    return FetchedPartition(partition, None if stored is None else stored.committed)


def _of_another_topic(committed: bytes, wanted: bytes) -> bool:
    """Whether the offset was committed for a topic that had the same name before."""
    return committed != wanted and ZERO_TOPIC_ID not in (committed, wanted)


def _tombstones(places: list[Place]) -> list[Record]:
    return [journal.offset_tombstone(*place) for place in dict.fromkeys(places)]
