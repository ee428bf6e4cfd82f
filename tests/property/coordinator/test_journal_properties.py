"""What is packed by hand on the way of a commit is what the codecs write, byte for byte."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.coordinator.group import journal
from ottla.coordinator.group.members import CommittedOffset
from ottla.model.ids import ZERO_TOPIC_ID
from ottla.protocol.messages.internal.offset_commit import OffsetCommitKey, OffsetCommitValue
from ottla.records.batch import read_header
from ottla.records.builder import build_batch, build_single

LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)
TEXTS = st.text(max_size=200)
NOTES = TEXTS | st.integers(120, 130).map(lambda size: "n" * size)
IDS = st.just(ZERO_TOPIC_ID) | st.binary(min_size=16, max_size=16)
BYTES = st.binary(max_size=200) | st.sampled_from([63, 64, 8191, 8192, 1 << 20]).map(bytes)


@given(
    st.builds(CommittedOffset, LONGS, INTS, NOTES, LONGS, st.just(-1) | LONGS, IDS),
    TEXTS,
    TEXTS,
    INTS,
)
def test_offsets_are_packed_as_the_codec_does(
    it: CommittedOffset, group: str, topic: str, partition: int
) -> None:
    key, value = journal.offset(group, topic, partition, it)
    assert key == journal._key(OffsetCommitKey(group=group, topic=topic, partition=partition))
    message = OffsetCommitValue(
        offset=it.offset,
        leader_epoch=it.leader_epoch,
        metadata=it.metadata,
        commit_timestamp=it.commit_timestamp_ms,
        expire_timestamp=it.expire_timestamp_ms,
        topic_id=it.topic_id,
    )
    expires = it.expire_timestamp_ms >= 0
    version = journal.OFFSET_WITH_EXPIRY_VERSION if expires else journal.OFFSET_VERSION
    assert value == journal._value(message, version)


@given(st.integers(0, 2**63 - 1), BYTES, BYTES)
def test_single_records_are_built_as_batches_are(timestamp: int, key: bytes, value: bytes) -> None:
    batch, header = build_single(timestamp, key, value)
    assert bytes(batch) == bytes(build_batch([(timestamp, key, value, ())]))
    assert header == read_header(memoryview(batch), 0)
