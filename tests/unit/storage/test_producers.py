"""Idempotent producers and transactions, as a log sees them."""

from __future__ import annotations

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.records.batch import CONTROL_FLAG, MAGIC, TRANSACTIONAL_FLAG, BatchHeader
from ottla.records.checksum import crc32c
from ottla.records.control import ControlType, EndMarker
from ottla.storage.producers import (
    CompletedTxn,
    Duplicate,
    Origin,
    ProducerState,
    ProducerStates,
    SnapshotError,
)

PARTITION = TopicPartition("orders", 3)
MAX = 2**31 - 1
DAY = 86_400_000
NOW = 1_700_000_000_000


def batch(
    sequence: int = 0,
    count: int = 1,
    *,
    producer: int = 7,
    epoch: int = 0,
    timestamp: int = NOW,
    transactional: bool = False,
) -> BatchHeader:
    return BatchHeader(
        base_offset=0,
        length=100,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=TRANSACTIONAL_FLAG if transactional else 0,
        last_offset_delta=count - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=count,
    )


def marker_batch(*, producer: int = 7, epoch: int = 0, timestamp: int = NOW) -> BatchHeader:
    plain = batch(-1, producer=producer, epoch=epoch, timestamp=timestamp)
    return plain._replace(attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG)


COMMIT = EndMarker(ControlType.COMMIT, 1)
ABORT = EndMarker(ControlType.ABORT, 1)


@pytest.fixture
def states() -> ProducerStates:
    return ProducerStates(PARTITION)


def append(states: ProducerStates, header: BatchHeader) -> int:
    """Check and write at the end of the log; the offset it got."""
    assert states.check(header) is None
    offset = states.end_offset
    states.update(header, offset)
    return offset


def end(states: ProducerStates, marker: EndMarker = COMMIT, **fields: int) -> CompletedTxn | None:
    header = marker_batch(**fields)
    states.check_marker(header, marker)
    return states.update(header, states.end_offset, marker)


def refusal(states: ProducerStates, header: BatchHeader) -> tuple[ErrorCode, str]:
    with pytest.raises(KafkaError) as caught:
        states.check(header)
    return caught.value.code, caught.value.message or ""


class TestSequences:
    def test_batches_in_sequence_are_accepted(self, states: ProducerStates) -> None:
        assert append(states, batch(0, 5)) == 0
        assert append(states, batch(5, 3)) == 5
        assert append(states, batch(8)) == 8
        assert states.end_offset == 9

    def test_a_gap_is_refused(self, states: ProducerStates) -> None:
        append(states, batch(0, 5))
        code, message = refusal(states, batch(6))
        assert code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert message == (
            "Out of order sequence number for producer 7 at offset 5 in partition orders-3: "
            "6 (incoming seq. number), 4 (current end sequence number)"
        )

    def test_a_refused_batch_changes_nothing(self, states: ProducerStates) -> None:
        append(states, batch(0, 5))
        refusal(states, batch(6))
        assert append(states, batch(5)) == 5

    def test_an_unknown_producer_may_begin_anywhere(self, states: ProducerStates) -> None:
        append(states, batch(1234))
        append(states, batch(1235))

    def test_batches_without_producer_are_not_judged(self, states: ProducerStates) -> None:
        for _ in range(3):
            append(states, batch(-1, 2, producer=-1, epoch=-1))
        assert states.end_offset == 6
        assert len(states) == 0

    def test_producers_do_not_disturb_each_other(self, states: ProducerStates) -> None:
        append(states, batch(0, 2, producer=1))
        append(states, batch(0, 2, producer=2))
        append(states, batch(2, producer=1))
        assert refusal(states, batch(3, producer=2))[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_sequence_numbers_go_round(self, states: ProducerStates) -> None:
        append(states, batch(MAX - 1, 2))
        append(states, batch(0))
        append(states, batch(1))

    def test_a_batch_may_lie_across_the_turn(self, states: ProducerStates) -> None:
        append(states, batch(MAX - 1, 5))
        assert states.check(batch(MAX - 1, 5)) == Duplicate(0, 4, NOW)
        append(states, batch(3))

    def test_only_zero_follows_the_highest_number(self, states: ProducerStates) -> None:
        append(states, batch(MAX, 1))
        assert refusal(states, batch(1))[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class TestDuplicates:
    def test_a_repeated_batch_is_answered_with_its_first_offsets(
        self, states: ProducerStates
    ) -> None:
        append(states, batch(-1, 10, producer=-1))
        append(states, batch(0, 5, timestamp=NOW + 1))
        append(states, batch(5, 5, timestamp=NOW + 2))
        assert states.check(batch(0, 5)) == Duplicate(10, 14, NOW + 1)
        assert states.check(batch(5, 5)) == Duplicate(15, 19, NOW + 2)

    def test_the_last_five_batches_are_remembered(self, states: ProducerStates) -> None:
        for n in range(6):
            append(states, batch(n))
        for n in range(1, 6):
            assert states.check(batch(n)) == Duplicate(n, n, NOW)
        assert refusal(states, batch(0))[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_the_same_start_with_another_length_is_no_duplicate(
        self, states: ProducerStates
    ) -> None:
        append(states, batch(0, 5))
        assert refusal(states, batch(0, 4))[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_a_coordinators_batches_have_no_duplicates(self, states: ProducerStates) -> None:
        append(states, batch(-1))
        assert states.check(batch(-1), origin=Origin.COORDINATOR) is None


class TestEpochs:
    def test_a_new_epoch_begins_at_zero(self, states: ProducerStates) -> None:
        append(states, batch(0, 5))
        append(states, batch(0, epoch=1))
        append(states, batch(1, epoch=1))

    def test_a_new_epoch_that_begins_elsewhere_is_refused(self, states: ProducerStates) -> None:
        append(states, batch(0, 5))
        code, message = refusal(states, batch(5, epoch=1))
        assert code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert message == (
            "Invalid sequence number for new epoch of producer 7 at offset 5 in partition "
            "orders-3: 1 (request epoch), 5 (seq. number), 0 (current producer epoch)"
        )

    def test_an_old_epoch_is_fenced(self, states: ProducerStates) -> None:
        append(states, batch(0, epoch=2))
        code, message = refusal(states, batch(1, epoch=1))
        assert code is ErrorCode.INVALID_PRODUCER_EPOCH
        assert "Epoch of producer 7 at offset 1 in orders-3 is 1" in message

    def test_batches_of_the_old_epoch_are_forgotten(self, states: ProducerStates) -> None:
        append(states, batch(0))
        append(states, batch(0, epoch=1))
        assert states.check(batch(0, epoch=1)) == Duplicate(1, 1, NOW)
        assert refusal(states, batch(0))[0] is ErrorCode.INVALID_PRODUCER_EPOCH

    def test_a_coordinators_append_is_fenced_by_epoch_only(self, states: ProducerStates) -> None:
        append(states, batch(0, epoch=2))
        assert states.check(batch(-1, epoch=2), origin=Origin.COORDINATOR) is None
        with pytest.raises(KafkaError) as caught:
            states.check(batch(-1, epoch=1), origin=Origin.COORDINATOR)
        assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH

    def test_a_marker_may_bring_a_new_epoch(self, states: ProducerStates) -> None:
        append(states, batch(0, transactional=True))
        end(states, epoch=1)
        assert refusal(states, batch(1))[0] is ErrorCode.INVALID_PRODUCER_EPOCH
        assert refusal(states, batch(1, epoch=1))[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        append(states, batch(0, epoch=1))


class TestTransactions:
    def test_without_transactions_everything_is_stable(self, states: ProducerStates) -> None:
        append(states, batch(0, 5))
        assert states.first_undecided_offset is None
        assert states.last_stable_offset(3) == 3
        assert states.last_stable_offset(5) == 5

    def test_the_first_batch_opens_a_transaction(self, states: ProducerStates) -> None:
        append(states, batch(0, 5))
        append(states, batch(0, producer=8, transactional=True))
        append(states, batch(1, producer=8, transactional=True))
        assert states.first_undecided_offset == 5
        assert states.last_stable_offset(7) == 5
        assert states.last_stable_offset(2) == 2

    @pytest.mark.parametrize("marker", [COMMIT, ABORT])
    def test_a_marker_completes_it(self, states: ProducerStates, marker: EndMarker) -> None:
        append(states, batch(0, 3, transactional=True))
        done = end(states, marker)
        assert done == CompletedTxn(7, 0, 3, marker.aborted, 4)
        assert states.first_undecided_offset is None

    def test_a_transaction_is_open_until_its_marker_is_replicated(
        self, states: ProducerStates
    ) -> None:
        append(states, batch(0, 3, transactional=True))
        end(states)
        assert states.last_stable_offset(2) == 0
        assert states.last_stable_offset(3) == 0
        assert states.last_stable_offset(4) == 4

    def test_the_oldest_open_transaction_counts(self, states: ProducerStates) -> None:
        append(states, batch(0, producer=1, transactional=True))
        append(states, batch(0, producer=2, transactional=True))
        append(states, batch(0, producer=3, transactional=True))
        done = end(states, ABORT, producer=2)
        assert done == CompletedTxn(2, 1, 3, True, 0)
        assert states.last_stable_offset(4) == 0
        done = end(states, ABORT, producer=1)
        assert done == CompletedTxn(1, 0, 4, True, 2)
        assert states.last_stable_offset(5) == 2
        assert end(states, producer=3) == CompletedTxn(3, 2, 5, False, 6)
        assert states.last_stable_offset(6) == 6

    def test_an_unreplicated_marker_of_an_older_transaction_holds_back(
        self, states: ProducerStates
    ) -> None:
        append(states, batch(0, producer=1, transactional=True))
        append(states, batch(0, producer=2, transactional=True))
        end(states, producer=2)
        end(states, producer=1)
        assert states.last_stable_offset(3) == 0
        assert states.last_stable_offset(4) == 4

    def test_a_marker_without_data_completes_nothing(self, states: ProducerStates) -> None:
        assert end(states) is None
        assert states.last_stable_offset(1) == 1
        assert states.end_offset == 1

    def test_a_plain_batch_in_a_transaction_is_refused(self, states: ProducerStates) -> None:
        append(states, batch(0, transactional=True))
        code, message = refusal(states, batch(1))
        assert code is ErrorCode.INVALID_TXN_STATE
        assert message == (
            "Expected transactional write from producer 7 at offset 1 in partition orders-3"
        )

    def test_the_next_transaction_continues_the_sequence(self, states: ProducerStates) -> None:
        append(states, batch(0, 2, transactional=True))
        end(states)
        append(states, batch(2, transactional=True))
        assert states.first_undecided_offset == 3

    def test_a_zombie_producers_marker_is_refused(self, states: ProducerStates) -> None:
        append(states, batch(0, epoch=5, transactional=True))
        with pytest.raises(KafkaError) as caught:
            end(states, epoch=4)
        assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH

    def test_a_zombie_coordinators_marker_is_refused(self, states: ProducerStates) -> None:
        append(states, batch(0, transactional=True))
        end(states, EndMarker(ControlType.COMMIT, 5))
        append(states, batch(1, transactional=True))
        with pytest.raises(KafkaError) as caught:
            end(states, EndMarker(ControlType.COMMIT, 4))
        assert caught.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert caught.value.message == (
            "Invalid coordinator epoch for producerId 7 at offset 3 in partition orders-3: "
            "4 (zombie), 5 (current)"
        )

    def test_an_emptied_control_batch_only_moves_the_end(self, states: ProducerStates) -> None:
        append(states, batch(0, transactional=True))
        assert states.update(marker_batch(), 1, None) is None
        assert states.first_undecided_offset == 0
        assert states.end_offset == 2

    def test_what_lies_before_the_start_of_the_log_holds_nothing_back(
        self, states: ProducerStates
    ) -> None:
        append(states, batch(0, transactional=True))
        end(states)
        states.advance_start(2)
        assert states.last_stable_offset(1) == 1

    def test_the_start_of_the_log_may_pass_its_end(self, states: ProducerStates) -> None:
        append(states, batch(0))
        states.advance_start(10)
        assert states.end_offset == 10
        assert append(states, batch(1)) == 10


class TestExpiry:
    def test_silent_producers_are_forgotten(self, states: ProducerStates) -> None:
        append(states, batch(0, producer=1, timestamp=NOW))
        append(states, batch(0, producer=2, timestamp=NOW + 1))
        assert states.expire(NOW + DAY - 1, DAY) == 0
        assert states.expire(NOW + DAY, DAY) == 1
        assert [state.producer_id for state in states.statistics()] == [2]

    def test_a_forgotten_producer_may_go_on(self, states: ProducerStates) -> None:
        append(states, batch(0, 5))
        states.expire(NOW + DAY, DAY)
        append(states, batch(99))

    def test_an_open_transaction_keeps_its_producer(self, states: ProducerStates) -> None:
        append(states, batch(0, transactional=True))
        assert states.expire(NOW + 2 * DAY, DAY) == 0
        end(states)
        assert states.expire(NOW + 2 * DAY, DAY) == 1


def test_statistics_show_what_describe_producers_needs(states: ProducerStates) -> None:
    append(states, batch(0, 5, producer=9, epoch=2))
    append(states, batch(0, producer=8, timestamp=NOW + 1, transactional=True))
    end(states, EndMarker(ControlType.COMMIT, 6), producer=9, epoch=2, timestamp=NOW + 2)
    end(states, EndMarker(ControlType.COMMIT, 6), producer=10)
    assert states.statistics() == [
        ProducerState(8, 0, 0, NOW + 1, -1, 5),
        ProducerState(9, 2, 4, NOW + 2, 6, -1),
        ProducerState(10, 0, -1, NOW, 6, -1),
    ]


class TestSnapshot:
    # ProducerStateManager.writeSnapshot of Apache Kafka 4.2 for: producer 77 epoch 3 with its last
    # batch at 105-109; 78 with an open transaction from 110; 79 with nothing but a marker.
    JAVA = bytes.fromhex(
        "000159b9c4f800000003000000000000004d000300000009000000000000006d000000040000018bcfe56801"
        "ffffffffffffffffffffffff000000000000004e000000000000000000000000006e000000000000018bcfe5"
        "680200000005000000000000006e000000000000004f0001ffffffffffffffffffffffff000000000000018b"
        "cfe5680300000006ffffffffffffffff"
    )

    @pytest.fixture
    def javas(self) -> ProducerStates:
        states = ProducerStates(PARTITION)
        states.load(self.JAVA, 111, now_ms=NOW, expiration_ms=DAY)
        return states

    def test_javas_snapshot_is_read(self, javas: ProducerStates) -> None:
        assert javas.end_offset == 111
        assert javas.statistics() == [
            ProducerState(77, 3, 9, NOW + 1, -1, -1),
            ProducerState(78, 0, 0, NOW + 2, 5, 110),
            ProducerState(79, 1, -1, NOW + 3, 6, -1),
        ]
        assert javas.first_undecided_offset == 110
        assert javas.check(batch(5, 5, producer=77, epoch=3)) == Duplicate(105, 109, NOW + 1)
        assert javas.check(batch(10, producer=77, epoch=3)) is None

    def test_ours_is_byte_for_byte_javas(self, javas: ProducerStates) -> None:
        assert javas.snapshot() == self.JAVA

    def test_what_is_written_is_read(self, states: ProducerStates) -> None:
        append(states, batch(MAX - 1, 5))
        append(states, batch(0, producer=9, transactional=True))
        append(states, batch(0, producer=8, transactional=True))
        again = ProducerStates(PARTITION)
        again.load(states.snapshot(), states.end_offset, now_ms=NOW, expiration_ms=DAY)
        assert again.statistics() == states.statistics()
        assert again.first_undecided_offset == 5
        assert again.check(batch(MAX - 1, 5)) == Duplicate(0, 4, NOW)

    def test_open_transactions_are_in_the_order_of_their_offsets(self) -> None:
        states = ProducerStates(PARTITION)
        append(states, batch(0, producer=1))
        append(states, batch(0, producer=2, transactional=True))
        append(states, batch(1, producer=1, transactional=True))
        again = ProducerStates(PARTITION)
        again.load(states.snapshot(), states.end_offset, now_ms=NOW, expiration_ms=DAY)
        end(again, producer=2)
        assert again.first_undecided_offset == 2

    def test_loading_leaves_out_the_expired_and_forgets_what_was(self) -> None:
        states = ProducerStates(PARTITION)
        append(states, batch(0, producer=1))
        states.load(self.JAVA, 111, now_ms=NOW + 1 + DAY, expiration_ms=DAY)
        assert [state.producer_id for state in states.statistics()] == [78, 79]

    def test_an_empty_snapshot_is_a_snapshot(self, states: ProducerStates) -> None:
        data = states.snapshot()
        assert len(data) == 10
        states.load(data, 5, now_ms=NOW, expiration_ms=DAY)
        assert len(states) == 0

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            JAVA[:9],
            JAVA[:-1],
            JAVA + b"\0",
            b"\0\2" + JAVA[2:],
            JAVA[:20] + b"\xff" + JAVA[21:],
            JAVA[:2] + b"\0\0\0\0" + JAVA[6:],
        ],
    )
    def test_a_damaged_snapshot_changes_nothing(self, states: ProducerStates, data: bytes) -> None:
        append(states, batch(0, producer=1))
        with pytest.raises(SnapshotError):
            states.load(data, 111, now_ms=NOW, expiration_ms=DAY)
        assert states.end_offset == 1
        assert len(states) == 1

    def test_a_count_that_does_not_fit_is_damage_even_with_a_right_crc(
        self, states: ProducerStates
    ) -> None:
        body = (2**31 - 1).to_bytes(4, "big")
        data = b"\0\1" + crc32c(body).to_bytes(4, "big") + body
        with pytest.raises(SnapshotError, match="2147483647 entries in 10 bytes"):
            states.load(data, 0, now_ms=NOW, expiration_ms=DAY)


def test_reset_forgets_everything(states: ProducerStates) -> None:
    append(states, batch(0, transactional=True))
    end(states)
    append(states, batch(1, transactional=True))
    states.reset(100)
    assert len(states) == 0
    assert states.end_offset == 100
    assert states.first_undecided_offset is None
    assert states.last_stable_offset(50) == 50
