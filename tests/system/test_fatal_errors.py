"""A producer that can go on no more says so for every record, and its threads survive it."""

from __future__ import annotations

import pytest

import ottla
from ottla.errors import ErrorCode


@pytest.fixture
def strange(start_broker, wire, raw, batch):
    """A broker on which the next producer finds its id in use, at another sequence number."""
    broker = start_broker()
    connection = wire(broker.bootstrap)
    raw.create_topic(connection, "t")
    answer = connection.ask(
        "init_producer_id", 4, transactional_id=None, transaction_timeout=1000, producer_id=-1
    )
    following = answer.producer_id + 1
    records = batch([b"x"], producer_id=following, producer_epoch=0, base_sequence=70)
    assert raw.produce(connection, "t", records).error_code == 0
    return broker


def test_a_fatal_error_reaches_every_record(strange):
    producer = ottla.Producer(strange.bootstrap)
    futures = [producer.send("t", b"%d" % number) for number in range(20)]
    for future in futures:
        with pytest.raises(ottla.KafkaError):
            future.result(timeout=60)
    failure = futures[0].exception()
    assert failure.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    producer.close()


def test_a_fatal_error_is_raised_by_close(strange):
    producer = ottla.Producer(strange.bootstrap)
    producer.post("t", b"1")
    with pytest.raises(ottla.KafkaError):
        producer.close()
