"""Idempotent producers and transactions, as a log sees them."""

from __future__ import annotations

from collections import Counter, deque
from contextlib import suppress

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.records.batch import CONTROL_FLAG, MAGIC, TRANSACTIONAL_FLAG, BatchHeader
from ottla.records.checksum import crc32c
from ottla.records.control import ControlType, EndMarker
from ottla.storage.producers import (
    MOST_REFUSED,
    CompletedTxn,
    Duplicate,
    Origin,
    ProducerState,
    ProducerStates,
    SnapshotError,
)
from ottla.storage.refused import CONNECTIONS, MOST, MOST_GIVEN_UP, WINDOW

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

    def test_what_comes_behind_a_batch_that_found_too_few_replicas_is_not_out_of_order(
        self, states: ProducerStates
    ) -> None:
        """librdkafka would take a new epoch, and send again what may be stored elsewhere."""
        append(states, batch(0))
        states.note_refused(batch(1))
        states.note_refused(batch(2))
        assert refusal(states, batch(2))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        assert refusal(states, batch(5))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        append(states, batch(1))
        append(states, batch(2))
        assert refusal(states, batch(5))[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        states.note_refused(batch(4))
        assert refusal(states, batch(5))[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "3 was not"
        states.note_refused(batch(3))
        append(states, batch(0, epoch=1))
        assert refusal(states, batch(4, epoch=1))[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_what_comes_behind_a_refused_batch_of_an_unknown_producer_is_not_its_first(
        self, states: ProducerStates
    ) -> None:
        """The refused one would be out of order when it comes again, and stored behind it."""
        states.note_refused(batch(0))
        assert refusal(states, batch(1))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        append(states, batch(0))
        append(states, batch(1))

    def test_of_a_forgotten_producer_the_first_that_was_refused_is_waited_for(
        self, states: ProducerStates
    ) -> None:
        append(states, batch(MAX - 1))
        assert states.expire(NOW + DAY, DAY) == 1
        states.note_refused(batch(MAX))
        states.note_refused(batch(0))
        states.note_refused(batch(0, epoch=-1))
        for sequence in (0, 1):
            assert refusal(states, batch(sequence))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        for sequence in (MAX, 0, 1):
            append(states, batch(sequence))

    def test_what_comes_behind_the_refused_first_batch_of_a_new_epoch_is_not_out_of_order(
        self, states: ProducerStates
    ) -> None:
        append(states, batch(0))
        states.note_refused(batch(0, epoch=1))
        assert refusal(states, batch(1, epoch=1))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        append(states, batch(0, epoch=1))
        append(states, batch(1, epoch=1))

    def test_sequence_numbers_go_round_behind_a_refused_batch(self, states: ProducerStates) -> None:
        append(states, batch(MAX - 1))
        states.note_refused(batch(MAX))
        assert refusal(states, batch(0))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        append(states, batch(MAX))
        append(states, batch(0))

    def test_who_has_given_a_refused_batch_up_learns_of_the_gap(
        self, states: ProducerStates
    ) -> None:
        """No more can be under way behind it than a client has in flight."""
        append(states, batch(0))
        states.note_refused(batch(1))
        for _ in range(WINDOW):
            assert refusal(states, batch(2))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        assert refusal(states, batch(2))[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        states.note_refused(batch(1))
        assert refusal(states, batch(2))[0] is ErrorCode.NOT_ENOUGH_REPLICAS, "it has come again"
        states.note_refused(batch(0, producer=8))
        for _ in range(WINDOW):
            assert refusal(states, batch(1, producer=8))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        append(states, batch(1, producer=8))

    @pytest.mark.parametrize("in_flight", [2, 3, 4, 5])
    def test_who_has_given_a_refused_batch_up_goes_on_with_the_first_that_is_left(
        self, states: ProducerStates, in_flight: int
    ) -> None:
        """All in flight are sent again, in their order. Were one in their middle taken for the
        first of a producer that is not known, those before it would be stored behind it."""
        states.note_refused(batch(0))
        stored: list[int] = []
        for _ in range(2 * WINDOW):
            for sequence in range(1, 1 + in_flight):
                with suppress(KafkaError):  # too early
                    if states.check(batch(sequence)) is None:
                        append(states, batch(sequence))
                        stored.append(sequence)
        assert stored == list(range(1, 1 + in_flight))

    def test_what_was_refused_long_ago_does_not_change_the_order_of_what_comes(
        self, states: ProducerStates
    ) -> None:
        """The client sends again what it has heard of, and new ones beside it: those that were
        refused before one of them may not be taken for given up with what never comes."""
        states.note_refused(batch(0))
        for sequence in (100, 101, 102, 100, 101, 100, 101, 103, 101):
            assert refusal(states, batch(sequence))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        append(states, batch(100))
        assert refusal(states, batch(104))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        for sequence in range(101, 105):
            append(states, batch(sequence))

    def test_many_that_were_refused_long_ago_are_given_up_at_once(
        self, states: ProducerStates
    ) -> None:
        for sequence in range(WINDOW):
            states.note_refused(batch(sequence))
        for _ in range(WINDOW):
            assert refusal(states, batch(100))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        append(states, batch(100))

    @pytest.mark.parametrize("known", [False, True])
    @pytest.mark.parametrize("in_flight", [1, 2, 3, 4, 5])
    @pytest.mark.parametrize("times", [1, 2, 3, 4, 5, 6])
    def test_who_gives_up_one_batch_after_the_other_is_not_refused_for_ever(
        self, states: ProducerStates, times: int, in_flight: int, known: bool
    ) -> None:
        """A client with few `retries` goes on with the next sequence number when they are used up.
        One after the other was waited for that had been given up, too."""
        if known:
            append(states, batch(9))
        states.note_refused(batch(10))
        waiting = deque(range(11, 1000))
        sent: Counter[int] = Counter()
        under_way: list[int] = []
        code = ErrorCode.NOT_ENOUGH_REPLICAS
        while code is ErrorCode.NOT_ENOUGH_REPLICAS:
            under_way = [each for each in under_way if sent[each] < times]
            if len(under_way) < in_flight:
                under_way.append(waiting.popleft())
            for sequence in under_way:
                sent[sequence] += 1
                try:
                    states.check(batch(sequence))
                except KafkaError as error:
                    code = error.code
                else:
                    code = ErrorCode.NONE
                if code is not ErrorCode.NOT_ENOUGH_REPLICAS:
                    break
            assert sent.total() < (MOST_GIVEN_UP + 1) * (MOST + WINDOW)
        assert code is (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if known else ErrorCode.NONE)

    def test_what_is_refused_for_the_moment_may_be_before_what_comes_in_a_row(
        self, states: ProducerStates
    ) -> None:
        """Of a batch that was refused long ago the client knows nothing any more. Its first one is
        the first, though it is turned away for the moment whenever it comes."""
        states.note_refused(batch(0))
        for _ in range(MOST):
            states.note_refused(batch(100))
            assert refusal(states, batch(101))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        append(states, batch(100))
        append(states, batch(101))

    @pytest.mark.parametrize("in_turns", [False, True])
    @pytest.mark.parametrize("known", [False, True])
    def test_what_is_read_from_several_connections_at_once_is_not_given_up(
        self, states: ProducerStates, known: bool, in_turns: bool
    ) -> None:
        """The client has closed two connections, since nobody answered, and has sent all again over
        the next one. A broker that stood still meanwhile reads all three."""
        if known:
            append(states, batch(0))
        for _ in range(CONNECTIONS):
            states.note_refused(batch(1))
        behind = [*range(2, 1 + WINDOW)] * CONNECTIONS
        for sequence in sorted(behind) if in_turns else behind:
            assert refusal(states, batch(sequence))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        for sequence in range(1, 1 + WINDOW):
            append(states, batch(sequence))

    def test_what_comes_again_from_a_closed_connection_drives_out_nothing(
        self, states: ProducerStates
    ) -> None:
        for sequence in range(6):
            append(states, batch(sequence))
        for sequence in (6, 1, 2, 3, 4, 5):
            states.note_refused(batch(sequence))
        for sequence in range(6, 11):
            for behind in range(sequence + 1, 11):
                assert refusal(states, batch(behind))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
            append(states, batch(sequence))

    def test_of_batches_that_were_refused_in_another_order_each_is_waited_for(
        self, states: ProducerStates
    ) -> None:
        for sequence in (3, 2, 1):
            states.note_refused(batch(sequence))
        for sequence in (1, 2, 3):
            assert refusal(states, batch(4))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
            append(states, batch(sequence))
        append(states, batch(4))

    def test_who_never_sends_a_batch_again_learns_of_the_gap_too(
        self, states: ProducerStates
    ) -> None:
        append(states, batch(0))
        states.note_refused(batch(1))
        for sequence in range(2, 2 + WINDOW):
            assert refusal(states, batch(sequence))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        for sequence in range(2 + WINDOW, 9 + WINDOW):
            assert refusal(states, batch(sequence))[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    @pytest.mark.parametrize("epoch", [0, 1])
    def test_a_batch_that_has_come_again_is_not_waited_for_when_its_producer_is_forgotten(
        self, states: ProducerStates, epoch: int
    ) -> None:
        states.note_refused(batch(0, epoch=epoch))
        append(states, batch(0, epoch=0))
        if epoch:
            assert refusal(states, batch(1, epoch=1))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
            append(states, batch(0, epoch=1))
        append(states, batch(1, epoch=epoch))
        assert states.expire(NOW + DAY, DAY) == 1
        append(states, batch(2, epoch=epoch))

    @pytest.mark.parametrize("noted", [True, False])
    def test_what_was_turned_away_behind_a_refused_batch_is_waited_for_in_its_turn(
        self, states: ProducerStates, noted: bool
    ) -> None:
        """The client hears of 1, sends it again, and 3 behind it, before it has heard of 2."""
        append(states, batch(0))
        states.note_refused(batch(1))
        if noted:
            states.note_refused(batch(2))
            states.note_refused(batch(1))
        else:
            assert refusal(states, batch(2))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        append(states, batch(1))
        assert refusal(states, batch(3))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        for sequence in (2, 3):
            append(states, batch(sequence))
        assert refusal(states, batch(5))[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_a_refused_batch_is_waited_for_when_what_is_before_it_is_read_again(
        self, states: ProducerStates
    ) -> None:
        """As a truncation does."""
        for sequence in (0, 1):
            append(states, batch(sequence))
        states.note_refused(batch(2))
        states.reset(0)
        for sequence in (0, 1):
            append(states, batch(sequence))
        assert refusal(states, batch(3))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        for sequence in (2, 3):
            append(states, batch(sequence))
        assert refusal(states, batch(5))[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_what_a_truncation_takes_away_is_waited_for_before_what_was_refused(
        self, states: ProducerStates
    ) -> None:
        for sequence in (0, 1):
            append(states, batch(sequence))
        states.note_refused(batch(2))
        states.reset(0)
        append(states, batch(0))
        states.note_refused(batch(1))
        for sequence in (1, 2):
            assert refusal(states, batch(3))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
            append(states, batch(sequence))
        append(states, batch(3))

    def test_what_was_refused_before_a_truncation_took_it_away_is_waited_for(
        self, states: ProducerStates
    ) -> None:
        """A replica may be elected while its log is still to be cut."""
        for sequence in (0, 1):
            append(states, batch(sequence))
        states.note_refused(batch(1))
        states.note_refused(batch(2))
        states.reset(0)
        append(states, batch(0))
        for sequence in (1, 2):
            assert refusal(states, batch(3))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
            append(states, batch(sequence))
        append(states, batch(3))

    def test_what_is_stored_is_not_waited_for_when_its_producer_is_forgotten(
        self, states: ProducerStates
    ) -> None:
        append(states, batch(0))
        states.note_refused(batch(0))
        assert states.expire(NOW + DAY, DAY) == 1
        append(states, batch(1))

    def test_of_what_was_refused_only_the_rest_is_waited_for_when_its_producer_is_forgotten(
        self, states: ProducerStates
    ) -> None:
        append(states, batch(0))
        states.note_refused(batch(0))
        states.note_refused(batch(1))
        assert states.expire(NOW + DAY, DAY) == 1
        assert refusal(states, batch(2))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        append(states, batch(1))
        append(states, batch(2))

    def test_what_was_refused_is_remembered_while_its_producer_is_known(
        self, states: ProducerStates
    ) -> None:
        """What is stored now may be taken away by a truncation."""
        append(states, batch(0))
        states.note_refused(batch(0))
        assert states.expire(NOW + 1, DAY) == 0
        states.reset(0)
        assert refusal(states, batch(1))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        append(states, batch(0))

    def test_what_was_refused_of_a_producer_that_never_came_is_not_remembered_for_ever(
        self, states: ProducerStates
    ) -> None:
        """Many producers live for one batch only, and all of them may be refused."""
        states.note_refused(batch(0))
        states.note_refused(batch(0, producer=8))
        assert states.expire(NOW, DAY) == 0
        assert refusal(states, batch(1, producer=8))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        assert states.expire(NOW + DAY, DAY) == 0
        append(states, batch(1))
        assert refusal(states, batch(1, producer=8))[0] is ErrorCode.NOT_ENOUGH_REPLICAS

    def test_refused_batches_of_many_producers_are_not_all_remembered(
        self, states: ProducerStates
    ) -> None:
        for producer in range(MOST_REFUSED + 1):
            states.note_refused(batch(0, producer=producer))
        assert refusal(states, batch(1, producer=1))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        append(states, batch(1, producer=0))

    def test_of_what_a_truncation_takes_away_that_of_the_last_to_send_is_remembered(
        self, states: ProducerStates
    ) -> None:
        """They have not heard of it; whoever came first may be one of them."""
        for producer in range(MOST_REFUSED + 1):
            append(states, batch(0, producer=producer))
        append(states, batch(1, producer=0))
        states.take_away(0)
        states.reset(0)
        for producer in (0, 2, MOST_REFUSED):
            assert refusal(states, batch(2, producer=producer))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        append(states, batch(2, producer=1))

    def test_of_one_producer_no_more_are_remembered_than_can_be_on_their_way(
        self, states: ProducerStates
    ) -> None:
        for sequence in range(1000, 0, -1):
            states.note_refused(batch(sequence))
        for sequence in (*range(5000, 4000, -1), *range(2000, 3000, 2)):
            with suppress(KafkaError):
                states.check(batch(sequence))
        [refused] = states._refused.values()
        assert len(refused.sequences) <= MOST

    def test_a_batch_without_a_number_is_behind_nothing(self, states: ProducerStates) -> None:
        states.note_refused(batch(-1))
        append(states, batch(0))
        states.note_refused(batch(MAX - 1, producer=8))
        assert states.check(batch(-1, producer=8), origin=Origin.COORDINATOR) is None

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
