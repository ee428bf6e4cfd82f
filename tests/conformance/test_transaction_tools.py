"""kafka-transactions and `ottla txn` with transactions that are open, hang, or are over.

What the tables and messages of the former look like is compared with Apache's own tool elsewhere
(test_kafka_tools.py, `make interop`). Here it is what they say: of a producer of librdkafka, and of
a transaction of which no coordinator knows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import confluent_kafka as rd
import pytest
from click.testing import CliRunner

import ottla
from ottla.cli.kafka_compat import run
from ottla.cli.main import cli
from ottla.client.settings import parse_address
from ottla.client.wire import Wire
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.records.builder import build_batch
from ottla.testing.process import BrokerProcess

TIMEOUT = 60
LOST_PRODUCER = 900_001
MINUTES_AGO = 30
VERIFICATION = "transaction.partition.verification.enable"

Table = list[dict[str, str]]
Begin = Callable[..., rd.Producer]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One that lets transactions in without asking their coordinator, so that they can hang."""
    settings = {"node.id": "1", "num.partitions": "1", VERIFICATION: "false"}
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings=settings) as started:
        started.start()
        yield started.bootstrap


@pytest.fixture
def begin(broker: str) -> Iterator[Begin]:
    """`begin(name, topic, …)`: a transaction with a record in each topic, left open."""
    producers = []

    def begun(name: str, *topics: str) -> rd.Producer:
        settings = {"bootstrap.servers": broker, "transactional.id": name, "log_level": 0}
        producer = rd.Producer({**settings, "transaction.timeout.ms": 600_000})
        producers.append(producer)
        producer.init_transactions(TIMEOUT)
        producer.begin_transaction()
        for topic in topics:
            producer.produce(topic, b"value")
        assert producer.flush(TIMEOUT) == 0
        return producer

    yield begun
    producers.clear()


@pytest.fixture
def commit(broker: str, eventually: Callable[..., Any]) -> Callable[..., None]:
    """`commit(producer, topic, …)`: its markers follow the answer to the producer, and are there.

    Each topic has been empty before.
    """

    def committed(producer: rd.Producer, *topics: str) -> None:
        producer.commit_transaction(TIMEOUT)
        eventually(lambda: all(committed_end(broker, topic) == 2 for topic in topics))

    return committed


@pytest.fixture
def tool(broker: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., Table]:
    def typed(*words: object, code: int = 0) -> Table:
        capsys.readouterr()
        given = ["--bootstrap-server", broker, *map(str, words)]
        assert run("kafka-transactions", given) == code, capsys.readouterr().err
        if code:
            return [{"error": capsys.readouterr().err}]
        lines = capsys.readouterr().out.splitlines()
        rows = [[cell.rstrip() for cell in line.split("\t")[:-1]] for line in lines]
        return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]

    return typed


def hang(broker: str, topic: str) -> None:
    """Write as a producer that no coordinator knows, half an hour ago."""
    at = time.time_ns() // 1_000_000 - MINUTES_AGO * 60_000
    records = build_batch(
        [(at, None, b"value", ())],
        producer_id=LOST_PRODUCER,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    data = [PartitionProduceData(index=0, records=memoryview(records))]
    request = ProduceRequest(
        transactional_id="lost",
        acks=-1,
        timeout_ms=TIMEOUT * 1000,
        topic_data=[TopicProduceData(name=topic, partition_data=data)],
    )
    host, port = parse_address(broker)
    # From version 12 on the leader would tell the coordinator.
    newest = {ApiKey.PRODUCE: 11}
    with closing(Wire(host, port, timeout=TIMEOUT, client_id="test", newest=newest)) as wire:
        [answer] = wire.ask(request).responses
    assert answer.partition_responses[0].error_code == 0


def committed_end(broker: str, topic: str) -> int:
    """Where a consumer of committed records has to stop."""
    settings = {"bootstrap.servers": broker, "group.id": "looks", "log_level": 0}
    consumer = rd.Consumer({**settings, "isolation.level": "read_committed"})
    end = consumer.get_watermark_offsets(rd.TopicPartition(topic, 0), TIMEOUT)[1]
    consumer.close()
    return int(end)


def test_an_open_transaction_is_listed_and_described(
    begin: Begin, tool: Any, unique: Any, eventually: Any
) -> None:
    name, orders, stock = unique("txn"), unique("orders"), unique("stock")
    producer = begin(name, orders, stock)
    [listed] = [row for row in tool("list") if row["TransactionalId"] == name]
    assert listed["TransactionState"] == "Ongoing"
    [described] = tool("describe", "--transactional-id", name)
    assert described["ProducerId"] == listed["ProducerId"]
    assert described["TransactionTimeoutMs"] == "600000"
    assert set(described["TopicPartitions"].split(",")) == {f"{orders}-0", f"{stock}-0"}
    assert int(described["TransactionDurationMs"]) >= 0
    producers = tool("describe-producers", "--topic", orders, "--partition", 0)
    [state] = [row for row in producers if row["ProducerId"] == listed["ProducerId"]]
    assert state["CurrentTransactionStartOffset"] == "0"
    producer.commit_transaction(TIMEOUT)
    eventually(lambda: tool("describe", "--transactional-id", name)[0]["TopicPartitions"] == "")


def test_lists_are_filtered_by_duration_and_pattern(begin: Begin, tool: Any, unique: Any) -> None:
    name = unique("txn")
    begin(name, unique("orders"))
    pattern = ("--transactional-id-pattern", f"{name[:-1]}.")
    assert [row["TransactionalId"] for row in tool("list", *pattern)] == [name]
    assert tool("list", *pattern, "--duration-filter", 86_400_000) == []
    assert len(tool("list", *pattern, "--duration-filter", -1)) == 1


def test_a_forced_end_aborts_and_fences(broker: str, begin: Begin, tool: Any, unique: Any) -> None:
    name, orders = unique("txn"), unique("orders")
    producer = begin(name, orders)
    assert committed_end(broker, orders) == 0
    tool("forceTerminateTransaction", "--transactionalId", name)
    assert committed_end(broker, orders) == 2, "a record, and the marker"
    [described] = tool("describe", "--transactional-id", name)
    assert described["TransactionState"] == "Empty"
    with pytest.raises(rd.KafkaException) as refused:
        producer.commit_transaction(TIMEOUT)
    assert refused.value.args[0].fatal()


def test_a_hanging_transaction_is_found_and_aborted(
    broker: str, begin: Begin, commit: Any, tool: Any, unique: Any
) -> None:
    name, orders = unique("txn"), unique("orders")
    commit(begin(name, orders), orders)
    hang(broker, orders)
    begin(name, orders)
    assert committed_end(broker, orders) == 2
    [found] = tool("find-hanging", "--topic", orders)
    assert found["ProducerId"] == str(LOST_PRODUCER)
    assert found["StartOffset"] == "2"
    assert int(found["Duration(min)"]) >= MINUTES_AGO
    assert tool("find-hanging", "--topic", orders, "--max-transaction-timeout", 60) == []
    everywhere = tool("find-hanging", "--broker-id", 1, "--max-transaction-timeout", 0)
    assert [row["Topic"] for row in everywhere] == [orders], "not the one that is only open"
    place = ("--topic", orders, "--partition", 0)
    tool("abort", *place, "--start-offset", 2)
    assert committed_end(broker, orders) == 3, "up to the transaction of whoever came after it"
    assert tool("find-hanging", "--topic", orders) == []
    [again] = tool("abort", *place, "--start-offset", 2, code=1)
    assert "Could not find any open transactions starting at offset 2" in again["error"]


# -- ottla txn


@pytest.fixture
def txn(broker: str) -> Callable[..., str]:
    """`txn("list")`: what `ottla txn list` prints."""

    def typed(*words: object, code: int = 0) -> str:
        result = CliRunner().invoke(cli, ["txn", *map(str, words), "-b", broker])
        assert result.exit_code == code, result.output
        return result.output

    return typed


def test_the_list_says_who_waits_where_and_for_whom(
    begin: Begin, commit: Any, txn: Any, unique: Any
) -> None:
    name, orders = unique("txn"), unique("orders")
    commit(begin(unique("first"), orders), orders)
    begin(name, orders)
    other = unique("behind")
    begin(other, orders)
    lines = txn("list").splitlines()
    [row] = [line.split() for line in lines if line.startswith(name)]
    assert row[1] == "Ongoing"
    [first] = [line for line in lines if f"transaction {name!r}" in line]
    start = f"consumers with read_committed of {orders}-0 wait at offset 2 (2 offsets), for "
    assert first.startswith(f"{start}transaction {name!r} of producer {row[2]}, open for ")
    assert ", times out in " in first
    [second] = [line for line in lines if f"transaction {other!r}" in line]
    assert "wait at offset 2; from offset 3 on also, once the transaction of producer " in second
    [shown] = [each for each in json.loads(txn("list", "-J")) if each["transactional_id"] == name]
    assert shown["partitions"] == [{"topic": orders, "partition": 0}]
    [held] = shown["holds_up"]
    assert (held["offset"], held["held"], held["begins_at"]) == (2, 2, 2)
    assert 0 < shown["times_out_in_seconds"] <= 600
    assert name not in txn("list", "--longer-than", 86_400)
    assert name not in txn("list", "--state", "empty")


def test_a_transaction_is_described_and_aborted(
    broker: str, begin: Begin, txn: Any, unique: Any
) -> None:
    name, orders, stock = unique("txn"), unique("orders"), unique("stock")
    producer = begin(name, orders, stock)
    title, _, *rows = txn("describe", name).splitlines()
    assert title.startswith(f"{name}  Ongoing  producer ")
    assert [row.split()[:4] for row in rows[:2]] == [
        [orders, "0", "0", "0"],
        [stock, "0", "0", "0"],
    ]
    answer = json.loads(txn("abort", name, "-J"))
    assert answer["partitions"] == [
        {"topic": orders, "partition": 0},
        {"topic": stock, "partition": 0},
    ]
    assert committed_end(broker, orders) == committed_end(broker, stock) == 2
    with pytest.raises(rd.KafkaException):
        producer.commit_transaction(TIMEOUT)
    again = txn("abort", name, code=1)
    assert f"{name!r} has no transaction open: it has had none since its producer began" in again


def test_what_is_over_or_not_there_is_not_aborted(
    begin: Begin, commit: Any, txn: Any, unique: Any
) -> None:
    name, orders = unique("txn"), unique("orders")
    commit(begin(name, orders), orders)
    answer = txn("abort", name, code=1)
    assert f"{name!r} has no transaction open: the last one was committed" in answer
    slip = f"{name[:-1]}_"
    for verb in ("describe", "abort"):
        answer = txn(verb, slip, code=1)
        assert f"there is no transactional id {slip!r}; did you mean {name!r}?" in answer
    assert "name a transactional id, or all of" in txn("abort", "-t", "orders", code=2)
    assert "name a transactional id, or all of" in txn("abort", name, "-p", 0, code=2)


def test_who_waits_for_a_hanging_transaction_is_told_how_to_end_it(
    broker: str, begin: Begin, txn: Any, unique: Any
) -> None:
    name, orders = unique("txn"), unique("orders")
    begin(name, orders)
    hang(broker, orders)
    known = txn("abort", "-t", orders, "-p", 0, "-o", 0, code=1)
    assert f"does not hang: it is that of {name!r}" in known
    assert f"`ottla txn abort {name}`" in known
    txn("abort", name)
    assert txn("find-hanging", orders, "--longer-than", 3600) == "no transaction hangs\n"
    told = txn("find-hanging", orders).splitlines()[-1]
    assert told.startswith(f"consumers with read_committed of {orders}-0 wait at offset 1 ")
    command = f"`ottla txn abort -t {orders} -p 0 -o 1`"
    assert "that no coordinator will end, last written to 3" in told
    assert f" ago: {command} ends it" in told
    wrong = txn("abort", "-t", orders, "-p", 0, "-o", 7, code=1)
    assert f"is open in {orders}-0; open are those from 1 (producer {LOST_PRODUCER})" in wrong
    txn("abort", "-t", orders, "-p", 0, "-o", 1)
    assert committed_end(broker, orders) == 4
    assert txn("find-hanging", orders) == "no transaction hangs\n"
    assert "there is no partition" in txn("abort", "-t", orders, "-p", 9, "-o", 1, code=1)


# -- ottla.Admin


def test_the_admin_sees_and_fences_a_transaction(broker: str, begin: Begin, unique: Any) -> None:
    name, orders = unique("txn"), unique("orders")
    producer = begin(name, orders)
    tp = ottla.TopicPartition(orders, 0)
    admin = ottla.Admin(broker)
    [listed] = admin.list_transactions(pattern=name, states=["Ongoing"])
    assert admin.list_transactions(pattern=name, states="Ongoing") == (listed,)
    assert admin.list_transactions(pattern=name, open_longer_than=86_400) == ()
    assert [
        each.transactional_id for each in admin.list_transactions(producer_ids=[listed.producer_id])
    ] == [name]
    described = admin.describe_transactions(name)[name]
    assert (described.state, described.partitions) == ("Ongoing", (tp,))
    assert (described.coordinator, described.timeout_ms) == (listed.coordinator, 600_000)
    [state] = admin.describe_producers([(orders, 0)])[tp]
    assert (state.producer_id, state.txn_start_offset) == (listed.producer_id, 0)
    assert admin.describe_producers([tp], broker=1) == {tp: (state,)}
    fenced = admin.fence_producers(name)[name]
    assert fenced.producer_epoch > described.producer_epoch
    assert committed_end(broker, orders) == 2
    with pytest.raises(rd.KafkaException):
        producer.commit_transaction(TIMEOUT)


def test_the_admin_ends_what_hangs(broker: str, begin: Begin, commit: Any, unique: Any) -> None:
    orders = unique("orders")
    commit(begin(unique("txn"), orders), orders)
    hang(broker, orders)
    admin = ottla.Admin(broker)
    states = admin.describe_producers([(orders, 0)])[ottla.TopicPartition(orders, 0)]
    [lost] = [each for each in states if each.txn_start_offset is not None]
    admin.abort_transaction((orders, 0), lost)
    assert committed_end(broker, orders) == 4


def test_the_admin_says_what_is_not_there(broker: str, begin: Begin, unique: Any) -> None:
    name, orders = unique("txn"), unique("orders")
    begin(name, orders)
    admin = ottla.Admin(broker)
    with pytest.raises(ottla.KafkaError, match="there is no transactional id 'nowhere'"):
        admin.describe_transactions("nowhere")
    with pytest.raises(ottla.PartialFailureError) as failed:
        admin.describe_transactions("nowhere", name)
    assert set(failed.value.failures) == {"nowhere"}
    with pytest.raises(ottla.KafkaError) as missing:
        admin.describe_producers([("nowhere", 0)])
    assert missing.value.code is ottla.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(ottla.KafkaError, match="no state of a transaction is called 'ongoing'"):
        admin.list_transactions(states=["Ongoing", "ongoing"])
    with pytest.raises(ValueError, match="open_longer_than is a number of seconds"):
        admin.list_transactions(open_longer_than=-1)
