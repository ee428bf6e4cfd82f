"""What a task sends, against a real broker whose answers go astray."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from ottla.errors import ErrorCode
from ottla.pipelines.sink import delivery as delivery_module
from ottla.pipelines.sink import producer as producer_module
from ottla.pipelines.sink.columns import columns_of
from ottla.pipelines.sink.delivery import Delivery
from ottla.pipelines.sink.encoder import Encoder, Format
from ottla.pipelines.sink.failures import WriteFailed
from ottla.pipelines.sink.options import WriteOptions
from ottla.pipelines.sink.producer import Producer
from ottla.pipelines.sink.writer import Written, write_rows
from ottla.testing import Broker

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker({"auto.create.topics.enable": "false"}, topics={"orders": 3, "one": 1}) as broker:
        yield broker


class Forwarder:
    """Another address of a broker, which ends while the broker stays."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Forwarder:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            with suppress(OSError):  # the other side may have been first
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _start(self, call: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=call, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                self._start(self._forward, client, server)
                self._start(self._forward, server, client)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)


def rows(**columns: Any) -> pa.RecordBatch:
    kinds = {"headers": HEADERS, "partition": pa.int32(), "timestamp": pa.timestamp("us", "UTC")}
    return pa.RecordBatch.from_pydict(
        {name: pa.array(values, kinds.get(name)) for name, values in columns.items()}
    )


def write(broker: Broker, *batches: pa.RecordBatch, **options: Any) -> Written:
    given = {"kafka.retry.backoff.ms": "10"}
    given |= {name.replace("_", "."): str(value) for name, value in options.items()}
    given["kafka.bootstrap.servers"] = broker.bootstrap
    return write_rows(iter(batches), WriteOptions.parse(given))


def values(broker: Broker, topic: str = "one") -> list[bytes | None]:
    return [record.value for record in broker.consume(topic)]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_reads_what_was_written(broker: Broker, codec: str):
    written = write(
        broker,
        rows(
            key=["a", None],
            value=[b"1", None],
            partition=[0, 0],
            timestamp=[1_700_000_000_123_456, 1_700_000_000_000_999],
            headers=[[{"key": "h", "value": b"x"}, {"key": "h", "value": None}], None],
        ),
        rows(key=["b"], value=[b"2" * 5000], partition=[0], timestamp=[0], headers=[[]]),
        topic="orders",
        keepTimestamps="true",
        kafka_compression_type=codec,
    )
    assert written.records == 3
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    consumer.assign([TopicPartition("orders", 0, 0)])
    found = consumer.consume(3, timeout=120)
    consumer.close()
    assert [(each.key(), each.value(), each.timestamp()[1], each.headers()) for each in found] == [
        (b"a", b"1", 1_700_000_000_123, [("h", b"x"), ("h", None)]),
        (None, None, 1_700_000_000_000, None),
        (b"b", b"2" * 5000, 0, None),
    ]


def test_rows_of_many_topics_find_their_partitions(broker: Broker):
    count = 3000
    written = write(
        broker,
        rows(
            topic=["orders" if n % 3 else "one" for n in range(count)],
            key=[f"{n}" for n in range(count)],
            value=numbered(count),
            partition=[n % 2 if n % 3 == 1 else None for n in range(count)],
        ),
        kafka_batch_size=1000,
    )
    assert written.records == count
    assert written.batches > 20
    assert values(broker, "one") == [b"%d" % n for n in range(0, count, 3)]
    chosen = [record for record in broker.consume("orders") if int(record.value) % 3 == 1]
    assert len(chosen) == count // 3
    assert all(record.partition == int(record.value) % 2 for record in chosen)


def test_rows_without_a_key_are_spread_evenly(broker: Broker):
    write(broker, rows(value=[b"x" * 1000] * 900), topic="orders")
    counts = [len(broker.consume("orders", partition=n)) for n in range(3)]
    assert sum(counts) == 900
    assert max(counts) - min(counts) <= 17, "a chunk of 16 KB is 17 rows"


def test_round_robin_takes_turns_and_minds_no_keys(broker: Broker):
    write(
        broker,
        rows(key=["same"] * 9, value=numbered(9)),
        topic="orders",
        kafka_partitioner_class="org.apache.kafka.clients.producer.RoundRobinPartitioner",
    )
    assert [len(broker.consume("orders", partition=n)) for n in range(3)] == [3, 3, 3]


@pytest.mark.parametrize(
    ("options", "copies"),
    [
        ({}, 1),
        ({"delivery": "idempotent"}, 1),
        ({"delivery": "at_least_once"}, 2),
        ({"kafka_acks": "1"}, 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("cut", ["disconnect", "drop"])
def test_an_answer_that_is_lost_after_the_append(
    broker: Broker, options: dict[str, str], copies: int, cut: str
):
    if cut == "disconnect":
        fault = broker.faults.disconnect("Produce", processed=True)
    else:
        fault = broker.faults.drop("Produce")
    # Who hears nothing waits for a second; on a busy machine that may befall the next request, too.
    patience = 60_000 if cut == "disconnect" else 1000
    written = write(
        broker,
        rows(value=[b"once"]),
        topic="one",
        **options,
        kafka_request_timeout_ms=patience,
    )
    assert fault.hits == 1
    assert written.records == 1
    assert written.requests >= 2
    assert cut == "drop" or written.requests == 2
    found = values(broker)
    assert set(found) == {b"once"}
    assert copies <= len(found) <= (1 if copies == 1 else written.requests)


def test_a_duplicate_that_the_broker_names_is_a_success(broker: Broker):
    broker.faults.error("DUPLICATE_SEQUENCE_NUMBER", "Produce", processed=True)
    assert write(broker, rows(value=[b"a"]), topic="one", delivery="idempotent").records == 1
    assert values(broker) == [b"a"]


@pytest.mark.parametrize("times", [1, 3])
def test_a_broker_that_has_forgotten_the_producer_is_sent_a_new_epoch(broker: Broker, times: int):
    count = 200
    broker.faults.error("UNKNOWN_PRODUCER_ID", "Produce", after=2, times=times)
    written = write(broker, rows(value=numbered(count)), topic="one", kafka_batch_size=300)
    assert written.records == count
    assert written.batches > 5
    assert written.requests == written.batches + times
    # The broker took them: the first of the new epoch is number 0, and no number is missing.
    assert values(broker) == numbered(count)


def test_the_tasks_of_a_process_have_one_producer_id_after_another(broker: Broker):
    asked = broker.faults.delay(0, "InitProducerId", times=None)
    for at in range(0, 40, 10):
        write(broker, rows(value=numbered(40)[at : at + 10]), topic="one", kafka_batch_size=100)
    assert asked.hits == 1
    assert values(broker) == numbered(40)
    # Who does not know the id, or not the partition, takes any number for the first.
    broker.delete_topic("one")
    broker.create_topic("one", 1)
    write(broker, rows(value=numbered(5)), topic="one")
    assert asked.hits == 1
    assert values(broker) == numbered(5)


def test_a_task_that_failed_leaves_no_producer_id(broker: Broker):
    asked = broker.faults.delay(0, "InitProducerId", times=None)
    broker.faults.error("INVALID_RECORD", "Produce", processed=True)
    with pytest.raises(WriteFailed):
        write(broker, rows(value=[b"a", b"b"]), topic="one")
    write(broker, rows(value=[b"c", b"d"]), topic="one")
    assert asked.hits == 2
    assert values(broker) == [b"a", b"b", b"c", b"d"]


def test_what_another_cluster_gave_out_is_not_used(broker: Broker):
    # Both give out the same ids, and would take the same numbers for a repetition.
    with Broker({"auto.create.topics.enable": "false"}, topics={"one": 1}) as other:
        for each in (broker, other, broker, other):
            write(each, rows(value=[b"a", b"b"]), topic="one")
        assert values(broker) == values(other) == [b"a", b"b"] * 2


def test_a_gap_behind_an_earlier_task_begins_a_new_epoch(broker: Broker):
    write(broker, rows(value=numbered(10)), topic="one")
    broker.faults.error("OUT_OF_ORDER_SEQUENCE_NUMBER", "Produce")
    write(broker, rows(value=numbered(30)[10:]), topic="one", kafka_batch_size=100)
    asked = broker.faults.delay(0, "InitProducerId", times=None)
    write(broker, rows(value=numbered(40)[30:]), topic="one")
    assert asked.hits == 1, "with partitions at different epochs it is left to nobody"
    assert values(broker) == numbered(40)


def test_a_producer_id_that_is_refused_says_how_to_do_without(broker: Broker):
    broker.faults.error("CLUSTER_AUTHORIZATION_FAILED", "InitProducerId", times=None)
    with pytest.raises(WriteFailed, match=r"no producer id .* set delivery=at_least_once"):
        write(broker, rows(value=[b"a"]), topic="one")
    assert write(broker, rows(value=[b"a"]), topic="one", delivery="at_least_once").records == 1


def test_timestamps_are_of_the_writing_unless_they_are_to_be_kept(broker: Broker):
    batch = rows(value=[b"a", b"b"], timestamp=[1_700_000_000_000_000, None])
    before = time.time_ns() // 1_000_000
    write(broker, batch, topic="one")
    write(broker, batch, topic="one", keepTimestamps="true")
    stamped = [record.timestamp for record in broker.consume("one")]
    assert stamped[2] == 1_700_000_000_000
    assert all(before <= moment for moment in (stamped[0], stamped[1], stamped[3]))


def test_a_sequence_out_of_order_fails(broker: Broker):
    broker.faults.error("OUT_OF_ORDER_SEQUENCE_NUMBER", "Produce")
    with pytest.raises(WriteFailed, match=r"row 0 .* OUT_OF_ORDER_SEQUENCE_NUMBER"):
        write(broker, rows(value=[b"a"]), topic="one", delivery="idempotent")
    assert values(broker) == []


@pytest.mark.parametrize("delivery", ["idempotent", "at_least_once"])
def test_troubles_that_pass_keep_the_order_of_rows(broker: Broker, delivery: str):
    count = 500
    broker.faults.error("NOT_LEADER_OR_FOLLOWER", "Produce", times=2)
    broker.faults.disconnect("Produce", after=2, times=2)
    broker.faults.error("NOT_ENOUGH_REPLICAS", "Produce", after=3, times=2)
    broker.faults.disconnect("Metadata", after=1, times=2)
    written = write(
        broker, rows(value=numbered(count)), topic="one", delivery=delivery, kafka_batch_size=500
    )
    assert written.records == count
    assert values(broker) == numbered(count)


def test_a_broker_that_restarts_is_waited_for(broker: Broker):
    settings = WriteOptions(broker.bootstrap, "one", idempotent=True, batch_bytes=200, backoff=0.02)
    delivery = Delivery(settings)
    try:
        delivery.add(rows(value=numbered(100)))
        restart = threading.Thread(target=broker.restart)
        restart.start()
        more = numbered(300)[100:]
        for at in range(0, 200, 20):
            delivery.add(rows(value=more[at : at + 20]))
        restart.join()
        assert delivery.finish().records == 300
    finally:
        delivery.close()
    assert values(broker) == numbered(300)


def test_a_bootstrap_address_that_is_gone_leaves_the_brokers_that_are_known(broker: Broker):
    with Forwarder(broker.bootstrap) as bootstrap:
        settings = WriteOptions(bootstrap.address, "one", backoff=0.02, delivery_timeout=120.0)
        delivery = Delivery(settings)
        delivery.add(rows(value=numbered(10)))
    try:
        fault = broker.faults.error("NOT_LEADER_OR_FOLLOWER", "Produce")
        assert delivery.finish().records == 10
    finally:
        delivery.close()
    assert fault.hits == 1
    assert values(broker) == numbered(10)


def test_no_partition_waits_for_all_batches_of_another(broker: Broker):
    settings = WriteOptions(broker.bootstrap, "orders", batch_bytes=200, request_bytes=1)
    producer = Producer(settings, "the rows")
    producer.partitions("orders")
    form = producer.begin(Format(batch_bytes=settings.batch_bytes))
    encoder = Encoder(form)
    columns = columns_of(rows(value=[b"x" * 100] * 20))
    many = [*encoder.add(("orders", 0), columns, np.arange(20), 0, 20, 0)]
    assert len(many) > 10
    [*_] = encoder.add(("orders", 1), columns, np.arange(1), 0, 1, 20)
    # A request has room for one batch, and after three of them there is an end.
    broker.faults.error("INVALID_RECORD", "Produce", after=3, times=None)
    try:
        with producer._changed:  # nothing is sent before all of them wait
            for batch in (*many, *encoder.finish()):
                producer.send(batch)
        with pytest.raises(WriteFailed):
            producer.flush()
    finally:
        producer.close()
    assert len(broker.consume("orders", partition=1)) == 1


def test_what_does_not_pass_in_time_fails_with_the_last_trouble(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
):
    fault = broker.faults.error("NOT_ENOUGH_REPLICAS", "Produce", times=None)

    def later() -> float:
        """The time is up when there has been trouble, and not before."""
        return time.monotonic() + (1000 if fault.hits >= 2 else 0)

    monkeypatch.setattr(producer_module, "time", SimpleNamespace(monotonic=later))
    with pytest.raises(
        WriteFailed, match=r"2 rows between 0 and 1 .*NOT_ENOUGH_REPLICAS"
    ) as caught:
        write(
            broker,
            rows(value=[b"a", b"b"]),
            topic="one",
            kafka_delivery_timeout_ms=300_000,
        )
    assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert "kafka.delivery.timeout.ms" in str(caught.value)


def test_a_stream_waits_longer_than_a_batch_unless_it_is_told_how_long(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(delivery_module, "_in_a_stream", lambda: True)
    patient = WriteOptions(
        broker.bootstrap, "one", delivery_timeout=0.2, max_block=0.2, longest_backoff=0.1
    )
    for settings in (
        patient,
        replace(patient, idempotent=True),
    ):
        # Each lasts for about a second.
        broker.faults.disconnect(("Metadata", "InitProducerId"), times=12)
        broker.faults.error("NOT_ENOUGH_REPLICAS", "Produce", times=12)
        assert write_rows(iter([rows(value=numbered(3))]), settings).records == 3
    broker.faults.error("NOT_ENOUGH_REPLICAS", "Produce", times=None)
    with pytest.raises(WriteFailed, match=r"kafka.delivery.timeout.ms"):
        write_rows(iter([rows(value=numbered(3))]), replace(patient, delivery_timeout_given=True))


def test_a_stream_does_not_wait_for_a_topic_that_is_not_there(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(delivery_module, "_in_a_stream", lambda: True)
    settings = WriteOptions(broker.bootstrap, "nowhere", max_block=0.2)
    with pytest.raises(WriteFailed, match=r"topic 'nowhere' is not there after 0.2 s"):
        write_rows(iter([rows(value=[b"a"])]), settings)


def test_a_row_that_brokers_hang_up_on_is_said_to_be_large():
    with Broker({"socket.request.max.bytes": "200000"}, topics={"one": 1}) as broker:
        settings = WriteOptions(broker.bootstrap, "one", request_bytes=100_000, retries=1)
        with pytest.raises(WriteFailed, match=r"3000\d\d bytes.* its socket\.request\.max\.bytes"):
            write_rows(iter([rows(value=[b"b" * 300_000])]), settings)


def test_a_stream_does_not_send_a_damaged_batch_for_ever(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(delivery_module, "_in_a_stream", lambda: True)
    settings = WriteOptions(broker.bootstrap, "one", delivery_timeout=0.3)
    broker.faults.error("CORRUPT_MESSAGE", "Produce", times=None)
    with pytest.raises(WriteFailed, match=r"kafka.delivery.timeout.ms.*CORRUPT_MESSAGE"):
        write_rows(iter([rows(value=[b"a"])]), settings)


def test_retries_0_means_one_attempt(broker: Broker):
    fault = broker.faults.error("NOT_ENOUGH_REPLICAS", "Produce", times=None)
    with pytest.raises(WriteFailed, match=r"after .* 1 attempts"):
        write(broker, rows(value=[b"a"]), topic="one", kafka_retries=0)
    assert fault.hits == 1


def test_a_batch_too_large_for_its_topic_is_split(broker: Broker):
    broker.create_topic("small", 1, config={"max.message.bytes": 1000})
    count = 200
    written = write(
        broker,
        rows(value=[b"%03d" % n * 20 for n in range(count)]),
        topic="small",
        delivery="idempotent",
    )
    assert written.records == count
    assert values(broker, "small") == [b"%03d" % n * 20 for n in range(count)]


def test_a_row_too_large_for_its_topic_fails_by_its_number(broker: Broker):
    broker.create_topic("small", 1, config={"max.message.bytes": 1000})
    with pytest.raises(WriteFailed) as caught:
        write(broker, rows(value=[b"a"] * 5), rows(value=[b"b", b"c" * 2000, b"d"]), topic="small")
    assert caught.value.row == 6
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert str(caught.value).startswith(
        "row 6 (counted from 0) of the rows was not written: small-0 refused it with "
        "MESSAGE_TOO_LARGE: "
    )


def test_batches_after_a_large_row_have_their_usual_size(broker: Broker):
    written = write(
        broker,
        rows(value=[b"a" * 100_000, *[b"b" * 100] * 900]),
        topic="one",
        kafka_batch_size=1000,
    )
    assert written.records == 901
    assert written.batches > 100


def test_max_request_size_is_kept_when_given(broker: Broker):
    with pytest.raises(WriteFailed, match=r"row 1 .* kafka.max.request.size=5000"):
        write(broker, rows(value=[b"a", b"b" * 6000]), topic="one", kafka_max_request_size=5000)


def test_a_row_without_a_key_for_a_compacted_topic_fails_by_its_number(broker: Broker):
    broker.create_topic("table", 1, config={"cleanup.policy": "compact"})
    with pytest.raises(WriteFailed) as caught:
        write(broker, rows(key=["a", "b", None], value=[b"1", b"2", b"3"]), topic="table")
    assert caught.value.row == 2
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert "without key" in str(caught.value)


def test_a_topic_that_is_not_there_is_named_with_the_first_row_for_it(broker: Broker):
    with pytest.raises(WriteFailed) as caught:
        write(
            broker,
            rows(topic=["one", "absent", "absent"], value=numbered(3)),
            kafka_max_block_ms=400,
        )
    assert caught.value.row == 1
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "topic 'absent' is not there after 0.4 s (kafka.max.block.ms)" in str(caught.value)


def test_a_topic_is_made_where_the_brokers_do_so_for_producers():
    with Broker() as broker:
        assert write(broker, rows(value=[b"a"]), topic="new").records
        assert values(broker, "new") == [b"a"]


@pytest.mark.parametrize(
    ("columns", "row", "words"),
    [
        ({"partition": [0, 3]}, 1, "topic 'orders' has no partition 3, it has partitions 0 to 2"),
        ({"partition": [-1, 0]}, 0, "its partition is -1; partitions count from 0"),
        ({"topic": ["orders", None]}, 1, "its topic is null; the option topic would set one"),
        ({"timestamp": [0, -5_000_000]}, 1, "its timestamp is before 1970"),
        ({"headers": [[], [{"key": None, "value": b""}]]}, 1, "it has a header without a key"),
    ],
    ids=["partition", "negative", "topic", "timestamp", "header"],
)
def test_a_row_that_cannot_be_a_record_fails_by_its_number(
    broker: Broker, columns: dict[str, Any], row: int, words: str
):
    topic = {} if "topic" in columns else {"topic": "orders"}
    if "timestamp" in columns:
        topic["keepTimestamps"] = "true"
    fine = {name: [each[row - 1] if row else 0] for name, each in columns.items()}
    if fine.get("partition") == [3]:
        fine["partition"] = [0]
    with pytest.raises(WriteFailed) as caught:
        write(
            broker,
            rows(value=[b"fine"], **fine),
            rows(value=[b"1", b"2"], **columns),
            **topic,
        )
    assert caught.value.row == 1 + row
    assert words in str(caught.value)


def test_nobody_listening_is_said_after_max_block_ms(broker: Broker):
    bootstrap = broker.bootstrap
    broker.stop()
    settings = WriteOptions(bootstrap, "one", max_block=0.3)
    with pytest.raises(WriteFailed, match=f"no broker of {bootstrap} could be asked after 0.3 s"):
        write_rows(iter([rows(value=[b"a"])]), settings)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acks_delivers(broker: Broker, acks: str, eventually: Callable[..., Any]):
    assert write(broker, rows(value=numbered(50)), topic="one", kafka_acks=acks).records == 50
    eventually(lambda: values(broker) == numbered(50))


def test_no_rows_ask_no_broker():
    settings = WriteOptions("127.0.0.1:1", "one")
    assert write_rows(iter([rows(value=pa.array([], pa.binary()))]), settings) == Written(
        0, 0, 0, 0
    )


def test_little_memory_is_enough_for_many_rows(broker: Broker):
    batches = [rows(value=[b"x" * 100] * 500) for _ in range(10)]
    written = write(
        broker, *batches, topic="orders", kafka_buffer_memory=4096, kafka_batch_size=2000
    )
    assert written.records == 5000
    assert len(broker.consume("orders")) == 5000
