"""What is packed by hand for commits and rebalances is what the codecs write, byte for byte, and
what need not be read again is what would have been read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.coordinator.group import journal
from ottla.coordinator.group.group import CommittedOffset
from ottla.coordinator.shard import Written
from ottla.model.ids import ZERO_TOPIC_ID
from ottla.protocol.messages.internal import consumer_group as wire
from ottla.protocol.messages.internal.offset_commit import OffsetCommitKey, OffsetCommitValue
from ottla.records.batch import read_header
from ottla.records.builder import build_batch, build_single

LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)
TEXTS = st.text(max_size=200)
NOTES = TEXTS | st.integers(120, 130).map(lambda size: "n" * size)
IDS = st.just(ZERO_TOPIC_ID) | st.binary(min_size=16, max_size=16)
SHARES = st.dictionaries(
    st.binary(min_size=16, max_size=16),
    st.frozensets(st.integers(0, 2**31 - 1), max_size=8)
    | st.sampled_from([126, 127, 128, 20_000]).map(lambda count: frozenset(range(count))),
    max_size=3,
)
BYTES = st.binary(max_size=200) | st.sampled_from([63, 64, 8191, 8192, 1 << 20]).map(bytes)


@given(
    st.builds(CommittedOffset, LONGS, INTS, NOTES, LONGS, st.just(-1) | LONGS, IDS),
    TEXTS,
    TEXTS,
    INTS,
)
def test_offsets_are_packed_as_the_codec_does(
    each: CommittedOffset, group: str, topic: str, partition: int
) -> None:
    key, value = journal.offset(group, topic, partition, each)
    assert key == journal._key(OffsetCommitKey(group=group, topic=topic, partition=partition))
    message = OffsetCommitValue(
        offset=each.offset,
        leader_epoch=each.leader_epoch,
        metadata=each.metadata,
        commit_timestamp=each.commit_timestamp_ms,
        expire_timestamp=each.expire_timestamp_ms,
        topic_id=each.topic_id,
    )
    expires = each.expire_timestamp_ms >= 0
    version = journal.OFFSET_WITH_EXPIRY_VERSION if expires else journal.OFFSET_VERSION
    assert value == journal._value(message, version)


def _listed(shares: journal.Partitions) -> list[wire.TopicPartitions]:
    return [
        wire.TopicPartitions(topic_id=topic, partitions=sorted(numbers))
        for topic, numbers in shares.items()
    ]


@given(TEXTS, INTS, st.just(0) | LONGS)
def test_epochs_are_packed_as_the_codec_does(group: str, epoch: int, metadata_hash: int) -> None:
    _, value = journal.consumer_group(group, epoch, metadata_hash)
    message = wire.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    assert value == journal._value(message, journal.CONSUMER_VERSION)
    _, value = journal.target_epoch(group, epoch)
    target = wire.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch)
    assert value == journal._value(target, journal.CONSUMER_VERSION)


@given(TEXTS, TEXTS, SHARES)
def test_targets_are_packed_as_the_codec_does(
    group: str, member: str, shares: journal.Partitions
) -> None:
    _, value = journal.target_assignment(group, member, shares)
    message = wire.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=_listed(shares))
    assert value == journal._value(message, journal.CONSUMER_VERSION)


@given(
    TEXTS,
    TEXTS,
    st.builds(journal.CurrentAssignment, INTS, INTS, st.integers(0, 127), SHARES, SHARES),
)
def test_assignments_are_packed_as_the_codec_does(
    group: str, member: str, each: journal.CurrentAssignment
) -> None:
    _, value = journal.current_assignment(group, member, each)
    message = wire.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=each.member_epoch,
        previous_member_epoch=each.previous_member_epoch,
        state=each.state,
        assigned_partitions=_listed(each.assigned),
        partitions_pending_revocation=_listed(each.pending_revocation),
    )
    assert value == journal._value(message, journal.CONSUMER_VERSION)


MEMBERS = st.builds(
    journal.MemberSnapshot,
    TEXTS,
    st.none() | TEXTS,
    TEXTS,
    TEXTS,
    st.just(0) | INTS,
    INTS,
    BYTES,
    BYTES,
)
GENERATIONS = st.builds(
    journal.GroupSnapshot,
    TEXTS,
    INTS,
    st.none() | TEXTS,
    st.none() | TEXTS,
    LONGS,
    st.lists(MEMBERS, max_size=3).map(tuple),
)


@given(TEXTS, GENERATIONS)
def test_a_generation_means_what_its_record_says(
    group: str, generation: journal.GroupSnapshot
) -> None:
    record = journal.group(group, generation)
    if isinstance(record, Written):
        assert record.meaning == journal.decode(*record)
    else:
        assert any(not each.rebalance_timeout_ms for each in generation.members)


@given(st.integers(0, 2**63 - 1), BYTES, BYTES)
def test_single_records_are_built_as_batches_are(timestamp: int, key: bytes, value: bytes) -> None:
    batch, header = build_single(timestamp, key, value)
    assert bytes(batch) == bytes(build_batch([(timestamp, key, value, ())]))
    assert header == read_header(memoryview(batch), 0)
