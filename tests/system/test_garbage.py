"""A broker's requests leave nothing to the garbage collector, whose passes hold up everybody.

What a request leaves in a cycle is freed by nobody else: at a thousand requests a second a pass
over twenty thousand objects came every few hundred milliseconds.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Producer

from ottla.testing import Broker, Cluster

ROUNDS = 50


@contextmanager
def garbage_of_brokers() -> Iterator[list[str]]:
    """The kinds of what only the garbage collector frees, as far as they are ours."""
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    found: list[str] = []
    try:
        yield found
        gc.collect()
        found += [
            f"{type(kept).__module__}.{type(kept).__qualname__}"
            for kept in gc.garbage
            if type(kept).__module__.startswith("ottla.")
        ]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def read_one_by_one(bootstrap: str, settings: dict[str, str]) -> Iterator[None]:
    """Each record is written when the consumer waits for it already."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all"})
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
        | settings
    )
    consumer.subscribe(["t"])
    try:
        while True:
            producer.produce("t", b"value")
            assert not producer.flush(120)
            message = consumer.poll(120)
            assert message is not None
            assert message.error() is None
            consumer.commit(asynchronous=False)
            yield
    finally:
        consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_broker_leaves_no_request_to_the_garbage_collector(protocol: str) -> None:
    with Broker(topics=["t"]) as broker:
        rounds = read_one_by_one(broker.bootstrap, {"group.protocol": protocol})
        next(rounds)  # the group is formed, its coordinator loaded
        with garbage_of_brokers() as found:
            for _ in range(ROUNDS):
                next(rounds)
        rounds.close()
    assert not found


def test_replicated_brokers_leave_no_request_to_the_garbage_collector() -> None:
    with Cluster(brokers=3, topics=["t"]) as cluster:
        rounds = read_one_by_one(cluster.bootstrap, {"group.protocol": "consumer"})
        next(rounds)
        with garbage_of_brokers() as found:
            for _ in range(ROUNDS):
                next(rounds)
        rounds.close()
    assert not found
