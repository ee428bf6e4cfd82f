"""kill -9 under transactions: each counts in all its partitions or in none, acknowledged ones do.

Every transaction writes its number into three partitions, every third one is aborted. The broker
is killed in the middle of that, again and again; what was told to the client must hold afterwards.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.testing.process import BrokerProcess

TOPIC, PARTITIONS = "numbers", 3
KILLS = 5
SETTINGS = {
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}
TIMEOUT = 60.0


class Writer:
    """A transactional producer in a thread that begins anew whenever it cannot go on."""

    def __init__(self, bootstrap: str) -> None:
        self.committed: set[int] = set()  # acknowledged
        self.aborted: set[int] = set()  # acknowledged
        self.number = 0
        self.failure: BaseException | None = None
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._write()
                except KafkaException:
                    continue  # whatever it is: a new producer fences the one before
        except BaseException as error:
            self.failure = error

    def _write(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": "writer",
                "transaction.timeout.ms": 5_000,
                "reconnect.backoff.max.ms": 200,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        producer.init_transactions(TIMEOUT)
        while not self._stop.is_set():
            self.number += 1
            number = self.number
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce(TOPIC, str(number).encode(), partition=partition)
            if number % 3:
                producer.commit_transaction(TIMEOUT)
                self.committed.add(number)
            else:
                producer.abort_transaction(TIMEOUT)
                self.aborted.add(number)

    def has_committed_more(self, count: int) -> Callable[[], bool]:
        wanted = len(self.committed) + count
        return lambda: len(self.committed) >= wanted

    def end(self) -> None:
        self._stop.set()
        self._thread.join(2 * TIMEOUT)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure


def read(bootstrap: str, partition: int) -> list[int]:
    """What a reader of committed records gets, up to the end of what is decided."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused-by-assign",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(TOPIC, partition, 0)])
    numbers = []
    while True:
        message = consumer.poll(TIMEOUT)
        assert message is not None
        if message.error() is not None:
            assert message.error().name() == "_PARTITION_EOF"
            break
        numbers.append(int(message.value() or b""))
    consumer.close()
    return numbers


@pytest.mark.parametrize("seed", [1, 2])
def test_all_or_nothing(tmp_path: Path, seed: int, eventually: Callable[..., None]) -> None:
    rng = random.Random(seed)
    with BrokerProcess(tmp_path, settings=SETTINGS) as broker:
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
            future.result(TIMEOUT)
        writer = Writer(broker.bootstrap)
        for _ in range(KILLS):
            eventually(writer.has_committed_more(3))
            time.sleep(rng.random() * 0.05)  # anywhere in a transaction
            broker.kill()
            broker.start()
        eventually(writer.has_committed_more(3))
        writer.end()

        def alike() -> bool:
            """What was open at the end is aborted after its time."""
            found = [read(broker.bootstrap, each) for each in range(PARTITIONS)]
            return all(each == found[0] for each in found) and writer.committed <= set(found[0])

        eventually(alike)
        numbers = read(broker.bootstrap, 0)
        assert len(numbers) == len(set(numbers)), "something was written twice"
        assert numbers == sorted(numbers)
        assert not writer.aborted & set(numbers)
        assert writer.committed <= set(numbers)
