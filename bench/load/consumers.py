"""Groups as their users meet them: librdkafka consumers that subscribe."""

from __future__ import annotations

import threading
import time
import uuid

from confluent_kafka import Consumer, TopicPartition

from bench.load.settings import Settings

_PATIENCE = 60.0
_HEARTBEAT_MS = 10


def _settings(bootstrap: str, protocol: str, group: str) -> Settings:
    """The protocol's defaults, but for the heartbeat: with 3 s that would be all that is measured.

    In the consumer protocol its interval is the broker's affair, and set there. In the classic one
    librdkafka sends it when its main thread wakes up for something, which in a quiet consumer may
    be half a second later: statistics wake it as often.
    """
    settings: Settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "statistics.interval.ms": _HEARTBEAT_MS,
    }
    if protocol == "classic":
        settings["heartbeat.interval.ms"] = _HEARTBEAT_MS
    return settings


def first_record(
    bootstrap: str, topic: str, protocol: str, warm: int, repeats: int
) -> dict[str, float]:
    """From the call that subscribes a new consumer of a new group to its first record."""
    figures = {}
    for turn in range(warm + repeats):
        consumer = Consumer(_settings(bootstrap, protocol, uuid.uuid4().hex))
        began = time.perf_counter()
        consumer.subscribe([topic])
        message = consumer.poll(_PATIENCE)
        seconds = time.perf_counter() - began
        if message is None:
            raise RuntimeError("no record came")
        problem = message.error()
        if problem is not None:
            raise RuntimeError(problem.str())
        consumer.close()
        if turn >= warm:
            figures[f"seconds-{turn - warm}"] = seconds
    return figures


def rebalance(
    bootstrap: str,
    topic: str,
    protocol: str,
    members: int,
    partitions: int,
    warm: int,
    repeats: int,
) -> dict[str, float]:
    """A member comes to a group of so many: until every partition has its owner among them all."""
    group = uuid.uuid4().hex
    there = [_Polled(_settings(bootstrap, protocol, group), topic) for _ in range(members)]
    figures = {}
    try:
        _wait_shared(there, partitions)
        for turn in range(warm + repeats):
            began = time.perf_counter()
            newcomer = _Polled(_settings(bootstrap, protocol, group), topic)
            try:
                _wait_shared([*there, newcomer], partitions)
                seconds = time.perf_counter() - began
            finally:
                newcomer.close()
            if turn >= warm:
                figures[f"seconds-{turn - warm}"] = seconds
            _wait_shared(there, partitions)
    finally:
        for each in there:
            each.close()
    return figures


class _Polled:
    """A subscribed consumer with a thread that polls it, which is how it takes part."""

    def __init__(self, settings: Settings, topic: str) -> None:
        # Kept here: asking a consumer for its assignment from another thread holds up both.
        self.owned: set[int] = set()
        self.consumer = Consumer(settings)
        self.consumer.subscribe(
            [topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        self._running = True
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _assigned(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.owned.update(each.partition for each in partitions)

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.owned.difference_update(each.partition for each in partitions)

    def _poll(self) -> None:
        while self._running:
            self.consumer.poll(0.05)

    def close(self) -> None:
        self._running = False
        self._thread.join()
        self.consumer.close()


def _wait_shared(members: list[_Polled], partitions: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        owned = [len(member.owned) for member in members]
        if sum(owned) == partitions and all(owned):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"of {partitions} partitions the members own {owned}")
        time.sleep(0.001)
