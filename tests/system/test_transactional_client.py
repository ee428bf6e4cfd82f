"""`ottla.Producer` and `Consumer` move records exactly once while brokers of a cluster crash."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

import ottla
from ottla.errors import KafkaError
from ottla.testing import Cluster, NewTopic

RECORDS = 400
BATCH = 10
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": 1,
}
TOPICS = [NewTopic("in", 2, 3), NewTopic("out", 2, 3)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, config=SETTINGS, topics=TOPICS) as made:
        yield made


class Mover:
    """Moves records in a thread, and does what the types of errors say; `moved` counts them."""

    def __init__(self, bootstrap: str) -> None:
        self.moved = 0
        self.failure: BaseException | None = None
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._with_new_clients()
                except (ottla.FatalTransactionError, ottla.TransactionInDoubtError):
                    continue
                except ottla.TransactionError:
                    raise  # fenced, and by whom?
                except KafkaError:
                    continue  # no broker answers: the next attempt
        except BaseException as error:
            self.failure = error

    def _with_new_clients(self) -> None:
        with (
            ottla.Producer(self._bootstrap, transactional_id="mover", max_block=20) as producer,
            ottla.Consumer(
                self._bootstrap,
                group="movers",
                reset="earliest",
                auto_commit=False,
                config={"group.instance.id": "mover"},
            ) as consumer,
        ):
            producer.init_transactions()
            consumer.subscribe("in")
            while not self._stop.is_set():
                batch = consumer.take(BATCH, 0.2)
                try:
                    with producer.transaction() as txn:
                        for record in batch:
                            txn.post("out", record.value)
                        txn.commit_offsets(consumer)
                except ottla.AbortableTransactionError:
                    consumer.rewind()
                else:
                    self.moved += len(batch)

    def end(self) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure


def committed(cluster: Cluster) -> list[bytes | None]:
    with ottla.Consumer(cluster.bootstrap) as consumer:
        consumer.assign("out", "earliest")
        return [record.value for record in consumer.records(until_end=True)]


@pytest.mark.timeout(900)
def test_every_record_is_moved_once(cluster: Cluster, eventually: Callable[..., None]) -> None:
    values = [b"%d" % number for number in range(RECORDS)]
    with ottla.Producer(cluster.bootstrap) as producer:
        for value in values[: RECORDS // 2]:
            producer.post("in", value)
    mover = Mover(cluster.bootstrap)
    rest = iter(values[RECORDS // 2 :])
    for topic in ("__transaction_state", "__consumer_offsets", "out"):
        wanted = mover.moved + BATCH
        eventually(lambda wanted=wanted: mover.moved >= wanted)
        broker = cluster.leader(topic, 0)
        broker.crash()
        with ottla.Producer(cluster.bootstrap) as producer:
            for _, value in zip(range(RECORDS // 6), rest, strict=False):
                producer.post("in", value)
        broker.start()
        cluster.wait_in_sync(topic)
    with ottla.Producer(cluster.bootstrap) as producer:
        for value in rest:
            producer.post("in", value)

    def all_moved() -> bool:
        return mover.failure is not None or set(committed(cluster)) == set(values)

    eventually(all_moved, timeout=240)
    mover.end()
    assert Counter(committed(cluster)) == Counter(values)
