"""Transactions (22, 24-28), seen on the wire: who is fenced, what is visible when, which codes.

Version 1 is what librdkafka, kafkajs and others speak; version 2 (Produce 12, EndTxn 5,
TxnOffsetCommit 5) is what Java 4 speaks where the cluster has agreed on it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.testing.process import BrokerProcess

NONE = 0
INVALID_REQUEST, INVALID_RECORD = 42, 87
INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING = 47, 48, 49
INVALID_TRANSACTION_TIMEOUT, CONCURRENT_TRANSACTIONS = 50, 51
TRANSACTION_COORDINATOR_FENCED, OPERATION_NOT_ATTEMPTED = 52, 55
UNKNOWN_TOPIC_OR_PARTITION = 3
ILLEGAL_GENERATION, INVALID_GROUP_ID = 22, 24
UNSTABLE_OFFSET_COMMIT, PRODUCER_FENCED, TRANSACTION_ABORTABLE = 88, 90, 120
TRANSACTIONAL = 0x10
TRANSACTIONS = "__transaction_state"
INVALID_TOPIC, TOPIC_AUTHORIZATION_FAILED = 17, 29
TRANSACTIONAL_ID_NOT_FOUND, INVALID_REGULAR_EXPRESSION = 105, 128


class Transactional:
    """One transactional producer that does as it is told, in one of the two versions."""

    def __init__(self, connection: Any, name: str, batch: Any, eventually: Any, newer: bool):
        self.connection = connection
        self.name = name
        self.newer = newer
        self.producer = (-1, -1)
        self.sequences: dict[Any, int] = {}
        self._batch = batch
        self._eventually = eventually

    def find(self) -> None:
        def found() -> bool:
            (answer,) = self.connection.ask(
                "find_coordinator", 6, key_type=1, coordinator_keys=[self.name]
            ).coordinators
            return bool(answer.error_code == NONE)

        self._eventually(found)

    def try_init(self, timeout: int = 60_000, **expected: int) -> int:
        answer = self.connection.ask(
            "init_producer_id",
            4,
            transactional_id=self.name,
            transaction_timeout=timeout,
            **{"producer_id": -1, "producer_epoch": -1, **expected},
        )
        if answer.error_code == NONE:
            self.producer = (answer.producer_id, answer.producer_epoch)
            self.sequences.clear()
        return int(answer.error_code)

    def init(self, timeout: int = 60_000) -> None:
        self.find()
        self._eventually(lambda: self.try_init(timeout) == NONE)

    def who(self) -> dict[str, Any]:
        return {
            "transactional_id": self.name,
            "producer_id": self.producer[0],
            "producer_epoch": self.producer[1],
        }

    def add(self, topic: str, *partitions: int) -> list[int]:
        old = {f"v3_and_below_{name}": value for name, value in self.who().items()}
        (answer,) = self.connection.ask(
            "add_partitions_to_txn",
            3,
            **old,
            v3_and_below_topics=[{"name": topic, "partitions": partitions}],
        ).results_by_topic_v3_and_below
        return [part.partition_error_code for part in answer.results_by_partition]

    def produce(self, topic: Any, *values: bytes, partition: int = 0, adds: bool = True) -> int:
        if not self.newer and adds:
            self._eventually(lambda: self.add(topic.name, partition) == [NONE])
        code = CONCURRENT_TRANSACTIONS
        while code == CONCURRENT_TRANSACTIONS:  # the end before is being written
            code = self.try_produce(topic, *values, partition=partition)
        return code

    def try_produce(self, topic: Any, *values: bytes, partition: int = 0) -> int:
        place = (topic.name, partition)
        sequence = self.sequences.get(place, 0)
        records = self._batch(
            list(values),
            attributes=TRANSACTIONAL,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            base_sequence=sequence,
        )
        data = [{"index": partition, "records": records}]
        answer = self.connection.ask(
            "produce",
            12 if self.newer else 11,
            transactional_id=self.name,
            acks=-1,
            timeout=10_000,
            topic_data=[{"name": topic.name, "partition_data": data}],
        )
        code = int(answer.responses[0].partition_responses[0].error_code)
        if code == NONE:
            self.sequences[place] = sequence + len(values)
        return code

    def end(self, *, commit: bool = True) -> int:
        version = 5 if self.newer else 4
        answer = self.connection.ask("end_txn", version, **self.who(), committed=commit)
        if answer.error_code == NONE and self.newer:
            assert (answer.producer_id, answer.producer_epoch) != self.producer
            self.producer = (answer.producer_id, answer.producer_epoch)
            self.sequences.clear()
        return int(answer.error_code)

    def commit_offset(self, group: str, topic: Any, offset: int, **fields: Any) -> int:
        if not self.newer:
            answer = self.connection.ask("add_offsets_to_txn", 4, **self.who(), group_id=group)
            assert answer.error_code == NONE
        return self.try_commit_offset(group, topic, offset, **fields)

    def try_commit_offset(self, group: str, topic: Any, offset: int, **fields: Any) -> int:
        partitions = [{"partition_index": 0, "committed_offset": offset}]
        code = CONCURRENT_TRANSACTIONS
        while code == CONCURRENT_TRANSACTIONS:
            answer = self.connection.ask(
                "txn_offset_commit",
                5 if self.newer else 4,
                **self.who(),
                group_id=group,
                **{"generation_id": -1, "member_id": "", **fields},
                topics=[{"name": topic.name, "partitions": partitions}],
            )
            code = int(answer.topics[0].partitions[0].error_code)
        return code


Producers = Callable[..., Transactional]


@pytest.fixture(params=[False, True], ids=["version-1", "version-2"])
def newer(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def make(wire: Any, unique: Any, batch: Any, eventually: Any, newer: bool) -> Producers:
    def made(name: str | None = None) -> Transactional:
        return Transactional(wire(), name or unique("txn"), batch, eventually, newer)

    return made


@pytest.fixture
def producer(make: Producers) -> Transactional:
    made = make()
    made.init()
    return made


@pytest.fixture
def committed(wire: Any, fetch: Any) -> Callable[..., tuple[int, bytes, list[int]]]:
    """The last stable offset, and what a reader of committed records gets."""
    connection = wire()

    def read(topic: Any, partition: int = 0) -> tuple[int, bytes, list[int]]:
        answer = fetch(connection, topic, partition=partition, isolation_level=1)
        aborted = [each.first_offset for each in answer.aborted_transactions or ()]
        return answer.last_stable_offset, bytes(answer.records or b""), aborted

    return read


def test_a_commit_makes_records_visible(producer, topic, committed, eventually) -> None:
    assert producer.produce(topic, b"one", b"two") == NONE
    assert producer.produce(topic, b"three", partition=1) == NONE
    assert committed(topic) == (0, b"", [])
    assert producer.end() == NONE
    for partition, last in ((0, 3), (1, 2)):
        eventually(lambda at=partition, end=last: committed(topic, at)[0] == end)
        assert committed(topic, partition)[1:] != (b"", [])


def test_an_abort_is_listed(producer, topic, committed, eventually) -> None:
    assert producer.produce(topic, b"one") == NONE
    assert producer.end(commit=False) == NONE
    eventually(lambda: committed(topic)[0] == 2)
    assert committed(topic)[2] == [0]


def test_transactions_follow_each_other(producer, topic, committed, eventually) -> None:
    for number in range(5):
        assert producer.produce(topic, b"value") == NONE
        assert producer.end(commit=number % 2 == 0) == NONE
    eventually(lambda: committed(topic)[0] == 10)
    assert committed(topic)[2] == [2, 6]


def test_whoever_comes_later_fences_the_one_before(
    producer, make, topic, committed, eventually
) -> None:
    assert producer.produce(topic, b"lost") == NONE
    successor = make(producer.name)
    assert successor.try_init() == CONCURRENT_TRANSACTIONS
    successor.init()
    assert producer.try_produce(topic, b"late") in (INVALID_PRODUCER_EPOCH,)
    assert producer.end() == PRODUCER_FENCED
    assert successor.produce(topic, b"kept") == NONE
    assert successor.end() == NONE
    eventually(lambda: committed(topic)[0] == 4)
    assert committed(topic)[2] == [0]


@pytest.fixture
def older(wire: Any, unique: Any, batch: Any, eventually: Any) -> Transactional:
    """A producer of version 1, which adds partitions itself."""
    made = Transactional(wire(), unique("txn"), batch, eventually, False)
    made.init()
    return made


def test_a_partition_that_was_not_added_takes_nothing(older, topic, committed) -> None:
    producer = older
    assert producer.try_produce(topic, b"x") == TRANSACTION_ABORTABLE
    assert producer.produce(topic, b"x") == NONE
    assert producer.try_produce(topic, b"y", partition=1) == TRANSACTION_ABORTABLE
    assert committed(topic, 1) == (0, b"", [])


def test_a_late_batch_does_not_enter_the_next_transaction(
    producer, topic, committed, eventually
) -> None:
    assert producer.produce(topic, b"one") == NONE
    late = Transactional(
        producer.connection, producer.name, producer._batch, eventually, producer.newer
    )
    late.producer, late.sequences = producer.producer, dict(producer.sequences)
    assert producer.end() == NONE
    eventually(lambda: committed(topic)[0] == 2)
    assert late.try_produce(topic, b"late") in (INVALID_PRODUCER_EPOCH, TRANSACTION_ABORTABLE)
    assert committed(topic)[0] == 2


def test_a_transaction_that_takes_too_long_is_aborted(
    quick_transactions, wire, unique, batch, eventually, newer, topic_at, fetch
) -> None:
    producer = Transactional(wire(quick_transactions), unique("txn"), batch, eventually, newer)
    producer.init(timeout=6_000)  # a busy machine needs that long for the first batch
    topic = topic_at(quick_transactions)
    assert producer.produce(topic, b"one") == NONE
    connection = wire(quick_transactions)
    eventually(lambda: fetch(connection, topic, isolation_level=1).last_stable_offset == 2)
    for commit in (True, False):
        assert producer.end(commit=commit) == PRODUCER_FENCED


@pytest.fixture(scope="module")
def quick_transactions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    name = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
    with BrokerProcess(tmp_path_factory.mktemp("txn"), settings={name: "50"}) as broker:
        broker.start()
        yield broker.bootstrap


@pytest.fixture
def topic_at(wire: Any, unique: Any) -> Callable[[str], Any]:
    def create(address: str) -> Any:
        wanted = {"name": unique(), "num_partitions": 1, "replication_factor": 1}
        (made,) = wire(address).ask("create_topics", 7, topics=[wanted], timeout=10_000).topics
        assert made.error_code == NONE
        return SimpleNamespace(name=made.name, id=made.topic_id)

    return create


class TestBadInput:
    def test_time_outs_out_of_range(self, make) -> None:
        producer = make()
        producer.find()
        for timeout in (0, -1, 900_001):
            assert producer.try_init(timeout) == INVALID_TRANSACTION_TIMEOUT

    def test_an_empty_id(self, make) -> None:
        assert make("").try_init() in (NONE, INVALID_REQUEST)

    def test_an_unknown_id(self, producer, make, topic) -> None:
        stranger = make()
        stranger.find()
        stranger.producer = producer.producer
        assert stranger.add(topic.name, 0) == [INVALID_PRODUCER_ID_MAPPING]
        assert stranger.end() == INVALID_PRODUCER_ID_MAPPING

    def test_a_stale_epoch(self, producer, topic) -> None:
        number, epoch = producer.producer
        producer.init()
        producer.producer = (number, epoch)
        assert producer.add(topic.name, 0) == [PRODUCER_FENCED]
        assert producer.end() == PRODUCER_FENCED

    def test_older_clients_hear_of_an_invalid_epoch(self, producer, topic) -> None:
        stale = producer.who()
        producer.init()
        answer = producer.connection.ask("end_txn", 1, **stale, committed=True)
        assert answer.error_code == INVALID_PRODUCER_EPOCH
        old = {f"v3_and_below_{name}": value for name, value in stale.items()}
        (result,) = producer.connection.ask(
            "add_partitions_to_txn",
            1,
            **old,
            v3_and_below_topics=[{"name": topic.name, "partitions": [0]}],
        ).results_by_topic_v3_and_below
        assert result.results_by_partition[0].partition_error_code == INVALID_PRODUCER_EPOCH

    def test_ending_twice(self, producer, topic, eventually) -> None:
        assert producer.produce(topic, b"x") == NONE
        before = producer.producer
        assert producer.end() == NONE
        producer.producer = before
        answers = (NONE, CONCURRENT_TRANSACTIONS)

        def again(commit: bool) -> int:
            return int(
                producer.connection.ask(
                    "end_txn", 5 if producer.newer else 4, **producer.who(), committed=commit
                ).error_code
            )

        eventually(lambda: again(True) == NONE)
        assert again(True) in answers
        assert again(False) == INVALID_TXN_STATE

    def test_ending_what_has_not_begun(self, producer) -> None:
        assert producer.end() == INVALID_TXN_STATE
        assert producer.end(commit=False) == (NONE if producer.newer else INVALID_TXN_STATE)

    def test_a_partition_that_is_not_there(self, producer, topic) -> None:
        codes = dict(zip((0, 7), producer.add(topic.name, 0, 7), strict=True))
        assert sorted(codes.values()) == [UNKNOWN_TOPIC_OR_PARTITION, OPERATION_NOT_ATTEMPTED]

    def test_a_coordinators_own_topic(self, producer) -> None:
        assert producer.add(TRANSACTIONS, 0) == [TOPIC_AUTHORIZATION_FAILED]
        (result,) = producer.connection.ask(
            "add_partitions_to_txn",
            5,
            transactions=[
                {**producer.who(), "topics": [{"name": TRANSACTIONS, "partitions": [0]}]}
            ],
        ).results_by_transaction
        (part,) = result.topic_results[0].results_by_partition
        assert part.partition_error_code == INVALID_TOPIC

    @pytest.mark.parametrize(
        ("name", "number", "code"),
        [(None, -1, INVALID_REQUEST), ("__transaction_state", 1, INVALID_TOPIC)],
    )
    def test_markers_that_nobody_can_mean(self, producer, topic, name, number, code) -> None:
        (result,) = producer.connection.ask(
            "write_txn_markers",
            1,
            markers=[
                {
                    "producer_id": number,
                    "topics": [{"name": name or topic.name, "partition_indexes": [0]}],
                }
            ],
        ).markers
        assert result.topics[0].partitions[0].error_code == code

    def test_a_marker_of_a_stale_coordinator(self, producer, topic, committed) -> None:
        assert producer.produce(topic, b"x") == NONE
        number, epoch = producer.producer

        def mark(coordinator: int) -> int:
            (result,) = producer.connection.ask(
                "write_txn_markers",
                1,
                markers=[
                    {
                        "producer_id": number,
                        "producer_epoch": epoch + 1,
                        "transaction_result": False,
                        "coordinator_epoch": coordinator,
                        "topics": [{"name": topic.name, "partition_indexes": [0]}],
                    }
                ],
            ).markers
            return int(result.topics[0].partitions[0].error_code)

        assert mark(100) == NONE  # as kafka-transactions abort does
        assert mark(99) == TRANSACTION_COORDINATOR_FENCED

    def test_a_control_batch_of_a_client(self, producer, topic) -> None:
        records = bytearray(
            producer._batch(
                [b"x"],
                attributes=TRANSACTIONAL | 0x20,
                producer_id=producer.producer[0],
                producer_epoch=producer.producer[1],
                base_sequence=0,
            )
        )
        if not producer.newer:
            assert producer.add(topic.name, 0) == [NONE]
        answer = producer.connection.ask(
            "produce",
            11,
            transactional_id=producer.name,
            acks=-1,
            timeout=10_000,
            topic_data=[
                {
                    "name": topic.name,
                    "partition_data": [{"index": 0, "records": bytes(records)}],
                }
            ],
        )
        code = answer.responses[0].partition_responses[0].error_code
        assert code in (INVALID_RECORD, TRANSACTION_ABORTABLE)


class TestOffsets:
    @pytest.fixture
    def offset(self, wire: Any, topic: Any, group: str) -> Callable[..., tuple[int, int]]:
        connection = wire()

        def fetch(*, stable: bool = True) -> tuple[int, int]:
            topics = [{"name": topic.name, "partition_indexes": [0]}]
            (found,) = connection.ask(
                "offset_fetch",
                9,
                groups=[{"group_id": group, "topics": topics}],
                require_stable=stable,
            ).groups
            assert found.error_code == NONE
            answer = found.topics[0].partitions[0]
            return answer.error_code, answer.committed_offset

        return fetch

    def test_they_count_with_the_commit(self, producer, topic, group, offset, eventually) -> None:
        assert producer.produce(topic, b"x") == NONE
        assert producer.commit_offset(group, topic, 7) == NONE
        assert offset(stable=False) == (NONE, -1)
        assert offset() == (UNSTABLE_OFFSET_COMMIT, -1)
        assert producer.end() == NONE
        eventually(lambda: offset() == (NONE, 7))

    def test_they_are_forgotten_with_the_abort(
        self, producer, topic, group, offset, eventually
    ) -> None:
        for number, commit in ((7, True), (8, False)):
            assert producer.commit_offset(group, topic, number) == NONE
            assert producer.end(commit=commit) == NONE
            eventually(lambda: offset()[0] == NONE)
        assert offset() == (NONE, 7)

    def test_without_the_groups_partition_in_the_transaction(
        self, older, topic, group, offset
    ) -> None:
        assert older.try_commit_offset(group, topic, 7) == TRANSACTION_ABORTABLE
        assert offset() == (NONE, -1)

    def test_a_generation_that_does_not_exist(self, producer, topic, group, offset) -> None:
        code = producer.commit_offset(group, topic, 7, generation_id=3, member_id="m")
        assert code == ILLEGAL_GENERATION
        assert offset() == (NONE, -1)

    def test_no_group(self, producer, topic) -> None:
        assert producer.commit_offset("", topic, 7) == INVALID_GROUP_ID

    def test_a_zombies_offsets_do_not_count(
        self, producer, make, topic, group, offset, eventually
    ) -> None:
        assert producer.commit_offset(group, topic, 7) == NONE
        make(producer.name).init()
        assert producer.try_commit_offset(group, topic, 8) == INVALID_PRODUCER_EPOCH
        assert producer.end() == PRODUCER_FENCED
        eventually(lambda: offset() == (NONE, -1))


@pytest.mark.parametrize("version", range(1, 7))
def test_every_version_finds_the_coordinator(version, wire, unique, eventually) -> None:
    connection, name = wire(), unique("txn")

    def found() -> bool:
        answer = connection.ask(
            "find_coordinator", version, key=name, key_type=1, coordinator_keys=[name]
        )
        place = answer.coordinators[0] if version >= 4 else answer
        return bool(place.error_code == NONE and place.port > 0)

    eventually(found)


@pytest.mark.parametrize("version", range(6))
def test_every_version_begins_a_producer(version, wire, producer, unique) -> None:
    answer = wire().ask(
        "init_producer_id",
        version,
        transactional_id=unique("txn"),
        transaction_timeout=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    assert (answer.error_code, answer.producer_epoch) == (NONE, 0)
    assert answer.producer_id >= 0


@pytest.mark.parametrize("version", range(6))
def test_every_version_ends_a_transaction(version, producer, topic, committed, eventually) -> None:
    assert producer.produce(topic, b"x") == NONE
    answer = producer.connection.ask("end_txn", version, **producer.who(), committed=True)
    assert answer.error_code == NONE
    eventually(lambda: committed(topic)[0] == 2)


def test_the_feature_is_agreed_on(wire) -> None:
    answer = wire().ask("api_versions", 4, client_software_name="test", client_software_version="1")
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    assert levels["transaction.version"] == 2


def test_marks_are_control_batches(producer, topic, wire, fetch, committed, eventually) -> None:
    assert producer.produce(topic, b"x") == NONE
    assert producer.end() == NONE
    eventually(lambda: committed(topic)[0] == 2)
    records = bytes(fetch(wire(), topic, 1).records)
    (attributes,) = struct.unpack_from(">h", records, 21)
    assert attributes & 0x30 == 0x30


class TestLooking:
    @staticmethod
    def described(producer: Transactional, name: str | None = None) -> Any:
        (found,) = producer.connection.ask(
            "describe_transactions", 0, transactional_ids=[name or producer.name]
        ).transaction_states
        return found

    @staticmethod
    def listed(producer: Transactional, version: int = 2, **filters: Any) -> Any:
        return producer.connection.ask(
            "list_transactions",
            version,
            **{"duration_filter": -1, "transactional_id_pattern": None, **filters},
        )

    def names(self, producer: Transactional, **filters: Any) -> set[str]:
        answer = self.listed(producer, **filters)
        assert answer.error_code == NONE
        return {each.transactional_id for each in answer.transaction_states}

    def test_a_transaction_is_described(self, producer, topic, eventually) -> None:
        assert producer.produce(topic, b"x") == NONE
        found = self.described(producer)
        assert found.error_code == NONE
        assert found.transaction_state == "Ongoing"
        assert (found.producer_id, found.producer_epoch) == producer.producer
        assert [(each.topic, each.partitions) for each in found.topics] == [(topic.name, (0,))]
        assert producer.end() == NONE
        eventually(lambda: self.described(producer).transaction_state == "CompleteCommit")

    def test_an_unknown_one_is_not_found(self, producer) -> None:
        assert self.described(producer, "nobody").error_code == TRANSACTIONAL_ID_NOT_FOUND

    def test_filters(self, producer, make, topic) -> None:
        idle = make()
        idle.init()
        assert producer.produce(topic, b"x") == NONE
        both = {producer.name, idle.name}
        assert both <= self.names(producer)
        assert both & self.names(producer, state_filters=["Ongoing"]) == {producer.name}
        assert both & self.names(producer, state_filters=["Empty"]) == {idle.name}
        numbers = [producer.producer[0]]
        assert self.names(producer, producer_id_filters=numbers) == {producer.name}
        assert both & self.names(producer, duration_filter=3_600_000) <= {idle.name}
        pattern = idle.name[:-1] + "."
        assert idle.name in self.names(producer, transactional_id_pattern=pattern)
        assert not both & self.names(producer, transactional_id_pattern=idle.name[:-1])

    def test_filters_that_cannot_be_meant(self, producer) -> None:
        answer = self.listed(producer, state_filters=["Ongoing", "Nonsense"])
        assert answer.unknown_state_filters == ("Nonsense",)
        wrong = self.listed(producer, transactional_id_pattern="(")
        assert wrong.error_code == INVALID_REGULAR_EXPRESSION
